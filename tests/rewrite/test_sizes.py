"""Sizes come from the graph's inputs, so that no launch waits for what it computes itself."""

from __future__ import annotations

import operator
from typing import Any
from unittest import mock

import torch
from graphs import f32, outcomes, traced_rows
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mixorder import pipeline
from mixorder.inductor.symbols import guarded
from mixorder.report import RegionRecord
from mixorder.rewrite.sizes import sizes_from_inputs

aten = torch.ops.aten
SIZE = aten.sym_size.int
FULL, SPLIT, SQUARE, COLUMN = ((512, 256), f32), ((512, 2, 128), f32), ((256, 256), f32), ((256,), f32)


def checkpointed(x: Any, dy: Any, w: Any, v: Any) -> Any:
    """A norm that is recomputed for a matrix product, and its backward."""
    rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    y = x * rstd * w
    late = torch.mm(dy.reshape(x.shape[0], 256), v)
    scaled = late * w
    dx = (scaled - x * rstd * (scaled * x * rstd).mean(-1, keepdim=True)) * rstd
    return dx, (late * x * rstd).sum(0), torch.mm(y, v), (y.shape[0] + 1) // 2


def asked_inside() -> tuple[Graph, Node]:
    """That graph, with its rows asked of the norm's result, and that node."""
    graph = traced_rows(checkpointed, FULL, SPLIT, COLUMN, SQUARE, symbolic=[0])
    (size,) = graph.find_nodes(op="call_function", target=SIZE)
    result = graph.find_nodes(op="call_function", target=aten.mm.default)[-1].args[0]
    size.args = (result, 0)
    return graph, size


def test_a_region_does_not_wait_for_a_size_of_its_own_result() -> None:
    graph, _ = asked_inside()
    with mock.patch.object(pipeline, "sizes_from_inputs", lambda graph: None):
        (before,) = outcomes(graph)
    graph, _ = asked_inside()
    (fused,) = outcomes(graph)
    assert isinstance(before, RegionRecord) and isinstance(fused, RegionRecord)
    assert len(before.inner) == 1 and len(fused.inner) == 2  # the forward's mean is left out, or not


def test_sizes_are_asked_of_inputs() -> None:
    graph, size = asked_inside()
    expr = size.meta["val"].node.expr
    with guarded(graph):
        sizes_from_inputs(graph)
    graph.lint()
    (found,) = graph.find_nodes(op="call_function", target=SIZE)
    assert found.args[0].op == "placeholder" and found.meta["val"].node.expr == expr


def test_a_size_is_asked_behind_an_input_that_something_stands_before() -> None:
    graph, size = asked_inside()
    with graph.inserting_before(next(iter(graph.nodes))):
        graph.call_function(torch.ops.prims._make_token.default)  # as torch begins one with ordered effects
    with guarded(graph):
        sizes_from_inputs(graph)
    graph.lint()
    (found,) = graph.find_nodes(op="call_function", target=SIZE)
    assert found.args[0].op == "placeholder" and size not in graph.nodes


def test_a_size_is_computed_from_those_of_inputs() -> None:
    """Half of the rows, asked of a tensor that has half."""
    graph, size = asked_inside()
    half = next(n for n in graph.nodes if n.target is operator.floordiv)
    with graph.inserting_before(half):
        part = graph.call_function(aten.slice.Tensor, (size.args[0], 0, 0, 9223372036854775807, 2))
        asked = graph.call_function(SIZE, (part, 0))
    part.meta["val"] = part.args[0].meta["val"][::2]
    asked.meta["val"] = part.meta["val"].shape[0]
    half.replace_all_uses_with(asked)
    with guarded(graph):
        sizes_from_inputs(graph)
    graph.lint()
    (output,) = graph.find_nodes(op="output")
    assert output.args[0][-1].target is operator.floordiv
    assert [n.args[0].op for n in graph.find_nodes(op="call_function", target=SIZE)] == ["placeholder"]


def test_a_size_that_no_input_tells_stays() -> None:
    graph, size = asked_inside()
    size.meta["val"] = ShapeEnv().create_unbacked_symint()
    before = str(graph)
    with guarded(graph):
        sizes_from_inputs(graph)
    assert str(graph) == before
