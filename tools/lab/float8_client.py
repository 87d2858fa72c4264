"""Llama-style blocks in torchao's float8 training, which scales and casts what goes into each matrix product.

A family is `RECIPE`, or `RECIPE@SEQUENCESxTOKENSxWIDTHxLAYERS`. Needs the package torchao; a matrix product
of float8 numbers runs on the GPU only from compute capability 8.9 on.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .loops import heads_of, rotated

RECIPES = ("rowwise", "tensorwise", "rowwise_with_gw_hp")  # torchao's names
SIZES = 4, 4096, 4096, 1  # sequences, tokens, width, layers
HEAD = 128  # columns of an attention head


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(linear(x), self.heads) for linear in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class SwiGlu(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, False), nn.Linear(width, inner, False)
        self.down = nn.Linear(inner, width, False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Llama 3's: the MLP is 3.5 times as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width), Attention(width)
        self.norm2, self.mlp = nn.RMSNorm(width), SwiGlu(width, width * 7 // 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Blocks(nn.Module):
    """From the middle of a model: their input gets a gradient, and the gradient of their output is given."""

    def __init__(self, sequences: int, tokens: int, width: int, layers: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(sequences, tokens, width))
        self.register_buffer("dy", torch.randn(sequences, tokens, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self) -> Tensor:
        x: Tensor = self.x
        for block in self.blocks:
            x = block(x)
        return (x.float() * self.dy).sum()


def build(family: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model and its keyword arguments. Raises ValueError for a recipe that torchao does not know."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    recipe, _, sizes = family.partition("@")
    if recipe not in RECIPES:
        raise ValueError(f"recipe {recipe}: one of {', '.join(RECIPES)}")
    model = Blocks(*map(int, sizes.split("x"))) if sizes else Blocks(*SIZES)
    return convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe)), {}
