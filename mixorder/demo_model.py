"""The model that the demo trains: a stack of pre-norm transformer blocks with a choice of norm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD_DIM = 64


class HuggingFaceRMSNorm(nn.Module):
    """RMSNorm as the Hugging Face models write it: float32 inside, cast back, then the weight."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Not plain float32: the float64 reference must not be rounded here.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


NORMS: dict[str, type[nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "hf": HuggingFaceRMSNorm,
}


class Attention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.heads = _num_heads(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, dim = x.shape
        shape = (batch, seq, 3, self.heads, dim // self.heads)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, seq, dim))


class Block(nn.Module):
    def __init__(self, dim: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(dim), norm(dim)
        self.attention = Attention(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """`layers` blocks and a final norm; parameters are drawn from a fixed seed."""

    def __init__(self, layers: int, dim: int, norm: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(Block(dim, NORMS[norm]) for _ in range(layers)))
        self.norm = NORMS[norm](dim)
        kinds: Any = tuple(NORMS.values())
        with torch.no_grad():
            # Weights of one and biases of zero would hide an error in a norm's affine part.
            for module in self.modules():
                if isinstance(module, kinds):
                    for parameter in module.parameters():
                        parameter.add_(0.1 * torch.randn_like(parameter))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(x))


def _num_heads(dim: int) -> int:
    """The largest number of heads that divides `dim` and makes none narrower than `HEAD_DIM`."""
    most = max(1, dim // HEAD_DIM)
    return next(n for n in range(most, 0, -1) if dim % n == 0)


def example(
    layers: int, shape: tuple[int, int, int], norm: str, dtype: str, device: str
) -> tuple[nn.Module, tuple[Tensor], dict[str, Any]]:
    """The module and its input, as a factory of the commands gives them."""
    place = {"device": device, "dtype": getattr(torch, dtype)}
    module = Transformer(layers, shape[-1], norm).to(**place)
    return module, (torch.randn(shape).to(**place).requires_grad_(),), {}
