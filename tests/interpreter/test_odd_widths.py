"""Rows that start off a boundary of wide accesses: a program reads past their ends, and must not mind. It
does not read past the tensor's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from graphs import bf16, f16, f32
from grids import crossed
from running import ON, check_gradients, gradients
from torch import nn

from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import H200

NORMS = {"layer": nn.LayerNorm, "rms": lambda n: nn.RMSNorm(n, eps=1e-6)}
PERIODS = {(33, bf16): 8, (33, f32): 4, (1001, bf16): 8, (242, f16): 4, (1030, f32): 2, (4101, bf16): 8}


@pytest.fixture(autouse=True)
def as_many_programs_as_rows_that_differ(plan_with: Callable[..., None]) -> None:
    plan_with(device=dataclasses.replace(H200, num_sm=16))


@pytest.mark.parametrize(
    ("norm", "shape"),
    crossed(NORMS, [(3, *k) for k in PERIODS] + [(40, *k) for k in [*PERIODS][::-1]])
    + [("layer", (304, 33, bf16)), ("rms", (304, 1030, f32))],
)
def test_every_row_and_column_once(norm: str, shape: tuple[int, int, torch.dtype]) -> None:
    rows, cols, dtype = shape
    module, x = NORMS[norm](cols).to(dtype), torch.randn(rows, cols, dtype=dtype)
    dy = torch.randn_like(x)
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    (record,) = records
    whole = rows * cols * dtype.itemsize % 16 == 0  # rows of 40 and 304 end at a boundary
    assert whole or rows == 3
    period = PERIODS[cols, dtype] if whole else 1
    assert isinstance(record, RegionRecord) and record.schedule.period == period
    check_gradients(ours, module, x, dy, cols)


@pytest.mark.parametrize(("norm", "bad"), [("layer", float("nan")), ("rms", float("inf"))])
def test_what_is_read_of_the_neighbours_leaves_no_trace(norm: str, bad: float) -> None:
    """Rows 1 and 3 of dy are not finite: dx of the others is, and as it is without."""
    module, x = NORMS[norm](1001).to(bf16), torch.randn(8, 1001, dtype=bf16)
    dy = torch.randn_like(x)
    clean, _, *_ = gradients(module, x, dy, ON)
    dy[1], dy[3] = bad, bad
    dirty, dw, *_ = gradients(module, x, dy, ON)
    kept = [0, 2, 4, 5, 6, 7]
    assert torch.equal(clean[kept], dirty[kept]) and clean.isfinite().all()
    assert not dirty[[1, 3]].isfinite().any() and not dw.isfinite().any()
