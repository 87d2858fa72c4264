"""Reductions of every dtype into every dtype, on both sides of a pair, as eager has them."""

from __future__ import annotations

import pytest
import torch
from grids import crossed
from reduced_dtypes import CASES, Reduction, case_name, f32, program
from running import ON

from mixorder.plugin import compile_for_interpreter
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
    torch._dynamo.reset()
    with collect() as records:
        ours = torch.compile(function, backend=compile_for_interpreter(ON), dynamic=False)(x, y)
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
