"""Sums of rows in which one column differs: which ones need no loop, and which do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import Spec, f32, i64, only, traced

from mixorder.ir.program import LoopProgram, Reduce
from mixorder.lowering.lower import lower
from mixorder.transform.one_hot import sum_one_hot

ROWS, COLS = 512, 300
SPECS: tuple[Spec, ...] = (((ROWS, COLS), f32), ((ROWS, 1), i64), ((ROWS, 1), f32))


def region_with(row: Callable[[Any, Any, Any], Any]) -> LoopProgram:
    """A gradient from the sums of `row(column, label, scale)` along the rows, and its sums over the rows."""

    def function(x: Any, label: Any, scale: Any) -> Any:
        one = row(torch.arange(COLS), label, scale)
        dx = one - x.exp() * one.sum(1, keepdim=True)
        return dx, dx.sum(0)

    return lower(only(traced(function, *SPECS)))


def left(program: LoopProgram) -> int:
    """Sums along the rows, in the nest that has the gradient."""
    (_, last), nest = program.tile_axes, program.nests[0]
    return sum(isinstance(s, Reduce) and last.symbol in s.axes for s in nest.body)


OTHERS = [
    lambda column, label, scale: torch.where(column <= label, scale, 0.0),
    lambda column, label, scale: torch.where(column == label, scale, 0.0) * column,
    lambda column, label, scale: torch.where((column == label) | (column == label + 1), scale, 0.0),
    lambda column, label, scale: torch.where(column == label + column, scale, 0.0),
    lambda column, label, scale: torch.where(2 * column == label, scale, 0.0),
]


@pytest.mark.parametrize("row", OTHERS)
def test_columns_differ_in_another_way(row: Callable[[Any, Any, Any], Any]) -> None:
    program = region_with(row)
    assert left(program) == left(sum_one_hot(program)) == 1


def test_what_is_read_for_each_column() -> None:
    def function(x: Any, label: Any, scale: Any) -> Any:
        one = torch.where(torch.arange(COLS) == label, x, 0.0)
        dx = one - x.exp() * one.sum(1, keepdim=True) * scale
        return dx, dx.sum(0)

    program = lower(only(traced(function, *SPECS)))
    assert left(program) == left(sum_one_hot(program)) == 1


def test_other_reductions_stay() -> None:
    def function(x: Any, label: Any, scale: Any) -> Any:
        one = torch.where(torch.arange(COLS) == label, scale, 0.0)
        dx = one - x.exp() * one.amax(1, keepdim=True)
        return dx, dx.sum(0)

    program = lower(only(traced(function, *SPECS)))
    assert left(program) == left(sum_one_hot(program)) == 1
