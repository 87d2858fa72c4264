"""Maxima and minima written as `max(dim).values`, whose indices nothing uses."""

from __future__ import annotations

from typing import Any

import torch
from graphs import bf16
from running import run_fused

from mixorder.report import RegionRecord, collect


def both_ways(x: Any, dy: Any) -> Any:
    product = x.float() * dy
    largest = product.abs().max(1, keepdim=True).values
    return (product / largest).to(bf16), product.min(0).values, product.abs().max(0).values


def test_values_of_a_maximum_and_a_minimum() -> None:
    x, dy = torch.randn(200, 384).to(bf16), torch.randn(200, 384)
    with collect() as records:
        ours = run_fused(both_ways, (x, dy))
    (record,) = records
    assert isinstance(record, RegionRecord)
    assert (record.inner_ops, record.outer_ops) == (("max",), ("min", "max"))
    for mine, theirs in zip(ours, both_ways(x, dy), strict=True):
        assert torch.equal(mine, theirs)


def test_nan_reaches_the_row_and_the_column_that_have_it() -> None:
    x, dy = torch.randn(200, 384).to(bf16), torch.randn(200, 384)
    dy[17, 3] = float("nan")
    ours, theirs = run_fused(both_ways, (x, dy)), both_ways(x, dy)
    for mine, eager in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, eager, rtol=0, atol=0, equal_nan=True)
    assert ours[1].isnan().sum() == ours[2].isnan().sum() == 1


def test_the_largest_element_of_a_gradient_beside_its_norm() -> None:
    """The scale of a tensor that is cast to a byte as a whole."""

    def backward(x: Any, dy: Any, w: Any) -> Any:
        scaled = dy.float() * w
        dx = (scaled - x.float() * (scaled * x.float()).mean(-1, keepdim=True)).to(bf16)
        return dx, (dy.float() * x.float()).sum(0), dx.abs().max(), dx.amin()

    args = torch.randn(200, 384).to(bf16), torch.randn(200, 384).to(bf16), torch.randn(384)
    with collect() as records:
        dx, _, largest, least = run_fused(backward, args)
    (record,) = records
    assert isinstance(record, RegionRecord) and record.outer_ops == ("sum", "amax", "amin")
    assert largest == dx.abs().max() and least == dx.min()


def test_the_largest_element_of_a_sum_of_rows() -> None:
    """The maximum is of what the region wrote, which has rows and columns of its own."""

    def function(x: Any, dy: Any) -> Any:
        product = x * dy
        total = product.sum(0)
        return dy - x * product.sum((1, 2), keepdim=True), total, total.amax()

    _, total, largest = run_fused(function, (torch.randn(64, 8, 32), torch.randn(64, 8, 32)))
    assert largest == total.amax()
