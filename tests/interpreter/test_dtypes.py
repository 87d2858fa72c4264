"""Reductions of every dtype into every dtype, on both sides of a pair, as eager has them; of all elements."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16
from grids import crossed
from reduced_dtypes import CASES, Reduction, case_name, f32, program
from running import ON, compiled, run_fused

from mixorder.report import RegionRecord, collect

ROWS, COLS = 300, 24


@pytest.mark.parametrize(("chosen", "inside"), crossed(CASES, [False, True]), ids=case_name)
def test_a_reduction_is_computed_in_its_own_dtype(chosen: list[Reduction], inside: bool) -> None:
    generator = torch.Generator().manual_seed(7)
    # Half integers: whatever the row's scale does to them, dividing by it gives them back.
    x, y = ((torch.randint(1, 5, (ROWS, COLS), generator=generator) / 2).to(f32) for _ in range(2))
    y = y * torch.where(torch.rand(ROWS, COLS, generator=generator) < 0.4, -1.0, 1.0)
    x[:, 0] += 100 * COLS  # no scale is zero
    function = program(chosen, inside)
    with collect() as records:
        ours = compiled(ON)(function)(x, y)
    assert any(isinstance(r, RegionRecord) for r in records)
    names = ["z", "dw", *(f"{r} over {dim}" for dim in (0, 1) for r in chosen)]
    for name, mine, truth in zip(names, ours, function(x, y), strict=True):
        assert (mine.dtype, mine.shape) == (truth.dtype, truth.shape), name
        if truth.is_floating_point():
            places = 8 * torch.finfo(truth.dtype).eps
            torch.testing.assert_close(mine, truth, rtol=places, atol=places, equal_nan=True, msg=name)
        else:
            assert same_bytes(mine, truth), f"{name}: {int((mine != truth).sum())} of {mine.numel()} differ"


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of bools, too, whose bytes a comparison does not see."""
    return torch.equal(*(t.contiguous().view(torch.uint8) for t in (one, other)))


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
    assert isinstance(record, RegionRecord) and [one.op for one in record.outer] == ["sum", "amax", "amin"]
    assert largest == dx.abs().max() and least == dx.min()


def test_the_largest_element_of_a_sum_of_rows() -> None:
    """The maximum is of what the region wrote, which has rows and columns of its own."""

    def function(x: Any, dy: Any) -> Any:
        product = x * dy
        total = product.sum(0)
        return dy - x * product.sum((1, 2), keepdim=True), total, total.amax()

    _, total, largest = run_fused(function, (torch.randn(64, 8, 32), torch.randn(64, 8, 32)))
    assert largest == total.amax()


def test_a_dtype_that_triton_has_not() -> None:
    """Of eight bits: the cast stays outside of the region."""

    def function(x: Any, y: Any) -> Any:
        z = x * (x * y).sum(-1, keepdim=True)
        return z.abs().to(torch.float8_e8m0fnu), z, (z * y).sum(0)

    with collect() as records:
        data, z, _ = compiled(ON)(function)(torch.randn(60, 24), torch.randn(60, 24))
    fused = [r for r in records if isinstance(r, RegionRecord)]
    assert fused and not any("e8m0" in t.dtype for r in fused for t in r.outputs)
    assert torch.equal(data.view(torch.uint8), z.abs().to(torch.float8_e8m0fnu).view(torch.uint8))
