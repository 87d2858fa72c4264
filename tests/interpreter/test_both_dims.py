"""Reductions of a tensor and of its transpose in one kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32
from running import ON, check, compiled

from mixorder.report import RegionRecord, collect


def sums(x: Any) -> Any:
    return x.sum(1), x.t().exp().sum(1), (x.t() * 2).mean(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_sums_of_rows_of_a_transposed_tensor(dtype: torch.dtype) -> None:
    x = torch.randn(60, 96).to(dtype)
    with collect() as ends:
        ours = compiled(ON)(sums)(x)
    assert [len(end.outer) for end in ends if isinstance(end, RegionRecord)] == [2]
    check(ours, sums(x), sums(x.double()), 96)
