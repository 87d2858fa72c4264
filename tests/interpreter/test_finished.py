"""Sums over rows that the main kernel finishes: one launch, and results as exact as Inductor's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f16, f32
from running import check, run_fused, with_options

from mixorder.report import collect

Function = Callable[..., Any]


def groups(x: Any, dy: Any, w: Any) -> Any:
    """At each index of a batch, a pair; what follows the sums reads another tensor."""
    scaled = x * dy
    return dy - scaled.sum(2, keepdim=True), scaled.sum(0) * w + 1, dy.amax(0)


def common(x: Any, dy: Any, w: Any) -> Any:
    """A sum over rows and columns, of which one number is left at each index."""
    return dy - (x * dy).sum(2, keepdim=True), (x * dy).sum((0, 2)), dy.sum((0, 2)) * 2


def same_names(x: Any, dy: Any, w: Any) -> Any:
    """What is computed of columns is used in the loop and after it."""
    scale = torch.exp(w)
    scaled = x * (dy * scale)
    return dy - scaled.sum(2, keepdim=True), scaled.sum(0) * scale


def plain(x: Any, dy: Any, w: Any) -> Any:
    product = torch.tanh(x) * dy
    return product, product.sum(0)


def run(function: Function, args: tuple[Any, ...], rows: int, **options: Any) -> Any:
    with collect() as records:
        ours = run_fused(function, args, with_options(**options))
    (record,) = records
    check(ours, function(*args), function(*(a.double() for a in args)), rows)
    return record


@pytest.mark.parametrize("function", [groups, common, same_names])
@pytest.mark.parametrize(("rows", "batch", "cols"), [(32, 8, 10), (37, 9, 16), (50, 3, 20)])
@pytest.mark.parametrize("dtype", [bf16, f32])
def test_one_or_two_tiles_of_all_rows(
    function: Function, rows: int, batch: int, cols: int, dtype: Any
) -> None:
    args = (*(torch.randn(rows, batch, cols).to(dtype) for _ in range(2)), torch.randn(batch, cols).to(dtype))
    record = run(function, args, rows, min_numel=0)
    assert record.schedule.finishes and 2 * record.schedule.tile_rows >= rows and len(record.kernels) == 1


@pytest.mark.parametrize("function", [groups, common, same_names])
@pytest.mark.parametrize("cols", [96, 196, 320])
@pytest.mark.parametrize("dtype", [f16, f32])
def test_several_tiles_and_chunks(function: Function, cols: int, dtype: Any) -> None:
    """Of rows that no one tile has, as a user may ask for."""
    args = (*(torch.randn(75, 4, cols).to(dtype) for _ in range(2)), torch.randn(4, cols).to(dtype))
    record = run(function, args, 75, min_numel=0, split_size=75)
    assert record.schedule.finishes and len(record.kernels) == 1


@pytest.mark.parametrize("cols", [384, 1000])
def test_blocks_of_columns(cols: int) -> None:
    args = (torch.randn(200, cols), torch.randn(200, cols), torch.randn(cols))
    record = run(plain, args, 200, min_numel=0, split_size=200)
    assert record.schedule.finishes and len(record.kernels) == 1


def test_infinities_and_nan_as_in_eager() -> None:
    x, dy = torch.randn(32, 8, 10), torch.randn(32, 8, 10)
    x[3, 2, 1], dy[4, 5, 6], dy[7, 0, 0] = float("inf"), float("nan"), float("-inf")
    args = (x, dy, torch.randn(8, 10))
    ours = run_fused(groups, args, with_options(min_numel=0))
    for mine, eager in zip(ours, groups(*args), strict=True):
        assert torch.equal(mine.isnan(), eager.isnan()) and torch.equal(mine.isinf(), eager.isinf())
