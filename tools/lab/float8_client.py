"""Llama-style blocks in float8 training, which scales and casts what goes into each matrix product.

A family is `RECIPE`, or `RECIPE@SEQUENCESxTOKENSxWIDTHxLAYERS`. `RECIPES` are torchao's, and need that
package. `BY_HAND` is plain PyTorch: blocks of 1x128 of activations and gradients, along rows and along
columns, and of 128x128 of weights, as in DeepSeek-V3's report (arXiv:2412.19437, section 3.3); with torch's
product of such blocks, or a custom operator, such as DeepGEMM's. A matrix product of float8 numbers runs on
the GPU only from compute capability 8.9 on, that of blocks on Hopper.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .loops import angles, heads_of, rotated

RECIPES = ("rowwise", "tensorwise", "rowwise_with_gw_hp")  # torchao's names
BY_HAND = ("blocks_of_128", "blocks_of_128_custom")
BLOCK = 128
SIZES = 4, 4096, 4096, 1  # sequences, tokens, width, layers
HEAD = 128  # columns of an attention head


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // HEAD)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, False) for _ in range(4))

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (heads_of(linear(x), self.heads) for linear in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotated(q, table), rotated(k, table), v, is_causal=True)
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

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norm1(x), table)
        return x + self.mlp(self.norm2(x))


class Blocks(nn.Module):
    """From the middle of a model: their input gets a gradient, the gradient of their output is given, and so
    are the cosines and sines of the rotary embedding, which a model computes once for all of its layers."""

    def __init__(self, sequences: int, tokens: int, width: int, layers: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(sequences, tokens, width))
        self.register_buffer("dy", torch.randn(sequences, tokens, width))
        for name, values in zip(("cos", "sin"), angles(tokens, HEAD, self.x.device), strict=True):
            self.register_buffer(name, values)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self) -> Tensor:
        x: Tensor = self.x
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        return (x.float() * self.dy).sum()


def build(family: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model and its keyword arguments. Raises ValueError for a recipe that neither list has."""
    recipe, _, sizes = family.partition("@")
    if recipe not in (*RECIPES, *BY_HAND):
        raise ValueError(f"recipe {recipe}: one of {', '.join((*RECIPES, *BY_HAND))}")
    model = Blocks(*map(int, sizes.split("x"))) if sizes else Blocks(*SIZES)
    if recipe in BY_HAND:
        return _of_blocks(model, custom=recipe != BY_HAND[0]), {}
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    return convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe)), {}


# By hand.


def scaled(blocks: Tensor, dims: int | tuple[int, int]) -> tuple[Tensor, Tensor]:
    """e4m3 of the blocks along dims, and what each block has to be multiplied by again (float32)."""
    largest = blocks.abs().amax(dims, keepdim=True).float().clamp(min=1e-12)
    data = (blocks.float() * (448 / largest)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return data, largest / 448


def along_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    data, scales = scaled(x.reshape(-1, BLOCK), 1)
    return data.view(x.shape), scales.view(x.shape[0], -1)


def along_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """Both results are of the transposed tensor."""
    return along_rows(x.t().contiguous())


def in_squares(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape[0] // BLOCK, x.shape[1] // BLOCK
    data, scales = scaled(x.view(rows, BLOCK, columns, BLOCK), (1, 3))
    return data.view(x.shape), scales.view(rows, columns)


def product(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    """a @ b.t() in bf16, of float8 (m, k) and (n, k). Scales are (m, k / 128), and (n, k / 128) or
    (n / 128, k / 128); those of one row are stored a column after the other."""
    return torch._scaled_mm(a, b.t(), a_scales, b_scales.t(), out_dtype=torch.bfloat16)


@torch.library.custom_op("mixorder_lab::product_of_blocks", mutates_args=())
def custom_product(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    if a.device.type == "cpu":  # as the GPU computes it
        high = b_scales.repeat_interleave(b.shape[0] // b_scales.shape[0], 0).repeat_interleave(BLOCK, 1)
        wide = a_scales.repeat_interleave(BLOCK, 1)
        return ((a.float() * wide) @ (b.float() * high).t()).bfloat16()
    return product(a, a_scales, b, b_scales)


@custom_product.register_fake
def _(a: Tensor, a_scales: Tensor, b: Tensor, b_scales: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[0], dtype=torch.bfloat16)


def _by_column(scales: Tensor) -> Tensor:
    return scales.t().contiguous().t()


class OfBlocks(torch.autograd.Function):
    """A product with a weight: x is kept in float8 alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, custom: bool) -> Tensor:
        ctx.product = custom_product if custom else product
        data, scales = along_rows(x)
        square, its_scales = in_squares(weight)
        ctx.save_for_backward(*along_columns(x), square, its_scales)
        y: Tensor = ctx.product(data, _by_column(scales), square, its_scales)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        transposed, transposed_scales, square, its_scales = ctx.saved_tensors
        data, scales = along_rows(dy)
        dx = ctx.product(data, _by_column(scales), square.t().contiguous(), its_scales.t().contiguous())
        data, scales = along_columns(dy)
        return dx, ctx.product(data, _by_column(scales), transposed, _by_column(transposed_scales)), None


class BlockLinear(nn.Linear):
    """Without a bias. `custom`: whether its products are a custom operator."""

    custom: bool

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = OfBlocks.apply(x.flatten(0, -2), self.weight, self.custom)
        return y.unflatten(0, x.shape[:-1])


def _of_blocks(model: nn.Module, custom: bool) -> nn.Module:
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__, module.custom = BlockLinear, custom
    return model
