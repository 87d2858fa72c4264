"""Numbers of outputs with gaps between their rows, and of what reads them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, f32
from grids import crossed
from running import ON, check_gradients, gradients
from torch import nn

from mixorder.report import RegionRecord, collect


class Head(nn.Module):
    """Logits of `columns` classes; the gradient of their loss goes to two matrix products and the bias."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.linear = nn.Linear(24, columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.linear(x), -1).square().mean(-1)


@pytest.mark.parametrize(
    ("columns", "dtype", "shape"), crossed([1100, 1099, 3001], [bf16, f32], [(37, 24), (3, 7, 24)])
)
def test_a_head(columns: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module, x = Head(columns).to(dtype), torch.randn(shape, dtype=dtype)
    dy = torch.randn(shape[:-1], dtype=dtype)
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    (record,) = (r for r in records if isinstance(r, RegionRecord) and "sum" in [one.op for one in r.outer])
    (padded,) = (b for b in record.loops.buffers if len(b.shape) > 1 and b.stride[-2] > b.shape[-1] > 1)
    assert padded.stride[-2] % (128 // padded.dtype.itemsize) == 0
    check_gradients(ours, module, x, dy, max(columns, x.numel() // 24))


@pytest.mark.parametrize("dtype", [bf16, f32])
def test_products_find_numbers_behind_the_rows(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AMX, torch's product in bfloat16 reads behind a row, and multiplies it by zero."""
    original, behind = torch.fx.Interpreter.call_function, list[torch.Tensor]()

    def call_function(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.mm.default:
            real = (t for t in args if type(t) is torch.Tensor and t._is_view())  # it also traces the graph
            behind.extend(t.new_empty(0).set_(t.untyped_storage()) for t in real)
        return original(self, target, args, kwargs)

    monkeypatch.setattr(torch.fx.Interpreter, "call_function", call_function)
    gradients(Head(1099).to(dtype), torch.randn(37, 24, dtype=dtype), torch.randn(37, dtype=dtype), ON)
    assert any(t.numel() > 37 * 1099 for t in behind) and all(t.isfinite().all() for t in behind)
