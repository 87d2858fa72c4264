"""Maxima of all elements, taken in two steps while regions are looked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, snapshot, traced
from torch.fx import Graph, GraphModule

from mixorder.region.find import find_regions
from mixorder.rewrite.extrema import extrema_in_two_steps

aten = torch.ops.aten
FULL = (64, 48), bf16


def largest(x: Any) -> Any:
    return x.abs().amax(), x.max(), x.amin((0, 1), keepdim=True), x.amax(0)


def run(graph: Graph, *args: torch.Tensor) -> Any:
    graph.lint()
    return GraphModule({}, graph)(*args)


def test_each_gives_what_it_did() -> None:
    graph, x = traced(largest, FULL), torch.randn(64, 48).to(bf16)
    x[3, 5] = -0.0
    with extrema_in_two_steps(graph) as firsts:
        assert [tuple(n.meta["val"].shape) for n in firsts] == [(1, 48)] * 3
        for mine, eager in zip(run(graph, x), largest(x), strict=True):
            assert torch.equal(mine, eager) and mine.shape == eager.shape
        x[7, 7] = float("nan")
        assert all(mine.isnan().any() for mine in run(graph, x))


def test_those_that_nothing_took_are_undone() -> None:
    graph = traced(largest, FULL)
    before, nodes = snapshot(graph), list(graph.nodes)
    with extrema_in_two_steps(graph):
        assert snapshot(graph) != before
    assert snapshot(graph) == before and list(graph.nodes) == nodes


def test_one_that_was_taken_stays() -> None:
    graph = traced(lambda x: (x.abs().amax(), x.max()), FULL)
    with extrema_in_two_steps(graph) as firsts:
        taken, _ = sorted(firsts)
        (source,) = taken.all_input_nodes
        with graph.inserting_before(taken):
            other = graph.call_function(aten.amax.default, (source, [0], True))
        taken.replace_all_uses_with(other)
        graph.erase_node(taken)
    x = torch.randn(64, 48).to(bf16)
    assert [m.item() for m in run(graph, x)] == [x.abs().amax().item(), x.max().item()]
    assert sum(len(n.args) > 1 for n in graph.find_nodes(op="call_function", target=aten.amax.default)) == 1


@pytest.mark.parametrize("shape", [(64,), (64, 1), (1, 64), (), (0, 48)])
def test_a_tensor_without_rows_is_left(shape: tuple[int, ...]) -> None:
    graph = traced(lambda x: (x.abs().sum(), x.amax() if x.numel() else x.sum()), (shape, f32))
    with extrema_in_two_steps(graph) as firsts:
        assert not firsts


def test_columns_are_the_contiguous_dim() -> None:
    graph = traced(lambda x: (x.t().amax(),), FULL)
    with extrema_in_two_steps(graph) as firsts:
        (first,) = firsts
        assert first.args[1] == [1] and tuple(first.meta["val"].shape) == (48, 1)


def test_no_region_is_looked_for_one() -> None:
    """Stock has one kernel for a product and the maximum of all its elements, though not of its columns."""

    def function(x: Any, y: Any) -> Any:
        product = x * y
        return product, product.amax()

    graph = traced(function, ((4096, 1024), bf16), ((4096, 1024), bf16))
    with extrema_in_two_steps(graph) as firsts:
        assert len(firsts) == 1
        assert not list(find_regions(graph, firsts)) and list(find_regions(graph))
