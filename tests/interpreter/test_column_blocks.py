"""Sums over rows without a reduction along them: each program has a block of the columns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, f16, f32, traced
from grids import crossed
from running import ON, check, compiled, run_fused, with_options
from torch import nn

from mixorder import pipeline
from mixorder.report import RegionRecord, collect

WIDTHS = {96: 32, 160: 32, 320: 64, 384: 128, 576: 64, 608: 32, 720: 240, 1152: 128}


def gelu_backward(x: Any, dy: Any) -> Any:
    """The gradient behind a Linear's bias, and the bias's own."""
    dx = torch.ops.aten.gelu_backward(dy, x)
    return dx, dx.sum(0)


def blocks_of(records: list[Any]) -> tuple[str, int]:
    (record,) = records
    assert isinstance(record, RegionRecord)
    return record.strategy, record.schedule.lanes


@pytest.mark.parametrize(("cols", "dtype"), crossed(WIDTHS, [bf16, f32, f16]))
def test_every_row_and_column_once(cols: int, dtype: torch.dtype) -> None:
    x, dy = torch.randn(397, cols).to(dtype), torch.randn(397, cols).to(dtype)
    with collect() as records:
        ours = run_fused(gelu_backward, (x, dy))
    lanes = 1 << (WIDTHS[cols] - 1).bit_length()
    assert blocks_of(records) == ("blocks of columns", lanes)
    check(ours, gelu_backward(x, dy), gelu_backward(x.double(), dy.double()), 397)


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


def test_several_results_a_vector_of_columns_and_an_epilogue() -> None:
    """Indices of the columns are also values, gathered and moved."""

    def function(x: Any, dy: Any, w: Any) -> Any:
        cols = x.shape[1]
        numbered = x.to(f32) * torch.arange(cols, device=x.device)
        turned = torch.cat([dy[:, cols // 2 :], -dy[:, : cols // 2]], 1)
        product = torch.tanh(numbered / cols + w) * turned
        return product.to(bf16), product.sum(0) * 0.5 + w, product.amax(0), numbered.sum(0).to(bf16)

    for cols in (384, 608):
        args = torch.randn(41, cols, dtype=bf16), torch.randn(41, cols), torch.randn(cols)
        with collect() as records:
            ours = run_fused(function, args)
        assert blocks_of(records)[0] == "blocks of columns"
        check(ours, function(*args), function(*(a.double() for a in args)), 41)


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
