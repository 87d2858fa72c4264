"""Reproductions of pytorch's issues with its own mix-order reduction, by number.

Each is a case of `tests/support/cases.py`: its training shape is the issue's, the others have partial tiles.
"Reconstructed": the issue's script was not at hand, and the case has what its text names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from graphs import bf16, f32
from support.case import Case, Fused, Shapes, columns, pairs, wide
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Wound:
    """`options`: Inductor's settings under which stock fails. `ratio`: of an error's norm to the result's,
    the most that is right; by default by `dtype`."""

    case: Case
    dtype: torch.dtype = bf16
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    ratio: float = 0.0

    @property
    def most(self) -> float:
        return self.ratio or (1e-5 if self.dtype == f32 else 0.02)


def none(*shape: int) -> list[Fused]:
    return []


# #195845: lanes beyond the last row hold 0, of which the prologue makes 0.25.


def masked(row: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2 + 0.25
        return row(y), wide(y).sum(0)

    return function


ODD_ROWS = Shapes((40961, 129), (4099, 129), (37, 129))


def product(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of numbers around 1, of which 0 gives another one."""
    return x.amax(-1), (1 + (2 * (x > 0).to(x.dtype) - 1) / 128).prod(0)


# No issue of upstream's: what else was found in its mix-order reduction.


def large_integers(x: Tensor) -> tuple[Tensor, Tensor]:
    """Their sums need more bits than float32 has."""
    y = (x * 4).round().long() * 123457
    return y.amax(-1), y.sum(0)


def transposed(x: Tensor) -> tuple[Tensor, Tensor]:
    """The sums lie as the input does, column by column."""
    y = x.transpose(1, 2)
    return y.amax((-1, -2)), y.sum(0).sin()


def in_a_table(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), torch.cat([x.sum(0), (x * x).sum(0)])


def kept(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), x.sum(0, keepdim=True)


def kept_and_divided(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), x.sum(0, keepdim=True) / 3


def in_float64(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), x.sum(0, dtype=torch.float64)


def of_halves(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    joined = torch.cat([x, y], 1) + 1
    return joined @ joined.t()[:, :3], joined.amax(-1), joined.sum(0)


# #193061: all scales and shifts are chunks of one parameter, whose gradient is one buffer.


class SharedTable(nn.Module):
    """The sizes are the issue's."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 4, dim) / 8)
        self.norms = nn.ModuleList(nn.LayerNorm(dim, elementwise_affine=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.table.chunk(4, dim=1)
        for i, norm in enumerate(self.norms):
            x = x + (norm(x) * (1 + parts[2 * i + 1]) + parts[2 * i])
        return x


# #190796: a diffusion model's block adds the projected time to each channel of a convolution.


class TimeEmbedded(nn.Module):
    """Reconstructed sizes. Autocast leaves float64 as it is. The time is a parameter: all inputs of a case
    have one shape. `separate_bias`: the bias is added by itself. On a GPU Inductor makes that of any
    convolution; on a CPU it does not."""

    def __init__(self, batch: int, channels: int, separate_bias: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=not separate_bias)
        self.bias = nn.Parameter(torch.randn(channels)) if separate_bias else None
        self.time, self.proj = nn.Parameter(torch.randn(batch, 64)), nn.Linear(64, channels)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            y = self.conv(x)
            if self.bias is not None:
                y = y + self.bias[:, None, None].to(y.dtype)
            return y + self.proj(F.silu(self.time))[:, :, None, None]


def channels(b: int, c: int, h: int, w: int) -> list[Fused]:
    return [(f"row {b} x batch {c} x common {h * w}", 1, 1)]


def embedded(separate_bias: bool) -> Case:
    shapes = Shapes((128, 128, 32, 32), (33, 40, 17, 17), (5, 8, 6, 7))
    return Case(lambda b, c, *_: TimeEmbedded(b, c, separate_bias), shapes, channels)


# #186241: RMSNorm by hand, with tensor descriptors.


class HandWrittenRMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        wider = wide(x)
        scale = torch.rsqrt((wider * wider).sum(-1) / x.shape[-1] + 1e-5)
        return (wider * scale[..., None] * self.weight).to(x.dtype)


DESCRIPTORS = {
    "split_reductions": False,
    "triton.use_tensor_descriptor": True,
    "assume_aligned_inputs": True,
}


# #179423: one block of a small transformer, whose residual is mixed with its first input.


class MixedResidual(nn.Module):
    """Reconstructed; a Linear stands for attention. Norms have no weight: the pairs are those of the
    scales and the mixing weights."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention, self.up, self.down = (
            nn.Linear(dim, dim, bias=False),
            nn.Linear(dim, 4 * dim, bias=False),
            nn.Linear(4 * dim, dim, bias=False),
        )
        self.scales = nn.ParameterList(torch.ones(dim) for _ in range(2))
        self.mix = nn.Parameter(torch.rand(2, dim))

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        x = self.mix[0] * x + self.mix[1] * first
        x = x + self.scales[0] * self.attention(F.rms_norm(x, x.shape[-1:], eps=1e-6))
        hidden = F.leaky_relu(self.up(F.rms_norm(x, x.shape[-1:], eps=1e-6)), 0.5).square()
        return x + self.scales[1] * self.down(hidden)


# #175250: the first layer of a draft model: halves of a row are normalised each, and put together again.


class DraftLayer(nn.Module):
    """As in the issue's test, without a softmax; 8192 wide it has 32 heads of 128. `dim`: of both halves."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden, width = dim // 2, dim // 4
        self.head = 128 if width >= 1024 else width // 4
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        outputs = (width, width // 4, width // 4)
        self.projections = nn.ModuleList(nn.Linear(dim, n, bias=False) for n in outputs)
        self.back = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        halves = x.split(x.shape[-1] // 2, -1)
        first, second = (norm(half) for norm, half in zip(self.norms, halves, strict=True))
        joined = torch.cat([first, second], -1)
        heads = (p(joined).unflatten(-1, (-1, self.head)).transpose(1, 2) for p in self.projections)
        q, k, v = heads
        position = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        every_other = torch.arange(0, self.head, 2, device=x.device, dtype=x.dtype)
        angle = torch.outer(position, 500000.0 ** (-every_other / self.head)).repeat(1, 2)
        q, k = (t * angle.cos() + rotated(t) * angle.sin() for t in (q, k))
        k, v = (t.repeat_interleave(4, 1) for t in (k, v))
        attended = q.contiguous() @ k.contiguous().transpose(-2, -1) @ v.contiguous()
        return self.back(attended.transpose(1, 2).flatten(-2)) + second


def rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


# #186426


class WithToken(nn.Module):
    """Reconstructed. A learnable token before the others: a batch of s sequences has s * (a + 1) rows."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token, self.norm = nn.Parameter(torch.randn(1, 1, dim)), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))


def rms(*shapes: tuple[int, int]) -> Case:
    return Case(lambda *s: nn.RMSNorm(s[-1], eps=1e-6), Shapes(*shapes), pairs((1, 1)))


def sums(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(1), x.sum(0)


def two_sums(*shapes: tuple[int, int]) -> Case:
    return Case(lambda *s: sums, Shapes(*shapes), pairs((1, 1)), training=False)


WOUNDS: dict[str, Wound] = {
    "195845": Wound(
        Case(lambda *s: masked(lambda y: y.max(dim=-1).values), ODD_ROWS, pairs((1, 1)), training=False),
    ),
    "195845 amax": Wound(
        Case(lambda *s: masked(lambda y: y.amax(-1)), ODD_ROWS, pairs((1, 1)), training=False),
    ),
    "193061": Wound(
        Case(
            columns(SharedTable),
            Shapes((1, 32768, 1024), (1, 4099, 760), (1, 37, 60)),
            pairs((4, 4)),
        ),
        f32,
    ),
    "190796": Wound(embedded(separate_bias=False), f32, ratio=0.02),
    "190796 bias apart": Wound(embedded(separate_bias=True), f32, ratio=0.02),
    "186241": Wound(
        Case(columns(HandWrittenRMSNorm), Shapes((1000000, 256), (4099, 256), (700, 64)), pairs((1, 1))),
        options=DESCRIPTORS,
    ),
    "185814": Wound(rms((131072, 16384), (4099, 16384), (21, 2048))),
    "185534": Wound(rms((8192, 8192), (4096, 8192), (7, 1024))),
    "196581": Wound(two_sums((2048, 1024), (768, 768), (13, 96))),
    "186370": Wound(rms((4096, 4096), (1024, 1024), (33, 33))),
    "179423": Wound(
        Case(columns(MixedResidual), Shapes((98304, 512), (4099, 512), (37, 64)), none, inputs=(None, None))
    ),
    "175250": Wound(
        Case(columns(DraftLayer), Shapes((1, 16384, 16384), (1, 1027, 1024), (1, 21, 128)), none),
        f32,
    ),
}


def left(function: Callable[..., Any], *sizes: tuple[int, ...], tensors: int = 1) -> Case:
    training, small = sizes
    shapes = Shapes(training, training, small)
    return Case(lambda *s: function, shapes, none, inputs=(None,) * tensors, training=False)


def after(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    return lambda x: (function(x).amax(-1), function(x).sum(0))


ODD, WIDE = ((40961, 129), (37, 24)), ((40961, 256), (37, 32))

# What Inductor's own mix-order reduction has wrong, or does not compile. In compiles with mixorder, Inductor
# has a kernel for rows and one for columns instead.
LEFT: dict[str, Wound] = {
    # Rows beyond the last one are added. The first one does not compile with torch 2.11.
    "195845 max": Wound(left(masked(lambda y: y.max(dim=-1).values), *ODD), f32),
    "195845 exp": Wound(left(after(torch.exp), *ODD), f32),
    "195845 product": Wound(left(product, *ODD), f32, ratio=1e-4),
    # A result loses the dim that it keeps, and so does what is computed in its memory.
    "178080": Wound(left(kept, *ODD), f32),
    "178080 quotient": Wound(left(kept_and_divided, *ODD), f32),
    # What lies in another tensor is never written.
    "193061 table": Wound(left(in_a_table, *WIDE), f32, {"split_reductions": False}),
    # A program reads its first tile over and over.
    "186241 descriptors": Wound(left(sums, *WIDE), f32, DESCRIPTORS),
    "186241 block pointers": Wound(left(sums, *WIDE), f32, {"triton.use_block_ptr": True}),
    # Partial sums are float32.
    "integers": Wound(left(large_integers, *WIDE), f32, ratio=1e-12),
    "float64": Wound(left(sums, *WIDE), torch.float64, ratio=1e-12),
    "float64 of float32": Wound(left(in_float64, *WIDE), f32, ratio=1e-12),
    # Results come back in another order.
    "transposed": Wound(left(transposed, (40961, 16, 32), (37, 6, 8)), f32, ratio=1e-4),
    # With symbolic columns, `2 * s0 + s1` is written for `2 * (s0 + s1)`.
    "176375 symbols": Wound(left(of_halves, (40961, 64), (37, 12), tensors=2), f32, ratio=1e-4),
}
