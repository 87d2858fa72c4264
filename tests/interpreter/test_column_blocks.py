"""Sums over rows without a reduction along them: each program has a block of the columns (test_matrix.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, traced
from running import ON, check, compiled, run_fused, with_options
from torch import nn

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


@pytest.mark.parametrize(("rows", "split_size"), [(200, 100), (1000, 1000)])
def test_a_number_of_programs_that_the_user_sets(rows: int, split_size: int) -> None:
    x, dy = torch.randn(rows, 384, dtype=bf16), torch.randn(rows, 384, dtype=bf16)
    with collect() as records:
        ours = run_fused(gelu_backward, (x, dy), with_options(split_size=split_size))
    assert blocks_of(records) == ("blocks of columns", 128)
    assert records[0].schedule.splits == rows // split_size
    check(ours, gelu_backward(x, dy), gelu_backward(x.double(), dy.double()), rows)


def test_rows_wider_than_a_program_can_hold() -> None:
    x, dy = torch.randn(67, 32000, dtype=bf16), torch.randn(67, 32000, dtype=bf16)
    with collect() as records:
        ours = run_fused(gelu_backward, (x, dy))
    assert blocks_of(records)[0] == "blocks of columns"
    check(ours, gelu_backward(x, dy), gelu_backward(x.double(), dy.double()), 67)


def test_a_linear_of_odd_width() -> None:
    """A whole backward, as compiled: dx takes the place of the incoming gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 16))
    x = torch.randn(70, 32)
    with collect() as records:
        loss = compiled(ON)(lambda x: model(x).square().sum())(x)
        ours = torch.autograd.grad(loss, list(model.parameters()))
    assert any(isinstance(r, RegionRecord) and r.strategy == "blocks of columns" for r in records)
    stock = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    exact = model.double()(x.double()).square().sum()
    check(ours, stock, torch.autograd.grad(exact, list(model.parameters())), 70)


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
