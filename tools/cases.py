"""Modules whose backward holds pairs of inner and outer reductions: the norms that people write, and others.

Each case is a module and an input shape of training size. Used by `tools/family.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def wide(x: Tensor) -> Tensor:
    """At least fp32, and fp64 in the reference."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class CohereNorm(nn.Module):
    """Mean and variance in fp32, no bias; a weight of one head or of several (QK-norm)."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        dtype, x = x.dtype, wide(x)
        x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (wide(self.weight) * x).to(dtype)


class HuggingFaceNorm(nn.Module):
    """Llama, T5: fp32 inside, cast, then the weight."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = wide(x)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class GemmaNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = wide(x)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * (1.0 + wide(self.weight))).to(x.dtype)


class Fp32LayerNorm(nn.LayerNorm):
    """Upcast to fp32 with fp32 copies of the parameters."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(wide(x), self.normalized_shape, wide(self.weight), wide(self.bias), self.eps)
        return y.to(x.dtype)


class AdaLayerNorm(nn.Module):
    """DiT: scale and shift per sample and channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(dim, 2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        shift, scale = self.modulation(x[:, 0]).chunk(2, -1)
        return F.layer_norm(x, (x.shape[-1],)) * (1 + scale[:, None]) + shift[:, None]


class ScaleShiftTable(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],)) * (1 + self.table[1]) + self.table[0]


class PreNorm(nn.Module):
    """The sum goes on beside its norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.RMSNorm(dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm(x))
        return x + self.norm(x)


class PostNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.mix(x))


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


class SoftmaxWithBias(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x + self.bias, -1)


class ConvBiasAndSum(nn.Module):
    """Common axes: a bias per channel, and a gate per sample and channel."""

    def __init__(self, samples: int, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(channels))
        self.gate = nn.Parameter(torch.randn(samples, channels))

    def forward(self, x: Tensor) -> Tensor:
        return (x.sin() + self.bias[:, None, None]) * self.gate[:, :, None, None]


class GeluMLP(nn.Module):
    """No norm: the first Linear's bias gradient rides along with GELU's backward."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Checkpointed(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.module, x, use_reentrant=False)


@dataclasses.dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


CASES = {
    "LayerNorm": Case(lambda: nn.LayerNorm(2048), (8, 2048, 2048)),
    "LayerNorm, no bias": Case(lambda: nn.LayerNorm(2048, bias=False), (8, 2048, 2048)),
    "LayerNorm (16, 64)": Case(lambda: nn.LayerNorm((16, 64)), (8, 2048, 16, 64)),
    "LayerNorm in fp32": Case(lambda: Fp32LayerNorm(2048), (8, 2048, 2048)),
    "RMSNorm": Case(lambda: nn.RMSNorm(2048), (8, 2048, 2048)),
    "Hugging Face Llama": Case(lambda: HuggingFaceNorm(2048), (8, 2048, 2048)),
    "Gemma (1 + weight)": Case(lambda: GemmaNorm(2048), (8, 2048, 2048)),
    "Cohere": Case(lambda: CohereNorm(2048), (8, 2048, 2048)),
    "Cohere QK-norm (32, 128)": Case(lambda: CohereNorm(32, 128), (8, 2048, 32, 128)),
    "Qwen3 QK-norm (128)": Case(lambda: nn.RMSNorm(128), (8, 4096, 32, 128)),
    "adaLN": Case(lambda: AdaLayerNorm(1152), (32, 1024, 1152)),
    "scale-shift table": Case(lambda: ScaleShiftTable(2048), (8, 2048, 2048)),
    "pre-norm residual": Case(lambda: PreNorm(2048), (8, 2048, 2048)),
    "post-norm residual": Case(lambda: PostNorm(2048), (8, 2048, 2048)),
    "BitLinear": Case(lambda: BitLinear(2048), (8, 2048, 2048)),
    "softmax with bias": Case(lambda: SoftmaxWithBias(1024), (16384, 1024)),
    "Linear, GELU, Linear": Case(lambda: GeluMLP(768), (32, 1024, 768)),
    "conv bias and gate": Case(lambda: ConvBiasAndSum(64, 256), (64, 256, 56, 56)),
    "checkpointed Cohere": Case(lambda: Checkpointed(CohereNorm(2048)), (8, 2048, 2048)),
    "checkpointed LayerNorm": Case(lambda: Checkpointed(nn.LayerNorm(2048)), (8, 2048, 2048)),
    "checkpointed BitLinear": Case(lambda: Checkpointed(BitLinear(2048)), (8, 2048, 2048)),
}
