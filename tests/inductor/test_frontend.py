"""Graphs that are run node by node: their results lie as the graph states."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Graph, GraphModule

from mixorder.inductor import frontend


@pytest.mark.parametrize("strides", [(15, 3, 1), (15, 1, 5), (3, 3, 1)])
def test_results_lie_as_the_graph_states(strides: tuple[int, ...]) -> None:
    """Fake tensors may state other strides than eager operators give. A dim of size 1 has any stride."""
    x, y = torch.randn(1, 5, 1).expand(1, 5, 3), torch.randn(1, 3, 5).transpose(1, 2)
    graph = Graph()
    product = graph.call_function(torch.ops.aten.mul.Tensor, (graph.placeholder("x"), graph.placeholder("y")))
    product.meta["val"] = torch.empty_strided((1, 5, 3), strides, device="meta")
    graph.output(product)
    found = frontend.run_by_node(GraphModule(torch.nn.Module(), graph))([x, y])
    assert (x * y).stride()[1:] == (1, 5) and found.stride()[1:] == strides[1:]
    assert torch.equal(found, x * y)
