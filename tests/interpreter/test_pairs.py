"""Pairs nobody has named: every two kinds of reduction over one tensor, with lanes beyond every edge.

Tiles are partial in both directions: a masked lane that held anything but the reduction's identity would
show, since the values are chosen so that a zero fill, or what the prologue makes of one, is an extreme.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import f32, snapshot, traced
from grids import crossed
from reduced_dtypes import xor
from running import ON, Tensors, run_fused, with_options
from torch._dynamo.utils import counters

from mixorder import pipeline, report
from mixorder.schedule.device import H200

KINDS = ("sum", "mean", "amax", "amin", "prod", "any", "xor")
PROLOGUES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "plain": lambda x, b: x,
    "exp": lambda x, b: torch.exp(x),
    "plus": lambda x, b: x + b,
    "cos": lambda x, b: torch.cos(x) - 1.5,
}


@pytest.fixture(autouse=True)
def few_programs(plan_with: Callable[..., None]) -> None:
    """With a GPU's number of programs a small tensor would get tiles of one row, and none of them partial."""
    device = dataclasses.replace(H200, num_sm=2)
    plan_with(device=device)


def reduce(kind: str, value: torch.Tensor, dim: Any) -> torch.Tensor:
    if kind == "xor":
        return xor((value * 64).to(torch.int32), dim)
    return (value > 0).any(dim) if kind == "any" else getattr(value, kind)(dim)


def check(
    function: Callable[..., Any], args: Tensors, space: str, tile_rows: int, split_size: int = 0
) -> None:
    """`split_size`: rows of a program, of which one would have all otherwise (`test_finished.py`)."""
    with report.collect() as records:
        ours = run_fused(function, args, with_options(split_size=split_size) if split_size else ON)
    (record,) = records
    assert not split_size or record.schedule.splits > 1
    assert isinstance(record, report.RegionRecord) and record.space == space
    assert record.schedule.tile_rows == tile_rows and record.rows % tile_rows
    theirs, exact = function(*args), function(*(a.double() for a in args))
    for mine, other, truth in zip(ours, theirs, exact, strict=True):
        assert mine.dtype == other.dtype and mine.shape == other.shape
        if not mine.is_floating_point():
            assert torch.equal(mine, other)
            continue
        error, reference = (float((t.double() - truth).norm()) for t in (mine, other))
        terms = args[0].numel() / max(1, mine.numel())
        assert error <= 1.1 * reference + 2 * torch.finfo(f32).eps * terms**0.5 * float(truth.norm())


def values(*shape: int) -> Tensors:
    """Negative numbers of around -1, and positive ones for the last dim."""
    return torch.randn(shape) / 8 - 1, torch.rand(shape[-1]) / 2 + 0.25


# Each pair with half of the prologues, in one order or the other.
@pytest.mark.parametrize(
    ("row", "column", "prologue", "columns_first"),
    [
        (*kinds, prologue, (i + j // 2) % 2 == 1)
        for i, kinds in enumerate(itertools.product(KINDS, KINDS))
        for j, prologue in enumerate(PROLOGUES)
        if (i + i // len(KINDS) + j) % 2 == 0
    ],
)
def test_kinds(row: str, column: str, prologue: str, columns_first: bool) -> None:
    def function(x: torch.Tensor, b: torch.Tensor) -> Any:
        value = PROLOGUES[prologue](x, b)
        steps = [(row, 1), (column, 0)]
        return [reduce(kind, value, dim) for kind, dim in (steps[::-1] if columns_first else steps)]

    check(function, values(5, 11), "5x11", 4)


@pytest.mark.parametrize(("prologue", "correction"), crossed(PROLOGUES, [0, 1, 11]))
def test_moments_of_rows(prologue: str, correction: int) -> None:
    """Two stages of one node: the mean of a row, then the squares about it."""

    def function(x: torch.Tensor, b: torch.Tensor) -> Any:
        value = PROLOGUES[prologue](x, b)
        var, mean = torch.var_mean(value, 1, correction=correction, keepdim=True)
        return mean, (value * mean) * torch.rsqrt(var + 1), value.var(1), value.sum(0)

    check(function, values(5, 11), "5x11", 4)


def test_the_variance_of_columns_is_left_alone() -> None:
    graph = traced(lambda x: (x.sum(1), x.var(0)), ((50, 40), f32))
    before = snapshot(graph)
    pipeline.run(graph, ON)
    assert snapshot(graph) == before and not counters["mixorder"]


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_two_prologues(kind: str) -> None:
    """Each side reduces its own function of the tensor, and the row's result goes back over the row."""

    def function(x: torch.Tensor, b: torch.Tensor) -> Any:
        row = reduce(kind, torch.exp(x) - 2, 1).reshape(5, 1)
        return x * row, reduce(kind, x + b, 0)

    check(function, values(5, 11), "5x11", 4)


@pytest.mark.parametrize(("kind", "prologue"), crossed(KINDS, PROLOGUES))
def test_batch_axis_inside_the_rows(kind: str, prologue: str) -> None:
    def function(x: torch.Tensor, b: torch.Tensor) -> Any:
        value = PROLOGUES[prologue](x, b)
        return reduce(kind, value, 2), reduce(kind, value, 0)

    check(function, values(5, 3, 11), "row 5 x batch 3 x column 11", 4, split_size=4)


@pytest.mark.parametrize(("kind", "prologue"), crossed(KINDS, PROLOGUES))
def test_batch_axis_outside_the_rows(kind: str, prologue: str) -> None:
    def function(x: torch.Tensor, b: torch.Tensor) -> Any:
        value = PROLOGUES[prologue](x, b)
        return reduce(kind, value, 2), reduce(kind, value, 1)

    check(function, values(3, 5, 11), "batch 3 x row 5 x column 11", 4, split_size=4)


@pytest.mark.parametrize(("kind", "prologue"), crossed(["sum", "mean", "amax", "amin", "any"], PROLOGUES))
def test_batch_axis_between_two_axes_of_rows(kind: str, prologue: str) -> None:
    def function(x: torch.Tensor, b: torch.Tensor) -> Any:
        value = PROLOGUES[prologue](x, b)
        row = reduce(kind, value, 3)
        return row, reduce(kind, value, (0, 2)), x * row.reshape(5, 2, 3, 1)

    check(function, values(5, 2, 3, 11), "row 5 x batch 2 x row 3 x column 11", 8, split_size=8)


@pytest.mark.parametrize(("kind", "prologue"), crossed(["sum", "mean", "amax", "amin", "any"], PROLOGUES))
def test_common_axis(kind: str, prologue: str) -> None:
    def function(x: torch.Tensor, b: torch.Tensor) -> Any:
        value = PROLOGUES[prologue](x, b)
        return reduce(kind, value, 2), reduce(kind, value, (0, 2))

    check(function, values(5, 3, 11), "row 5 x batch 3 x common 11", 4, split_size=4)


@pytest.mark.parametrize("kind", ["sum", "amax", "any"])
def test_common_axes_of_an_image(kind: str) -> None:
    def function(x: torch.Tensor, b: torch.Tensor) -> Any:
        value = torch.cos(x + b) - 1.5
        inner = reduce(kind, value, (2, 3))
        return inner, reduce(kind, value, (0, 2, 3)), x * inner.reshape(5, 3, 1, 1)

    check(function, values(5, 3, 4, 5), "row 5 x batch 3 x common 20", 4)


@pytest.mark.parametrize("order", [((0, 1), (1, 2)), ((0, 2), (1, 2))])
def test_what_is_not_fused_is_as_it_was(order: Any) -> None:
    """A column axis beside a common one, and rows innermost: Inductor's, with a reason or without."""
    outer, inner = order
    graph = traced(lambda x: (x.sum(inner), x.sum(outer)), ((5, 3, 11), f32))
    before = snapshot(graph)
    pipeline.run(graph, ON)
    assert snapshot(graph) == before
    assert counters["mixorder"] == {"declined:axis-class": 1}
