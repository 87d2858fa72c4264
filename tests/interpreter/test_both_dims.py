"""Reductions of a tensor and of its transpose in one kernel: maxima, sums, and sums relative to maxima."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32
from grids import crossed
from running import ON, check, compiled

from mixorder.report import RegionRecord, collect

prims = torch.ops.prims


def softmaxes(x: Any) -> Any:
    x = x.to(torch.promote_types(x.dtype, f32))
    return *prims.prepare_softmax_online(x, 1), *prims.prepare_softmax_online(x.t().contiguous(), 1)


@pytest.mark.parametrize(("size", "dtype"), crossed([(37, 88), (5, 12), (1000, 8), (3, 4100)], [f32, bf16]))
def test_a_softmax_along_both_dims(size: tuple[int, int], dtype: torch.dtype) -> None:
    """Of numbers of which some rows and columns have the largest early and some late, some have infinities
    only, and some NaN."""
    rows, cols = size
    x = torch.randn(rows, cols).mul(30).to(dtype)
    x[rows // 2], x[:, cols // 3] = -torch.inf, -torch.inf
    x[0, :5], x[-1, -1], x[-2, 0] = -torch.inf, torch.inf, torch.nan
    x[:, 1] = x[:, 1].sort().values
    with collect() as outcomes:
        ours = compiled(ON)(softmaxes)(x)
    assert [type(outcome) for outcome in outcomes] == [RegionRecord]
    for mine, theirs, exact in zip(ours, softmaxes(x), softmaxes(x.double()), strict=True):
        keep = exact.isfinite()
        assert mine.shape == theirs.shape and torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine[~keep].nan_to_num(), theirs[~keep].nan_to_num())
        check((mine[keep],), (theirs[keep],), (exact[keep],), max(rows, cols))
