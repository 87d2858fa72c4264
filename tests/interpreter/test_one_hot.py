"""Numbers of a cross-entropy's backward with the bias gradient of the layer in front of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, f32
from grids import crossed
from running import ON, check_gradients, compiled, gradients
from torch import nn

from mixorder.report import RegionRecord, collect

ROWS = 37


class Head(nn.Module):
    """Logits of `columns` classes, and their loss; some rows do not count, one label is the last class."""

    def __init__(self, columns: int, smoothing: float = 0.0) -> None:
        super().__init__()
        self.linear, self.smoothing = nn.Linear(24, columns), smoothing
        self.register_buffer("labels", torch.randint(columns, (ROWS,)))
        self.labels[::5], self.labels[1], self.labels[2] = -100, columns - 1, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.linear(x), self.labels, label_smoothing=self.smoothing)


@pytest.mark.parametrize(("columns", "dtype"), crossed([256, 1099, 3001], [f32, bf16]))
def test_a_head(columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module, x = Head(columns).to(dtype), torch.randn(ROWS, 24).to(dtype)
    with collect() as records:
        ours = gradients(module, x, torch.tensor(1.0, dtype=dtype), ON)
    (record,) = (r for r in records if isinstance(r, RegionRecord))
    assert [one.op for one in record.inner] == ["sum"] and "tl.sum" in record.kernels[0].text
    assert not any("cooperative" in record.strategy and "mailbox" in k.text for k in record.kernels)
    check_gradients(ours, module, x, torch.tensor(1.0, dtype=dtype), ROWS * columns)


def test_smoothed_labels() -> None:
    torch.manual_seed(0)
    module, x = Head(300, smoothing=0.1), torch.randn(ROWS, 24)
    ours = gradients(module, x, torch.tensor(1.0), ON)
    check_gradients(ours, module, x, torch.tensor(1.0), ROWS * 300)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_gradients_that_are_no_numbers(value: float) -> None:
    """An infinite gradient times the zeros of the other columns is NaN, in the loop and without it."""

    def function(x: Any, labels: Any, scale: Any) -> Any:
        one = torch.where(torch.arange(300) == labels, -1.0, 0.0) * scale
        dx = one - x.exp() * one.sum(1, keepdim=True)
        return dx, dx.sum(0)

    x, labels = torch.randn(64, 300), torch.randint(-2, 302, (64, 1))
    scale = torch.randn(64, 1)
    scale[7] = value
    with collect() as records:
        ours = compiled(ON)(function)(x, labels, scale)
    assert any(isinstance(r, RegionRecord) for r in records)
    for mine, theirs in zip(ours, function(x, labels, scale), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)
