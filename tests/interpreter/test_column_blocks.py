"""Sums over rows without a reduction along them: each program has a block of the columns (test_matrix.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, traced
from running import ON, check, run_fused

from mixorder import pipeline
from mixorder.report import RegionRecord, collect


def gelu_backward(x: Any, dy: Any) -> Any:
    """The gradient behind a Linear's bias, and the bias's own."""
    dx = torch.ops.aten.gelu_backward(dy, x)
    return dx, dx.sum(0)


def blocks_of(records: list[Any]) -> tuple[str, int]:
    (record,) = records
    assert isinstance(record, RegionRecord)
    return record.strategy, record.schedule.lanes


def test_rows_wider_than_a_program_can_hold() -> None:
    x, dy = torch.randn(67, 32000, dtype=bf16), torch.randn(67, 32000, dtype=bf16)
    with collect() as records:
        ours = run_fused(gelu_backward, (x, dy))
    assert blocks_of(records)[0] == "blocks of columns"
    check(ours, gelu_backward(x, dy), gelu_backward(x.double(), dy.double()), 67)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, dy: (x * dy, (x * dy).sum(0), (x * dy).sum(1)),
        lambda x, dy: (torch.tanh(x), F.silu(x).view(6, 8, 384).sum((0, 2))),
    ],
    ids=["a sum along rows", "columns are summed too"],
)
def test_rows_that_stay_whole(function: Any) -> None:
    args = torch.randn(48, 384, dtype=bf16), torch.randn(48, 384, dtype=bf16)
    graph = traced(function, *[(tuple(a.shape), a.dtype) for a in args])
    for record in pipeline.run(graph, ON):
        assert record.strategy != "blocks of columns"
