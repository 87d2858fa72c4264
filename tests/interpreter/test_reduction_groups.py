"""Sums over reduction groups: exact bytes, and what is none. `tables/reduction_groups.py` has the norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from running import ON, gradients, run_fused
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mixorder.ir.program import BufferRole, Load
from mixorder.report import RegionRecord, collect
from mixorder.strategies import STRATEGIES
from mixorder.strategies.reduction_groups import TWO_PASS


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_stored_and_reread(dtype: torch.dtype, plan_with: Callable[..., None]) -> None:
    """A tile of the third kernel has elements beyond the last one."""
    others = tuple(s for s in STRATEGIES if not s.over_reduction_groups)
    plan_with(strategies=(*others, TWO_PASS))

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        stored = (x + y).to(dtype)
        z = stored.float()
        factor = torch.rsqrt(z.square().mean((0, 2, 3), keepdim=True) + 1e-5)
        return stored.view(torch.uint8), (z - z.mean((0, 2, 3), keepdim=True)) * factor

    args = torch.randn(4, 16, 20, 21), torch.randn(4, 16, 20, 21)
    with collect() as records:
        (bytes_, ours), (same, eager) = run_fused(function, args), function(*args)
    assert torch.equal(bytes_, same) and torch.allclose(ours, eager, 1e-5, 1e-5)
    (record,) = (r for r in records if isinstance(r, RegionRecord))
    stored = {b.name for b in record.loops.role(BufferRole.OUTPUT) if b.dtype == dtype}
    assert stored & {s.buffer for s in record.loops.nests[2].body if isinstance(s, Load)}


@pytest.mark.parametrize(("make", "rows"), [(nn.RMSNorm, 2), (nn.LayerNorm, 300)])
def test_a_statistic_of_a_row_is_no_reduction_group(make: Callable[[int], nn.Module], rows: int) -> None:
    """Whatever the row's length. The strategies for rows have the backward of such a norm."""
    module = make(131072)
    with collect() as records, FakeTensorMode(allow_non_fake_inputs=True):
        x, dy = torch.randn(2, rows, 131072).unbind()
        gradients(module, x, dy, ON)
    found = [r.strategy for r in records if isinstance(r, RegionRecord)]
    assert found == ["cooperative, 32 programs to a row"]
