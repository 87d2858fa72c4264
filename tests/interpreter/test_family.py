"""Norms as models write them, each fused whole: how many regions, with which reductions, and how exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs import Block, HFRMSNorm, bf16, f32
from running import OFF, ON, exact_gradients, gradients
from torch import nn
from torch.utils.checkpoint import checkpoint

from mixorder.report import RegionRecord, collect


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, f32))  # `.float()` in models; this one takes fp64 as well


class CohereNorm(nn.Module):
    """LayerNorm without a bias, in fp32; with a weight of (heads, head_dim) for Q and K."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype, x = x.dtype, wide(x)
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return (wide(self.weight) * ((x - mean) * torch.rsqrt(variance + 1e-5))).to(dtype)


class GemmaNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = wide(x)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * (1.0 + wide(self.weight))).type_as(x)


class AdaptiveNorm(nn.Module):
    """adaLN: scale and shift are made per sample, and so kept by the sum over its rows."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, 2 * dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift, scale = self.linear(x.mean(1)).chunk(2, -1)
        return F.layer_norm(x, (x.shape[-1],)) * (1 + scale[:, None]) + shift[:, None]


class ScaleShiftTable(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (x.shape[-1],)) * (1 + self.table[1]) + self.table[0]


class GatedNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.linear = nn.Parameter(torch.randn(dim)), nn.Linear(dim, 2 * dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.linear(x).chunk(2, -1)
        return F.rms_norm(F.silu(gate) * value, (x.shape[-1],), self.weight)


class PostNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Linear(dim, dim), nn.LayerNorm(dim)
        self.second, self.norm2 = nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.first(x))
        return self.norm2(x + self.second(x))


class SharedNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(self.norm(self.linear(self.norm(x)))))


class PreNorm(nn.Module):
    """The residual stream has more users than the norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.linear = nn.Parameter(torch.randn(dim)), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stream = x + self.linear(x)
        return F.rms_norm(stream, (x.shape[-1],), self.weight) * 2 + stream.sin()


class SoftmaxWithBias(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + self.bias, -1)


class ChannelBias(nn.Module):
    """A convolution's bias (a sum over all but the channels) beside a gate per image and channel."""

    def __init__(self, images: int, channels: int) -> None:
        super().__init__()
        self.bias, self.gate = (
            nn.Parameter(torch.randn(channels)),
            nn.Parameter(torch.randn(images, channels)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + self.bias[None, :, None, None]) * self.gate[:, :, None, None]


class BitLinear(nn.Module):
    """RMSNorm, then activations and weights quantised, with gradients passed straight through."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.weight = nn.RMSNorm(dim), nn.Parameter(torch.randn(dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        scale = 127.0 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        x = x + ((x * scale).round().clamp(-128, 127) / scale - x).detach()
        scale = 1.0 / self.weight.abs().mean().clamp(min=1e-5)
        weight = (self.weight * scale).round().clamp(-1, 1) / scale
        return F.linear(x, self.weight + (weight - self.weight).detach())


class Checkpointed(nn.Module):
    """The backward recomputes the statistics: inner reductions above the outer ones."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.module, x, use_reentrant=False)


# What is fused of each: the space, and how many inner and outer reductions.
PLAIN, HEADS = "15x64", "row 15 x kept 4 x column 16"
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[tuple[str, int, int]]]] = {
    "layer": (lambda: nn.LayerNorm(64), (3, 5, 64), [(PLAIN, 2, 2)]),
    "layer_of_two_dims": (lambda: nn.LayerNorm((4, 16)), (3, 5, 4, 16), [(PLAIN, 2, 2)]),
    "rms": (lambda: nn.RMSNorm(64), (3, 5, 64), [(PLAIN, 1, 1)]),
    "rms_of_two_dims": (lambda: nn.RMSNorm((4, 16)), (3, 5, 4, 16), [(PLAIN, 1, 1)]),
    "hugging_face": (lambda: HFRMSNorm(64), (3, 5, 64), [(PLAIN, 1, 1)]),
    "cohere": (lambda: CohereNorm(64), (3, 5, 64), [(PLAIN, 3, 1)]),
    "cohere_heads": (lambda: CohereNorm(4, 16), (3, 5, 4, 16), [(HEADS, 3, 1)]),
    "gemma": (lambda: GemmaNorm(64), (3, 5, 64), [(PLAIN, 1, 1)]),
    "qwen_heads": (lambda: nn.RMSNorm(16), (3, 5, 4, 16), [("60x16", 1, 1)]),
    "adaptive": (lambda: AdaptiveNorm(64), (3, 5, 64), [("kept 3 x row 5 x column 64", 2, 2)]),
    "scale_shift_table": (lambda: ScaleShiftTable(64), (3, 5, 64), [(PLAIN, 2, 2)]),
    "gated": (lambda: GatedNorm(64), (3, 5, 64), [(PLAIN, 1, 1)]),
    "post_norm": (lambda: PostNorm(64), (3, 5, 64), [(PLAIN, 2, 2), (PLAIN, 2, 4)]),
    "chain": (lambda: nn.Sequential(nn.LayerNorm(64), nn.LayerNorm(64)), (3, 5, 64), [(PLAIN, 4, 4)]),
    "shared": (lambda: SharedNorm(64), (3, 5, 64), [(PLAIN, 2, 3), (PLAIN, 2, 3), (PLAIN, 2, 2)]),
    "pre_norm": (lambda: PreNorm(64), (3, 5, 64), [(PLAIN, 1, 2)]),
    "softmax_with_bias": (lambda: SoftmaxWithBias(64), (3, 5, 64), [(PLAIN, 1, 1)]),
    "channel_bias": (lambda: ChannelBias(3, 6), (3, 6, 5, 7), [("row 3 x kept 6 x common 35", 1, 1)]),
    "bit_linear": (lambda: BitLinear(64), (3, 5, 64), [(PLAIN, 1, 1)]),
    "checkpointed_layer": (lambda: Checkpointed(nn.LayerNorm(64)), (3, 5, 64), [(PLAIN, 2, 2)]),
    "checkpointed_rms": (lambda: Checkpointed(nn.RMSNorm(64)), (3, 5, 64), [(PLAIN, 2, 1)]),
    "checkpointed_cohere": (lambda: Checkpointed(CohereNorm(64)), (3, 5, 64), [(PLAIN, 5, 1)]),
    "checkpointed_bit_linear": (lambda: Checkpointed(BitLinear(64)), (3, 5, 64), [(PLAIN, 3, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("name", CASES)
def test_form(name: str, dtype: torch.dtype) -> None:
    make, shape, expected = CASES[name]
    module, x = make().to(dtype), torch.randn(shape, dtype=dtype)
    dy = torch.randn_like(module(x))
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    assert all(isinstance(r, RegionRecord) for r in records), list(map(str, records))
    found = [(r.space, len(r.inner), len(r.outer)) for r in records if isinstance(r, RegionRecord)]
    assert found == expected
    stock, exact = gradients(module, x, dy, OFF), exact_gradients(module, x, dy)
    for mine, theirs, truth in zip(ours, stock, exact, strict=True):
        assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
        error, reference = (float((t.double() - truth).norm()) for t in (mine, theirs))
        # A kernel rounds at other places; a chain of matmuls adds an error of the stored dtype.
        assert error <= 1.25 * reference + torch.finfo(dtype).eps / 4 * float(truth.norm())


@pytest.mark.parametrize("name", ["layer", "cohere_heads", "adaptive", "channel_bias", "checkpointed_cohere"])
def test_gradients_are_bitwise_reproducible(name: str) -> None:
    make, shape, _ = CASES[name]
    module, x = make().to(bf16), torch.randn(shape, dtype=bf16)
    dy = torch.randn_like(module(x))
    for first, again in zip(gradients(module, x, dy, ON), gradients(module, x, dy, ON), strict=True):
        assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.LayerNorm(64, elementwise_affine=False), (3, 5, 64)),
        (lambda: nn.GroupNorm(2, 4, affine=False), (3, 4, 5, 7)),
        (lambda: nn.Linear(64, 64), (3, 5, 64)),
        (lambda: nn.Softmax(-1), (3, 5, 64)),
    ],
)
def test_what_has_no_pair_is_left_alone(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    module, x = make(), torch.randn(shape)
    with collect() as records:
        gradients(module, x, torch.randn_like(x), ON)
    assert records == []


def test_a_block_of_checkpointed_norms() -> None:
    def norm(dim: int) -> nn.Module:
        return Checkpointed(nn.RMSNorm(dim))

    module, x = Block(48, norm), torch.randn(2, 17, 48)
    dy = torch.randn_like(x)
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    for mine, truth in zip(ours, exact_gradients(module, x, dy), strict=True):
        assert float((mine - truth).norm()) <= 1e-6 * float(truth.norm())
    # Each norm recomputes its own statistics; the last region is a bias gradient on its own.
    assert [len(r.inner) for r in records if isinstance(r, RegionRecord)] == [2, 2, 2, 0]
