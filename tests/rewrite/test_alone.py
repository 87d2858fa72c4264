"""A region's nodes as a graph of their own."""

from __future__ import annotations

from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32
from torch.fx import Graph, Interpreter

from mixorder.lowering.lower import lower
from mixorder.rewrite.alone import alone

MAKE = {
    "layer norm": lambda: graphs.layer_norm_backward(512, 64, f32),
    "rms norm in bf16": lambda: graphs.rms_norm_backward(512, 64),
    "rotary": lambda: graphs.rope_backward(2, 16, 4, 32, f32),
}


def inputs_of(region: Any) -> list[torch.Tensor]:
    vals = [node.meta["val"] for node in region.inputs]
    return [torch.randn(v.shape).to(v.dtype).as_strided(v.shape, v.stride()) for v in vals]


@pytest.mark.parametrize("name", MAKE)
def test_it_computes_what_the_region_computes(name: str) -> None:
    graph = MAKE[name]()
    region = graphs.only(graph)
    before = graphs.snapshot(graph)
    by_itself = alone(region, int)
    assert graphs.snapshot(graph) == before
    values = dict(zip(region.inputs, inputs_of(region), strict=True))
    for like, (name, node) in zip(by_itself.inputs, region.input_buffers.items(), strict=True):
        value = values[node]
        assert (like.name, like.dtype) == (name, value.dtype)
        assert (like.shape, like.stride) == (value.shape, value.stride())
    found = by_itself.module()(*values.values())
    run = Interpreter(torch.fx.GraphModule({}, graph))
    run.env = values
    for node in region.nodes:
        values[node] = run.run_node(node)
    for mine, node in zip(found, region.outputs, strict=True):
        assert torch.equal(mine, values[node])


def test_its_text_does_not_depend_on_names() -> None:
    one, other, third = (
        alone(graphs.only(graph), int)
        for graph in (graphs.pair_graph(512, 256), renamed(), graphs.pair_graph(512, 256, bf16))
    )
    assert str(one) == str(other) != str(third)
    assert str(one.module().graph) == str(other.module().graph)


def renamed() -> Graph:
    graph = graphs.pair_graph(512, 256)
    for node in graph.nodes:
        node.name = f"other_{node.name}"
    return graph


def test_symbolic_sizes_are_the_hints() -> None:
    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        rows = x.reshape(x.shape[0] * x.shape[1], 256)
        return graphs.pair(rows, dy.reshape(rows.shape))

    specs = [((4, 128, 256), f32)] * 2
    region = graphs.only(graphs.traced_rows(function, *specs))
    by_itself = alone(region, lower(region).hint)
    assert {like.shape for like in by_itself.inputs} <= {(4, 128, 256), (512, 256)}
    made = by_itself.module()(*(torch.randn(like.shape) for like in by_itself.inputs))
    assert sorted(tuple(value.shape) for value in made) == [(256,), (512, 256)]
