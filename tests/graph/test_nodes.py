"""What the finder sees in one node, on graphs traced from one op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graphs
import pytest
import torch
from graphs import f32
from torch.fx import Node

from mixorder.graph import nodes
from mixorder.graph.nodes import Space
from mixorder.loops.ir import AMAX, AMIN, SUM

aten = torch.ops.aten


def one(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = f32) -> Node:
    """The last computed node of a function's graph, as it is traced."""
    graph = graphs.traced(function, *((shape, dtype) for shape in shapes), in_place=True)
    return [n for n in graph.nodes if n.op == "call_function"][-1]


INNER = [
    ((6, 4), [1], Space(6, 4)),
    ((6, 4), [-1], Space(6, 4)),
    ((2, 3, 4), [2], Space(6, 4)),
    ((2, 3, 4), [1, 2], Space(2, 12)),
    ((2, 3, 4), [2, 1], Space(2, 12)),
    ((6, 1, 4), [1, 2], Space(6, 4)),
    ((6, 4), None, Space(1, 24)),
    ((6, 1), [1], Space(6, 1)),
    ((1, 4), [1], Space(1, 4)),
]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "dims", "space"), INNER)
def test_inner_space(shape: Any, dims: Any, space: Space, keepdim: bool) -> None:
    node = one(lambda x: aten.sum.dim_IntList(x, dims, keepdim), shape)
    assert nodes.inner_space(node) == space
    assert nodes.keeps_dims(node) == keepdim


OUTER = [
    ((6, 4), [0], Space(6, 4)),
    ((6, 4), [-2], Space(6, 4)),
    ((2, 3, 4), [0, 1], Space(6, 4)),
    ((2, 3, 4), [0], Space(2, 12)),
    ((2, 1, 4), [0], Space(2, 4)),
    ((1, 4), [0], Space(1, 4)),
]


@pytest.mark.parametrize(("shape", "dims", "space"), OUTER)
def test_outer_space(shape: Any, dims: Any, space: Space) -> None:
    assert nodes.outer_space(one(lambda x: aten.sum.dim_IntList(x, dims), shape)) == space


@pytest.mark.parametrize(("shape", "dims"), [((2, 3, 4), [1]), ((2, 3, 4, 5), [0, 2])])
def test_a_dim_reduced_in_the_middle_is_on_no_side(shape: Any, dims: Any) -> None:
    node = one(lambda x: aten.sum.dim_IntList(x, dims), shape)
    assert nodes.inner_space(node) is None and nodes.outer_space(node) is None


@pytest.mark.parametrize(
    "function",
    [lambda x: x.prod(1), lambda x: x.cumsum(1), lambda x: x.relu(), lambda x: x.argmax(1)],
)
def test_what_is_no_reduction_of_ours_has_no_space(function: Any) -> None:
    node = one(function, (6, 4))
    assert nodes.reduction_kind(node) is None
    assert nodes.inner_space(node) is None and nodes.outer_space(node) is None


def test_an_empty_tensor_has_no_space() -> None:
    assert nodes.inner_space(one(lambda x: x.sum(1), (0, 4))) is None
    assert nodes.outer_space(one(lambda x: x.sum(0), (0, 4))) in (None, Space(0, 4))


def test_a_symbolic_size_has_no_space() -> None:
    graph = graphs.traced_symbolic(lambda x: x.sum(1), ((6, 4), f32))
    (node,) = (n for n in graph.nodes if n.target is aten.sum.dim_IntList)
    assert not nodes.is_static(node) and nodes.inner_space(node) is None


@pytest.mark.parametrize(
    ("function", "kind"),
    [(lambda x: x.sum(1), SUM), (lambda x: x.amax(1), AMAX), (lambda x: x.amin([0]), AMIN)],
)
def test_reduction_kind(function: Any, kind: Any) -> None:
    assert nodes.reduction_kind(one(function, (6, 4))) is kind


POINTWISE = [
    lambda x: x + x,
    lambda x: x * 2,
    lambda x: torch.rsqrt(x),
    lambda x: torch.where(x > 0, x, 0),
    lambda x: x.to(torch.float16),
]


@pytest.mark.parametrize("function", POINTWISE)
def test_pointwise(function: Any) -> None:
    node = one(function, (6, 4))
    assert nodes.is_pointwise(node) or nodes.is_view(node)


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
    ("function", "view"),
    [
        (lambda x: x.view(24), True),
        (lambda x: x.unsqueeze(0), True),
        (lambda x: x.view(6, 4, 1).squeeze(2), True),
        (lambda x: x.view(6, 1, 4).expand(6, 5, 4), True),
        (lambda x: x.t(), False),
        (lambda x: x[1:], False),
        (lambda x: x.clone(), False),
    ],
)
def test_view(function: Any, view: bool) -> None:
    assert nodes.is_view(one(function, (6, 4))) == view


@pytest.mark.parametrize(
    ("shape", "at"),
    [((6, 4), 1), ((2, 3, 4), 2), ((6, 2, 2), 1), ((6, 1, 4), 1), ((1, 6, 4), 2), ((24,), None)],
)
def test_split_point(shape: Any, at: int | None) -> None:
    assert nodes.split_point(shape, Space(6, 4)) == at


@pytest.mark.parametrize("shape", [(4, 6), (12, 2), (6,), (6, 8), (3, 8)])
def test_other_shapes_are_not_of_the_space(shape: Any) -> None:
    assert nodes.split_point(shape, Space(6, 4)) is None


def test_split_point_with_one_row_or_column() -> None:
    assert nodes.split_point((1, 4), Space(1, 4)) == 0
    assert nodes.split_point((6, 1), Space(6, 1)) == 1
    assert nodes.split_point((1, 1), Space(1, 1)) == 0


@pytest.mark.parametrize(
    ("shape", "full", "small"),
    [
        ((6, 4), True, False),
        ((2, 3, 4), True, False),
        ((6, 1), False, True),
        ((4,), False, True),
        ((1,), False, True),
        ((5, 4), False, False),
    ],
)
def test_full_and_small(shape: Any, full: bool, small: bool) -> None:
    node = one(lambda x: x.relu(), shape)
    space = Space(6, 4)
    assert (nodes.is_full(node, space), nodes.is_small(node, space)) == (full, small)


def test_a_node_with_two_results_has_no_fake() -> None:
    graph = graphs.traced(lambda x: torch.max(x, 1)[0], ((6, 4), f32), in_place=True)
    (node,) = (n for n in graph.nodes if n.target is aten.max.dim)
    assert nodes.fake(node) is None
