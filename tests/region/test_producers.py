"""Tiles with the values of whole rows that they need: which nodes join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f32, traced, within_tile
from support.quantised import mx_both

from mixorder.region.producers import with_row_values
from mixorder.region.region import Region

ROWS, COLS = 512, 1024
SPECS = [((ROWS, COLS), bf16), ((ROWS, COLS), bf16), ((COLS,), bf16), ((ROWS, 1), f32)]


def kept_by_the_caller(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    total = (x.float() * dy.float()).sum(-1, keepdim=True)
    return *mx_both((x * total).to(bf16)), total


def of_another_tensor(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    return mx_both((x * dy.float().sum(-1, keepdim=True)).to(bf16))


def of_vectors(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    return mx_both((x * (rstd * 2)).to(bf16))


def region_of(function: Callable[..., Any]) -> Region:
    return within_tile(traced(function, *SPECS))


@pytest.mark.parametrize("function", [kept_by_the_caller, of_another_tensor, of_vectors])
def test_others_do_not(function: Callable[..., Any]) -> None:
    """The caller needs the value; it takes another full tensor; no reduction gives it."""
    assert with_row_values(region_of(function)) is None


def test_a_region_without_reductions_has_none() -> None:
    def transposed(x: Any, scales: Any) -> Any:
        return (x.float() * scales).to(torch.float8_e4m3fn).t().contiguous()

    region = within_tile(traced(transposed, ((4096, 4096), bf16), ((1, 4096), f32)))
    assert with_row_values(region) is None
