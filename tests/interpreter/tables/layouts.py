"""Tensors that lie across the tile: copied if they are the smaller part. If they are the larger, they are
read along the rows where these are in whole accesses, and declined where not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from graphs import bf16, f32
from table import Entry, of
from torch import nn


class ChannelsFirst(nn.Module):
    """A mix over the sequence: the norm's input and both gradients have the sequence innermost."""

    def __init__(self, seq: int, dim: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(dim), nn.Parameter(torch.randn(seq, seq))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2) @ self.mix


class HeadsFirst(nn.Module):
    """A projection, a norm of each head, and what reads its result with the heads first or the tokens. The
    projection reads the norm's gradient with the tokens first."""

    def __init__(self, heads: int, dim: int, norm: Callable[..., nn.Module], wide: bool) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        self.up, self.norm = nn.Linear(12, heads * dim), norm((heads, dim) if wide else dim)
        self.wide = wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x).unflatten(-1, (self.heads, self.dim))
        y = y.permute(1, 0, 2, 3) if self.wide else y.transpose(1, 2)
        return self.norm(y).sin().contiguous()


def heads_first(
    norm: Callable[..., nn.Module], wide: bool, dtype: torch.dtype, rows: tuple[int, int]
) -> Entry:
    """Nothing copies the gradient for its reader."""
    return Entry(
        lambda: HeadsFirst(2, 8, norm, wide).to(dtype),
        ((*rows, 12),),
        dtype,
        shows=lambda r: r.traffic.copies == 0,
    )


def across(leaves: bool) -> Callable[..., Any]:
    def function(x: Any, y: Any, dy: Any) -> Any:
        product = x * dy * y
        dx = dy - x * product.sum(1, keepdim=True)
        return (dx if leaves else dx.cumsum(0), product.sum(0))

    return function


def transposed(x: Any, y: Any, dy: Any) -> Any:
    return across(True)(x, y, dy.t())


def both(x: Any, dy: Any) -> Any:
    return dy - (x * dy).sum(1, keepdim=True), (x * dy).sum(0)


def behind_zeros(x: Any, y: Any) -> Any:
    """Torch states for y the strides of the sum that it replaces, until it traces the graph again."""
    z = torch.zeros_like(x) + y
    return (x * z).sum(1), (z * z).sum(0)


def padded(y: torch.Tensor) -> torch.Tensor:
    return torch.full((24, 48), torch.nan)[:, 3:43].copy_(y)


FULL = (24, 40)
ENTRIES: dict[str, Entry] = {
    "whole accesses": Entry(
        lambda: ChannelsFirst(8, 24), ((3, 24, 8),), shows=lambda r: r.traffic.copies == 0
    ),
    "parts of accesses": Entry(lambda: ChannelsFirst(7, 24), ((3, 24, 7),), regions=0, declined=("layout",)),
    "heads": heads_first(nn.LayerNorm, False, f32, (3, 5)),
    "heads of bfloat16": heads_first(nn.RMSNorm, False, bf16, (4, 4)),
    "all heads": heads_first(nn.RMSNorm, True, f32, (4, 4)),
    "all heads of bfloat16": heads_first(nn.LayerNorm, True, bf16, (3, 5)),
    **{
        f"a copy to read{' and one to leave' * leaves}": Entry(
            of(across(leaves)),
            (FULL, FULL, (40, 24)),
            given=lambda x, y, dy: (x, y, dy.t()),
            lies=leaves,
            shows=lambda r: r.traffic.copied > 0,
        )
        for leaves in (False, True)
    },
    **{
        f"any number of rows of {dtype}": Entry(
            of(transposed),
            (FULL, FULL, (40, 24)),
            dtype,
            dims=((0,), (0,), (1,)),
            more=(0, -15, 26),
            lies=True,
            shows=lambda r: r.traffic.copied > 0,
        )
        for dtype in (f32, bf16)
    },
    "all across": Entry(
        of(both),
        ((40, 24), (40, 24)),
        given=lambda x, dy: (x.t(), dy.t()),
        lies=True,
        shows=lambda r: r.traffic.copies == 0,
    ),
    "behind zeros": Entry(of(behind_zeros), (FULL, FULL), given=lambda x, y: (x, padded(y))),
}
