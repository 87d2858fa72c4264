"""What the finder sees in one node, on graphs traced from one op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graphs
import pytest
import sympy
import torch
from graphs import f32
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mixorder.ir.reductions import AMAX, AMIN, SUM, XOR
from mixorder.region import nodes

aten = torch.ops.aten
prims = torch.ops.prims


def one(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = f32) -> Node:
    """The last computed node of a function's graph, as it is traced."""
    graph = graphs.traced(function, *((shape, dtype) for shape in shapes), in_place=True)
    return [n for n in graph.nodes if n.op == "call_function"][-1]


def test_a_symbolic_size_is_an_expression() -> None:
    graph = graphs.traced_symbolic(lambda x: x.sum(1), ((6, 4), f32))
    (node,) = (n for n in graph.nodes if n.target is aten.sum.dim_IntList)
    what = nodes.reduced(node)
    assert what is not None and what.dims == (1,)
    assert all(isinstance(n, sympy.Symbol) for n in what.shape)


def test_a_size_that_depends_on_data_is_unknown() -> None:
    with FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True)) as mode:
        rows = mode.shape_env.create_unbacked_symint()
        val = torch.empty(6, 4).new_empty((rows, 4))
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    total = graph.call_function(aten.sum.dim_IntList, (x, [1]))
    x.meta["val"] = val
    assert nodes.shape_of(x) is None and nodes.reduced(total) is None


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x.sum(1), SUM),
        (lambda x: x.mean(1), SUM),
        (lambda x: x.amax(1), AMAX),
        (lambda x: x.amin([0]), AMIN),
        (lambda x: prims.xor_sum(x.to(torch.int32), [1]), XOR),
        (lambda x: x.max(1).values, AMAX),
        (lambda x: x.min(0, keepdim=True).values, AMIN),
        (lambda x: x.max(1).indices, None),
    ],
)
def test_reduction_kind(function: Any, kind: Any) -> None:
    assert nodes.reduction_kind(one(function, (6, 4))) is kind


NOT_POINTWISE = [
    lambda x: x @ x.t(),
    lambda x: x.add_(1),
    lambda x: x.copy_(x + 1),
    lambda x: aten.bernoulli.p(x, 0.5),
    lambda x: x.cumsum(1),
    lambda x: x.sum(1),
    lambda x: torch.gather(x, 1, x.to(torch.int64)),
]


@pytest.mark.parametrize("function", NOT_POINTWISE)
def test_not_pointwise(function: Any) -> None:
    assert not nodes.is_pointwise(one(function, (6, 4)))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: aten.index_put(x, [x > 0], x.new_zeros(())), True),
        (lambda x: aten.index_put(x, [x > 0], x.new_zeros((24,))), False),
        (lambda x: aten.index_put(x, [x[:, 0] > 0], x.new_zeros(())), False),
        (lambda x: aten.index_put(x, [x.long()], x.new_zeros(())), False),
        (lambda x: aten.index_put(x, [x > 0], x.new_zeros(()), True), False),
    ],
    ids=["one value", "many values", "rows", "indices", "a sum"],
)
def test_a_value_written_under_a_mask(function: Any, expected: bool) -> None:
    graph = graphs.traced(function, ((6, 4), f32))
    (node,) = (n for n in graph.nodes if n.target is aten.index_put.default)
    assert nodes.is_pointwise(node) == expected


def test_a_node_with_two_results_has_no_fake() -> None:
    graph = graphs.traced(lambda x: tuple(torch.max(x, 1)), ((6, 4), f32), in_place=True)
    (node,) = (n for n in graph.nodes if n.target is aten.max.dim)
    assert nodes.fake(node) is None
    assert all(nodes.reduction_kind(user) is None for user in node.users)


def test_sums_of_integers_and_truth_values_are_left_to_inductor() -> None:
    for function in (lambda x: x.to(torch.int32).sum(1), lambda x: (x > 0).sum(0), lambda x: (x > 0).amax(0)):
        assert nodes.reduced(one(function, (6, 4))) is None
