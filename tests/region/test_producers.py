"""Tiles with the values of whole rows that they need: which nodes join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f32, traced, within_tile
from support.quantised import mx_both

from mixorder.region.nodes import reduction_kind
from mixorder.region.producers import with_row_values
from mixorder.region.region import Region

ROWS, COLS = 512, 1024
SPECS = [((ROWS, COLS), bf16), ((ROWS, COLS), bf16), ((COLS,), bf16), ((ROWS, 1), f32)]


def rms(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    normed, scaled = x.float() * rstd, dy.float() * w.float()
    return mx_both((rstd * (scaled - normed * (normed * scaled).mean(-1, keepdim=True))).to(bf16))


def layer(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    """Two sums of a row."""
    normed, scaled = x.float() * rstd, dy.float() * w.float()
    sums = scaled.sum(-1, keepdim=True), (normed * scaled).sum(-1, keepdim=True)
    return mx_both((rstd * (scaled - (sums[0] + normed * sums[1]) / COLS)).to(bf16))


def kept_by_the_caller(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    total = (x.float() * dy.float()).sum(-1, keepdim=True)
    return *mx_both((x * total).to(bf16)), total


def of_another_tensor(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    return mx_both((x * dy.float().sum(-1, keepdim=True)).to(bf16))


def of_two_in_a_row(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    first = x.float() * (x.float() * dy.float()).sum(-1, keepdim=True)
    return mx_both((first * first.sum(-1, keepdim=True) + dy.float()).to(bf16))


def of_vectors(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    return mx_both((x * (rstd * 2)).to(bf16))


def region_of(function: Callable[..., Any]) -> Region:
    return within_tile(traced(function, *SPECS))


@pytest.mark.parametrize(("function", "count"), [(rms, 1), (layer, 2), (of_two_in_a_row, 2)])
def test_reductions_of_rows_join(function: Callable[..., Any], count: int) -> None:
    region = region_of(function)
    larger = with_row_values(region)
    assert larger is not None and set(larger.nodes) > set(region.nodes)
    assert larger.outputs == region.outputs and larger.outer == region.outer
    more = [n for n in larger.inner if n not in region.inner]
    assert len(more) == count and all(reduction_kind(n) is not None for n in more)
    full = {n for n in region.inputs if region.seed.analysis.is_full(n)}
    assert {n for n in larger.inputs if region.seed.analysis.is_full(n)} == full
    assert list(larger.nodes) == [n for n in region.nodes[0].graph.nodes if n in set(larger.nodes)]


@pytest.mark.parametrize("function", [kept_by_the_caller, of_another_tensor, of_vectors])
def test_others_do_not(function: Callable[..., Any]) -> None:
    """The caller needs the value; it takes another full tensor; no reduction gives it."""
    assert with_row_values(region_of(function)) is None


def test_a_region_without_reductions_has_none() -> None:
    def transposed(x: Any, scales: Any) -> Any:
        return (x.float() * scales).to(torch.float8_e4m3fn).t().contiguous()

    region = within_tile(traced(transposed, ((4096, 4096), bf16), ((1, 4096), f32)))
    assert with_row_values(region) is None
