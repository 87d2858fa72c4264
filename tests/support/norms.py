"""Norms in plain PyTorch, as in published models. One table of cases; `support/cases.py` has them all."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mixorder.region.axes import Reduced, unpaired_space

from .case import HEADS, MATRIX, TOKENS, Case, Fused, Shapes, columns, pairs, wide


class Weighted(nn.Module):
    """With a weight of random numbers: ones would hide an error."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))


def over_rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class CohereNorm(Weighted):
    """Mean and variance in fp32, no bias; a weight of one head or of several (QK-norm)."""

    def forward(self, x: Tensor) -> Tensor:
        dtype, x = x.dtype, wide(x)
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        x = (x - mean) * torch.rsqrt(variance + 1e-5)
        return (wide(self.weight) * x).to(dtype)


class LlamaNorm(Weighted):
    """Hugging Face's: fp32 inside, cast, then the weight."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * over_rms(wide(x)).to(x.dtype)


class T5Norm(Weighted):
    """The variance in fp32, of the input as it is; cast to the weight's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        variance = wide(x).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x.to(self.weight.dtype)


class GemmaNorm(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return (over_rms(wide(x)) * (1.0 + wide(self.weight))).type_as(x)


class ChannelNorm(Weighted):
    """Over the channels of images, by hand, as in ConvNeXt and SAM."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        return self.weight[:, None, None] * ((x - mean) / torch.sqrt(variance + 1e-6))


class Fp32LayerNorm(nn.LayerNorm):
    """Upcast to fp32 with fp32 copies of the parameters."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(wide(x), self.normalized_shape, wide(self.weight), wide(self.bias), self.eps)
        return y.type_as(x)


class Qwen3Query(nn.Module):
    """Queries (batch, tokens, heads, head_dim) on their way to attention: norm, transpose, RoPE."""

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        self.norm = LlamaNorm(dim)
        frequencies = 1e4 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = torch.arange(tokens)[:, None] * torch.cat((frequencies, frequencies))
        dtype = torch.get_default_dtype()
        self.register_buffer("cos", angles.cos().to(dtype))
        self.register_buffer("sin", angles.sin().to(dtype))

    def forward(self, q: Tensor) -> Tensor:
        q = self.norm(q).transpose(1, 2)
        first, second = q[..., : q.shape[-1] // 2], q[..., q.shape[-1] // 2 :]
        return q * self.cos + torch.cat((-second, first), -1) * self.sin


class AdaLayerNorm(nn.Module):
    """Scale and shift per sample and channel, from the first token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(dim, 2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        shift, scale = self.modulation(x[:, 0]).chunk(2, -1)
        return F.layer_norm(x, (x.shape[-1],)) * (1 + scale[:, None]) + shift[:, None]


class DiTBlock(nn.Module):
    """Half a DiT block: modulated norm, Linear, gate, residual; the condition is a second input."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.modulation, self.mix = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate = self.modulation(F.silu(condition[:, 0])).chunk(3, -1)
        y = F.layer_norm(x, (x.shape[-1],), eps=1e-6) * (1 + scale[:, None]) + shift[:, None]
        return x + gate[:, None] * self.mix(y)


class ScaleShiftTable(nn.Module):
    """PixArt: learnable scale and shift, two rows of one parameter."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],)) * (1 + self.table[1]) + self.table[0]


class GatedByLinear(nn.Module):
    """A norm without parameters, times a gate; the pair is the norm and the gate's bias gradient."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],)) * F.silu(self.gate(x))


class NormOfGatedProduct(nn.Module):
    """Norm of silu(gate) * value, halves of one Linear."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.linear = nn.Parameter(torch.randn(dim)), nn.Linear(dim, 2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.linear(x).chunk(2, -1)
        return F.rms_norm(F.silu(gate) * value, (x.shape[-1],), self.weight)


class BitLinear(nn.Module):
    """Norm, 8-bit activations, ternary weights, straight-through gradients."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.weight = nn.RMSNorm(dim), nn.Parameter(torch.randn(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        scale = 127.0 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        x = x + ((x * scale).round().clamp(-128, 127) / scale - x).detach()
        scale = 1.0 / self.weight.abs().mean().clamp(min=1e-5)
        weight = self.weight + ((self.weight * scale).round().clamp(-1, 1) / scale - self.weight).detach()
        return F.linear(x, weight)


class BitLinearResidual(BitLinear):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class BitLinearPrenorm(BitLinear):
    """Returns the sum before the norm as well as the result."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        residual = x + residual
        return super().forward(residual), residual


class Checkpointed(nn.Module):
    """The backward recomputes the result, and reads the statistics."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *x: Tensor) -> Tensor:
        return checkpoint(self.module, *x, use_reentrant=False)


TWO_DIMS = Shapes((8, 2048, 16, 64), (3, 1371, 15, 40), (3, 5, 4, 15))
QWEN3 = Shapes((8, 4096, 32, 128), (3, 457, 5, 128), (3, 5, 4, 12))
QUERIES = Shapes((4, 4096, 32, 128), (3, 457, 5, 128), (3, 5, 4, 12))
IMAGES = Shapes((32, 1024, 1152), (5, 517, 760), (3, 5, 60))


def per_head(b: int, s: int, h: int, d: int) -> list[Fused]:
    return [(f"row {b * s} x batch {h} x column {d}", 3, 1)]


def bias_of_chunks(rows: int, cols: int) -> Fused:
    """Region of a Linear's bias gradient, assembled from chunks; long rows are split into blocks."""
    return str(unpaired_space(Reduced((rows, cols), (0,)))), 0, 1


def per_sample(b: int, s: int, d: int) -> list[Fused]:
    return [(f"batch {b} x row {s} x column {d}", 2, 2)]


def modulated(b: int, s: int, d: int) -> list[Fused]:
    return [*per_sample(b, s, d), bias_of_chunks(b, 2 * d)]


def with_bias(b: int, s: int, d: int) -> list[Fused]:
    """Regions: the Linear's bias gradient is computed in the kernel that gates the gradient."""
    return [*per_sample(b, s, d), (f"{b * s}x{d}", 0, 1), bias_of_chunks(b, 3 * d)]


def of_chunks(b: int, s: int, d: int) -> list[Fused]:
    """Region: both halves of the Linear's bias gradient are added up in the kernel that computes them."""
    return [(f"{b * s}x{d}", 1, 3)]


class DyT(nn.Module):
    """A tanh instead of a norm (Zhu et al., 2025): the gradient of `alpha` is a sum of all elements."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), 0.5))
        self.weight = nn.Parameter(torch.randn(dim))
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.alpha * x) * self.weight + self.bias


def channels(make: Callable[[int], nn.Module]) -> Callable[..., nn.Module]:
    return lambda n, c, *_: make(c)


def of_pixels(n: int, c: int, h: int, w: int) -> list[Fused]:
    return [(f"{n * h * w}x{c}", 3, 1)]


PICTURES = Shapes((64, 96, 56, 56), (3, 40, 37, 41), (3, 20, 11, 13))
NORMS = {
    "LayerNorm": Case(columns(nn.LayerNorm), TOKENS, pairs((2, 2))),
    "LayerNorm, no bias": Case(lambda *s: nn.LayerNorm(s[-1], bias=False), TOKENS, pairs((2, 1))),
    "LayerNorm over two dims": Case(lambda *s: nn.LayerNorm(s[-2:]), TWO_DIMS, pairs((2, 2), cols=2)),
    "LayerNorm over channels, channels-last": Case(
        channels(ChannelNorm), PICTURES, of_pixels, memory_format=torch.channels_last
    ),
    "LayerNorm in fp32": Case(columns(Fp32LayerNorm), TOKENS, pairs((2, 2))),
    "RMSNorm": Case(columns(nn.RMSNorm), TOKENS, pairs((1, 1))),
    "RMSNorm over two dims": Case(lambda *s: nn.RMSNorm(s[-2:]), TWO_DIMS, pairs((1, 1), cols=2)),
    "Hugging Face Llama": Case(columns(LlamaNorm), TOKENS, pairs((1, 1))),
    "T5": Case(columns(T5Norm), TOKENS, pairs((1, 1))),
    "Gemma (1 + weight)": Case(columns(GemmaNorm), TOKENS, pairs((1, 1))),
    "Cohere": Case(columns(CohereNorm), TOKENS, pairs((3, 1))),
    "Cohere QK-norm": Case(lambda *s: CohereNorm(*s[-2:]), HEADS, per_head),
    "Qwen3 QK-norm": Case(columns(LlamaNorm), QWEN3, pairs((1, 1))),
    "Qwen3 QK-norm, transpose, RoPE": Case(lambda b, s, h, d: Qwen3Query(s, d), QUERIES, pairs((1, 1))),
    "adaLN": Case(columns(AdaLayerNorm), IMAGES, modulated),
    "DiT block": Case(columns(DiTBlock), IMAGES, with_bias, inputs=(None, None)),
    "scale-shift table": Case(columns(ScaleShiftTable), TOKENS, pairs((2, 2))),
    "no parameters, Linear as gate": Case(columns(GatedByLinear), TOKENS, pairs((1, 1))),
    "GroupNorm of tokens": Case(
        lambda n, c: nn.GroupNorm(4, c),
        MATRIX,
        lambda n, c: [(f"row {n} x batch 4 x column {c // 4}", 2, 2)],
    ),
    "DyT": Case(columns(DyT), TOKENS, pairs((1, 2))),
    "norm of a gated product": Case(columns(NormOfGatedProduct), TOKENS, of_chunks),
}

BIT_LINEAR = {
    "BitLinear": Case(columns(BitLinear), TOKENS, pairs((1, 1))),
    "BitLinear, residual": Case(columns(BitLinearResidual), TOKENS, pairs((1, 1))),
    "BitLinear, prenorm": Case(columns(BitLinearPrenorm), TOKENS, pairs((1, 1)), inputs=(None, None)),
}

CHECKPOINTED = {
    "checkpointed LayerNorm": Case(lambda *s: Checkpointed(nn.LayerNorm(s[-1])), TOKENS, pairs((2, 2))),
    "checkpointed RMSNorm": Case(lambda *s: Checkpointed(nn.RMSNorm(s[-1])), TOKENS, pairs((1, 1))),
    "checkpointed Cohere": Case(lambda *s: Checkpointed(CohereNorm(s[-1])), TOKENS, pairs((3, 1))),
    "checkpointed BitLinear": Case(lambda *s: Checkpointed(BitLinear(s[-1])), TOKENS, pairs((1, 1))),
    "checkpointed BitLinear, prenorm": Case(
        lambda *s: Checkpointed(BitLinearPrenorm(s[-1])), TOKENS, pairs((1, 1)), inputs=(None, None)
    ),
}
