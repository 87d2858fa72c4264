"""Gradients that come through permutes, slices, cat, pad and scatters: computed where they are needed.

Forms as models have them, and functions whose slices leave NaNs out: what no lane may read must not show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from graphs import bf16, f32
from table import Entry, of
from torch import nn

from mixorder import search


def rope(y: torch.Tensor) -> torch.Tensor:
    """Heads first, then the rotary embedding, as in Qwen3."""
    y = y.transpose(1, 2)
    tokens, half = y.shape[2], y.shape[3] // 2
    angle = torch.arange(tokens, dtype=y.dtype)[:, None] * torch.linspace(1, 0.1, half, dtype=y.dtype)
    cos, sin = (torch.cat([t, t], -1) for t in (angle.cos(), angle.sin()))
    return y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin


def gated(y: torch.Tensor) -> torch.Tensor:
    value, gate = y.chunk(2, -1)
    return value * torch.sigmoid(gate)


def class_token(y: torch.Tensor) -> torch.Tensor:
    return y[:, 0].sin().unsqueeze(1) + y[:, 1:].cos()


def parts(y: torch.Tensor) -> torch.Tensor:
    """Three parts of different sizes."""
    a, b, c = y.split_with_sizes([5, 3, y.shape[-1] - 8], -1)
    return torch.cat([c.sin(), a * 2, b.cos()], -1).tanh()


def windows(y: torch.Tensor) -> torch.Tensor:
    return y.reshape(2, 3, 2, 5, 11).permute(0, 2, 1, 3, 4).reshape(-1, 5, 11).sin()


def heads_first_and_back(y: torch.Tensor) -> torch.Tensor:
    return y.transpose(1, 2).contiguous().sin().transpose(1, 2).contiguous().cos()


def batch_second(y: torch.Tensor) -> torch.Tensor:
    return y.permute(1, 0, 2).contiguous().sin()


FORMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "rope": (rope, (3, 5, 2, 12)),
    "rope of square rows": (rope, (3, 6, 6, 12)),
    "gated": (gated, (3, 5, 24)),
    "class token": (class_token, (3, 5, 11)),
    "next token": (lambda y: y[:, 1:].sin() * y[:, :-1], (3, 5, 11)),
    "every other token": (lambda y: y[:, ::2].sin(), (3, 7, 11)),
    "parts": (parts, (7, 19)),
    "pad": (lambda y: F.pad(y, (2, 3, 1, 0)).sin(), (3, 5, 11)),
    "crop": (lambda y: F.pad(y, (-2, -3, 1, -1)).sin(), (3, 5, 11)),
    "batch second": (batch_second, (3, 5, 11)),
    "square rows": (batch_second, (5, 5, 11)),
    "square": (batch_second, (7, 7, 7)),
    "heads first and back": (heads_first_and_back, (3, 5, 2, 11)),
    "windows": (windows, (2, 6, 5, 11)),
    "concatenated": (lambda y: torch.cat([y[:, 2:].sin(), y[:, :1]], 1).cos(), (3, 5, 11)),
}
SYMBOLIC = ["rope", "next token", "pad", "concatenated"]
AT_ANY_SIZE = ((search, "lighter", lambda *_: []),)


class Around(nn.Module):
    """A norm, with what comes after it."""

    def __init__(self, norm: nn.Module, after: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.norm, self.after = norm, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.norm(x))


def form(name: str, norm: Callable[[int], nn.Module], dtype: torch.dtype = f32, **how: Any) -> Entry:
    after, shape = FORMS[name]
    return Entry(lambda: Around(norm(shape[-1]), after).to(dtype), (shape,), dtype, multiprocessors=2, **how)


# Functions: what a slice leaves out, and where nothing may be read.


def reductions(x: torch.Tensor, value: torch.Tensor) -> Any:
    product = x * value
    return value - x * product.sum(-1, keepdim=True), product.sum(tuple(range(x.dim() - 1)))


def padded(rows: slice, columns: slice, *padding: int) -> Callable[..., Any]:
    return lambda x, z: reductions(x, F.pad(z[rows, columns].exp(), padding))


def extreme(kind: str) -> Callable[..., Any]:
    """The fill takes part in a reduction, and lanes beyond the end do not."""

    def function(x: torch.Tensor, z: torch.Tensor) -> Any:
        value = F.pad(z[1:, 2:], (1, 1, 1, 0), value=0.5)
        return x * getattr(value, kind)(1, keepdim=True), getattr(value, kind)(0)

    return function


def spoilt(function: Callable[..., Any], *places: Any) -> Entry:
    """The second of two tensors is NaN at some places."""

    def given(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for place in places:
            z[place] = torch.nan
        return x, z

    return Entry(of(function), ((13, 11), (13, 11)), given=given, lies=True, multiprocessors=2)


def of_one_sign(function: Callable[..., Any], sign: int) -> Entry:
    shapes = (13, 11), (13, 11)
    return Entry(of(function), shapes, given=lambda x, z: (x, (z.abs() + 0.25) * sign), multiprocessors=2)


def put_together(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """A gradient for a product, and that of the bias."""
    batch, _, tokens, _ = q.shape
    pieces = [t.permute(0, 2, 1, 3).reshape(batch, tokens, -1) for t in (q, k, v)]
    whole = torch.cat(pieces, 2).flatten(0, 1)
    return whole @ whole.t(), whole.sum(0)


ALL = slice(None)
WITH = [(nn.LayerNorm, f32), (nn.RMSNorm, bf16), (nn.LayerNorm, bf16), (nn.RMSNorm, f32)]
ENTRIES: dict[str, Entry] = {
    **{name: form(name, *WITH[i % 4], patches=AT_ANY_SIZE) for i, name in enumerate(FORMS)},
    **{
        f"{name}, symbolic": form(
            name,
            nn.LayerNorm,
            dims=([(0, 1), (0,), (1,)][i % 3],),
            more=(0, 4, 1),
            shows=lambda r: isinstance(r.space.rows, str),
        )
        for i, name in enumerate(SYMBOLIC)
    },
    "rows before": spoilt(padded(slice(3, None), ALL, 0, 0, 1, 2), slice(3)),
    "rows after": spoilt(padded(slice(-4), ALL, 0, 0, 2, 2), slice(-4, None)),
    "columns before": spoilt(padded(ALL, slice(3, None), 2, 1), (ALL, slice(3))),
    "columns after": spoilt(padded(ALL, slice(-3), 0, 3), (ALL, slice(-3, None))),
    "both": spoilt(padded(slice(3, -1), slice(2, -1), 1, 2, 3, 1), slice(3), -1, (ALL, slice(2)), (ALL, -1)),
    "cat of columns": spoilt(
        lambda x, z: reductions(x, torch.cat([z[:, 2:5].cos(), z[:, 7:10], z[:, 2:7]], 1)),
        (ALL, slice(2)),
        (ALL, slice(10, None)),
    ),
    "scatter over": spoilt(
        lambda x, z: reductions(x, torch.slice_scatter(z, x[:, 1:5].exp(), 1, 4, 8)), (ALL, slice(4, 8))
    ),
    "row over": spoilt(lambda x, z: reductions(x, torch.select_scatter(z, x[3].exp(), 0, -2)), -2),
    "fill below the others": of_one_sign(extreme("amin"), 1),
    "fill above the others": of_one_sign(extreme("amax"), -1),
    **{
        f"put together, {shape}": Entry(
            of(put_together),
            (shape,) * 3,
            dtype,
            multiprocessors=2,
            shows=lambda r: len(r.kernels) == 2 - r.schedule.finishes,
        )
        for shape, dtype in (((2, 3, 5, 8), f32), ((3, 2, 7, 5), bf16), ((1, 1, 3, 33), f32))
    },
}
