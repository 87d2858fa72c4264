"""Tensors scaled block by block along their rows and columns, as FP8 training does: plain PyTorch.

Written as torchao's reference code has it. Each case is a function of tensors (rows, cols) whose results are
scales and bytes; `tools/quantise.py` measures them, and tests compare their results with eager's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

F8 = torch.float8_e4m3fn
MOST = 448  # the largest e4m3
SPECIAL = (0.0, float("inf"), float("nan"), 1e-39)


def mx(blocks: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Exponents (uint8) of the blocks along a dim, rounded down, and e4m3 of the same shape."""
    largest = blocks.abs().amax(dim, keepdim=True).float()
    exponent = ((largest.view(torch.int32) >> 23) & 255) - 135
    biased = (exponent.clamp(-127, 128) + 127).to(torch.uint8)
    scale = (biased.int() << 23).view(torch.float32).clamp(min=2**-126)
    return biased.squeeze(dim), (blocks.float() / scale).clamp(-MOST, MOST).to(F8)


def mx_rows(x: Tensor, block: int = 32) -> tuple[Tensor, Tensor]:
    """torchao's `to_mx`."""
    scales, data = mx(x.reshape(*x.shape[:-1], -1, block), -1)
    return scales, data.reshape(x.shape)


def mx_transposed(x: Tensor, block: int = 32) -> tuple[Tensor, Tensor]:
    scales, data = mx_rows(x.t().contiguous(), block)
    return scales, data.t()


def mx_both(x: Tensor) -> tuple[Tensor, ...]:
    return *mx_rows(x), *mx_transposed(x)


def mx_in_place(x: Tensor, block: int = 32) -> tuple[Tensor, ...]:
    """The column-wise data in the order of x, as Transformer Engine has it."""
    rows, cols = x.shape
    scales, data = mx(x.view(rows // block, block, cols), 1)
    return *mx_rows(x, block), scales, data.view(rows, cols)


def e2m1(x: Tensor) -> Tensor:
    """The codes of fp4: 0, 0.5, 1, 1.5, 2, 3, 4 and 6, to the nearest, then to even, and a sign (uint8)."""
    size, code = x.abs(), torch.zeros_like(x, dtype=torch.uint8)
    for low in (0.25, 1.25, 2.5, 5.0):
        code = code + (size > low).to(torch.uint8)
    for low in (0.75, 1.75, 3.5):
        code = code + (size >= low).to(torch.uint8)
    return code | (torch.signbit(x).to(torch.uint8) << 3)


def mx4_rows(x: Tensor, block: int = 32) -> tuple[Tensor, Tensor]:
    """MXFP4: exponents of blocks (uint8), and two codes to a byte."""
    blocks = x.reshape(*x.shape[:-1], -1, block)
    largest = blocks.abs().amax(-1, keepdim=True).float()
    biased = (((largest.view(torch.int32) >> 23) & 255) - 2).clamp(min=0).to(torch.uint8)
    scale = (biased.int() << 23).view(torch.float32).clamp(min=2**-126)
    codes = e2m1(blocks.float() / scale).reshape(x.shape)
    return biased.squeeze(-1), codes[..., ::2] | (codes[..., 1::2] << 4)


def mx4_both(x: Tensor) -> tuple[Tensor, ...]:
    return *mx4_rows(x), *mx4_rows(x.t().contiguous())


def scaled(blocks: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """e4m3 of blocks along a dim, and the factor of each block, float32."""
    largest = blocks.abs().max(dim, keepdim=True).values.double().clamp(min=1e-12)
    factor = (MOST / largest).float()
    return (blocks.float() * factor).clamp(-MOST, MOST).to(F8), factor


def blocks_both(x: Tensor, block: int = 128) -> tuple[Tensor, ...]:
    """1 x 128 and, of the transposed tensor, 1 x 128: DeepSeek's activations."""
    data, factors = scaled(x.reshape(-1, block), 1)
    transposed, others = scaled(x.t().contiguous().reshape(-1, block), 1)
    shape = x.shape[1], x.shape[0]
    return (
        data.view(x.shape),
        factors.view(x.shape[0], -1),
        transposed.view(shape).t(),
        others.view(x.shape[1], -1),
    )


def blocks_in_place(x: Tensor, block: int = 128) -> tuple[Tensor, ...]:
    """1 x 128 and 128 x 1, both in the order of x."""
    rows, cols = x.shape
    data, factors = scaled(x.reshape(-1, block), 1)
    others, more = scaled(x.view(rows // block, block, cols), 1)
    return data.view(x.shape), factors.view(rows, -1), others.view(x.shape), more.squeeze(1)


def divided(blocks: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """e4m3 of blocks along the last dim, and the scale of each block, in the dtype of the blocks. A GPU also
    multiplies by a reciprocal where the scale is stated as a quotient by `MOST`; eager on a CPU divides."""
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=least) * (1 / MOST)
    return (blocks / scale).to(F8), scale


def divided_both(x: Tensor, block: int = 128, least: float = 1e-12) -> tuple[Tensor, ...]:
    """`blocks_both` as most people write it: each element is divided by its block's scale."""
    data, scales = divided(x.reshape(-1, block), least)
    transposed, others = divided(x.t().contiguous().reshape(-1, block), least)
    shape = x.shape[1], x.shape[0]
    return (
        data.view(x.shape),
        scales.view(x.shape[0], -1),
        transposed.view(shape).t(),
        others.view(shape[0], -1),
    )


def divided_in_float32(x: Tensor) -> tuple[Tensor, ...]:
    return divided_both(x.float())


def divided_by_any(x: Tensor) -> tuple[Tensor, ...]:
    """As DeepSeek's own kernel has it: a scale may be zero, or a subnormal number."""
    return divided_both(x.float(), least=0.0)


def by_any_scale(x: Tensor, factor: Tensor, other: Tensor, block: int = 128) -> tuple[Tensor, ...]:
    """Blocks along rows and columns, divided by a multiple of their largest elements: e4m3, and integers."""

    def one(blocks: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
        largest = blocks.abs().amax(-1, keepdim=True)
        quotient = blocks.float() / (largest.float() * factor)
        whole = torch.where(quotient.isnan(), 0, (quotient + 0.5).floor().clamp(-128, 127)).to(torch.int8)
        above = (torch.round(quotient) + 120).clamp(0, 250).to(torch.uint8)
        above = above + (quotient >= 0.75).to(torch.uint8)
        return quotient.clamp(-MOST, MOST).to(F8), whole, torch.where(quotient.isnan(), 0, above)

    return *one(x.reshape(-1, block), factor), *one(x.t().contiguous().reshape(-1, block), other)


def any_scales(
    rows: int, cols: int, device: str, dtype: torch.dtype = torch.bfloat16, block: int = 128
) -> list[Tensor]:
    """For `by_any_scale`: all numbers of a half precision, or some of float32, none of them above 2 in three
    rows of four; and factors from 2**-149 on, of either sign. Half of these are near 1, and a few are zero,
    infinite and NaN."""
    generator = torch.Generator(device).manual_seed(rows + cols)
    whole = torch.int16 if dtype.itemsize == 2 else torch.int32
    bits = torch.randperm(rows * cols, generator=generator, device=device) * (
        1 if dtype.itemsize == 2 else 40503
    )
    every = bits.to(whole).view(dtype).view(rows, cols)
    few = torch.arange(rows, device=device)[:, None] % 4 < 3
    x = torch.where(few & ~(every.abs() <= 2), torch.sign(every.nan_to_num()), every)
    factors = []
    for _ in range(2):
        shape = (rows * cols // block, 1)
        exponent = torch.randint(-150, 129, shape, generator=generator, device=device)
        exponent[::2] = exponent[::2] % 12 - 12
        mantissa = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
        factor = torch.ldexp(mantissa, exponent).float()
        for i, special in enumerate((0.0, -0.0, float("inf"), -float("inf"), float("nan"))):
            factor[i :: 5 + 97 * (rows > 512)][:3] = special
        factors.append(factor)
    return [x, *factors]


def squares(x: Tensor, block: int = 128) -> tuple[Tensor, ...]:
    """128 x 128: DeepSeek's weights."""
    rows, cols = x.shape
    blocks = x.view(rows // block, block, cols // block, block)
    factor = MOST / blocks.abs().amax((1, 3), keepdim=True).float().clamp(min=1e-12)
    data = (blocks.float() * factor).clamp(-MOST, MOST).to(F8)
    return data.view(rows, cols), factor.view(rows // block, cols // block)


def int8(blocks: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Symmetric int8 of blocks along a dim, and the scale of each block, in the dtype of the blocks."""
    scale = blocks.abs().amax(dim, keepdim=True) * (1 / 127)
    return torch.round(blocks / scale).to(torch.int8), scale


def uint8(blocks: Tensor, dim: int) -> tuple[Tensor, ...]:
    """uint8 with a zero point of blocks along a dim, the scales, and the zero points."""
    low, high = (one(dim, keepdim=True).float() for one in (blocks.amin, blocks.amax))
    scale = ((high - low) * (1 / 255)).clamp(min=1e-8)
    zero = torch.round(-low / scale)
    whole = (torch.round(blocks.float() / scale) + zero).clamp(0, 255)
    return whole.to(torch.uint8), scale, zero.clamp(0, 255).to(torch.uint8)


def along_rows(cast: Callable[..., tuple[Tensor, ...]], x: Tensor, block: int) -> tuple[Tensor, ...]:
    data, *small = cast(x.view(x.shape[0], -1, block), 2)
    return data.view(x.shape), *(one.squeeze(2) for one in small)


def int8_in_place(x: Tensor, block: int = 64) -> tuple[Tensor, ...]:
    data, scales = int8(x.view(-1, block, x.shape[1]), 1)
    return *along_rows(int8, x, block), data.view(x.shape), scales.squeeze(1)


def int8_both(x: Tensor, block: int = 64) -> tuple[Tensor, ...]:
    return *along_rows(int8, x, block), *along_rows(int8, x.t().contiguous(), block)


def uint8_both(x: Tensor, block: int = 64) -> tuple[Tensor, ...]:
    return *along_rows(uint8, x, block), *along_rows(uint8, x.t().contiguous(), block)


def int8_rows(x: Tensor) -> tuple[Tensor, ...]:
    """Longer blocks than a tile has, along rows alone: Inductor has one kernel for them."""
    return along_rows(int8, x, 256)


def whole(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """torchao's recipe "rowwise": a power of two for each row or column."""
    largest = x.abs().amax(dim, keepdim=True).double().clamp(min=1e-12)
    factor = torch.exp2(torch.floor(torch.log2((MOST / largest).float())))
    return (x.float() * factor).clamp(-MOST, MOST).to(F8), factor


def rowwise_both(x: Tensor) -> tuple[Tensor, ...]:
    data, factors = whole(x, -1)
    others, more = whole(x, 0)
    return data, factors, others.t().contiguous(), more


def norm_backward(x: Tensor, dy: Tensor, w: Tensor, rstd: Tensor) -> tuple[Tensor, ...]:
    """RMSNorm's backward, then mixed-order MXFP8 of dx."""
    normed, scaled_dy = x.float() * rstd, dy.float() * w.float()
    dx = (rstd * (scaled_dy - normed * (normed * scaled_dy).mean(-1, keepdim=True))).to(x.dtype)
    return *mx_both(dx), (dy.float() * normed).sum(0).to(w.dtype)


def swiglu_gradients(gate: Tensor, up: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    sigmoid = torch.sigmoid(gate.float())
    silu = gate.float() * sigmoid
    d_up = (dy.float() * silu).to(gate.dtype)
    return (dy.float() * up.float() * (sigmoid + silu * (1 - sigmoid))).to(gate.dtype), d_up


def swiglu_rowwise(gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    """A SwiGLU and its cast, by one scale for each row and each column."""
    return rowwise_both((F.silu(gate.float()) * up.float()).to(gate.dtype))


def swiglu_backward_rowwise(gate: Tensor, up: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """A SwiGLU's gradients and their casts, by one scale for each row and each column."""
    d_gate, d_up = swiglu_gradients(gate, up, dy)
    return *rowwise_both(d_gate), *rowwise_both(d_up)


def gelu_backward(x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """The gradient behind a GELU (tanh), its sum for the bias, and mixed-order MXFP8."""
    dx = torch.ops.aten.gelu_backward(dy, x, approximate="tanh")
    return *mx_both(dx), dx.sum(0)


def swiglu_backward(gate: Tensor, up: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """The mixed-order MXFP8 of the gradients of both operands of a SwiGLU, each one tensor for a product."""
    d_gate, d_up = swiglu_gradients(gate, up, dy)
    return *mx_both(d_gate), *mx_both(d_up)


def delayed(x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
    """Delayed scaling: the factor is known, and the largest element is for those of later steps."""
    data = (x.float() * factor).clamp(-MOST, MOST).to(F8)
    return data, data.t().contiguous(), x.abs().amax()


def gelu_delayed(x: Tensor, dy: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
    dx = torch.ops.aten.gelu_backward(dy, x, approximate="tanh")
    return *delayed(dx, factor), dx.sum(0)


Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A row of the table: `like` gives the shapes and dtypes of its tensors. `bar`: percent of the limit on
    an H200. `exact`: all results are to be eager's, bit by bit; else some round at other places. `tiled`:
    whether some of it ends within a tile; else it is Inductor's. `wider`: how many times as many columns as
    others it has where graphs are replayed."""

    title: str
    function: Callable[..., tuple[Tensor, ...]]
    like: Callable[[int, int], list[tuple[Shape, torch.dtype]]]
    bar: int | None = None
    exact: bool = True
    tiled: bool = True
    wider: int = 1


def tensors(count: int, factor: bool = False) -> Callable[[int, int], list[tuple[Shape, torch.dtype]]]:
    scalar = [((), torch.float32)] * factor
    return lambda rows, cols: [((rows, cols), torch.bfloat16)] * count + scalar


def of_a_norm(rows: int, cols: int) -> list[tuple[Any, torch.dtype]]:
    full = ((rows, cols), torch.bfloat16)
    return [full, full, ((cols,), torch.bfloat16), ((rows, 1), torch.float32)]


RECIPES = {
    "mx_in_place": Recipe("MXFP8 1x32 and 32x1, not transposed", mx_in_place, tensors(1), 88),
    "mx_both": Recipe("MXFP8 1x32 and 32x1, transposed", mx_both, tensors(1), 82),
    "mx_transposed": Recipe("MXFP8 32x1 alone, transposed", mx_transposed, tensors(1), 85),
    "mx4_both": Recipe("MXFP4 1x32 and 32x1, two to a byte, transposed", mx4_both, tensors(1)),
    "blocks_both": Recipe("1x128 and 128x1, transposed", blocks_both, tensors(1), 82),
    "blocks_in_place": Recipe("1x128 and 128x1, not transposed", blocks_in_place, tensors(1)),
    "divided_both": Recipe("1x128 and 128x1, transposed, divided in bf16", divided_both, tensors(1)),
    "divided_in_float32": Recipe(
        "1x128 and 128x1, transposed, divided in float32", divided_in_float32, tensors(1)
    ),
    "divided_by_any": Recipe("1x128 and 128x1, transposed, divided by any scale", divided_by_any, tensors(1)),
    "int8_in_place": Recipe("int8, 1x64 and 64x1, not transposed", int8_in_place, tensors(1), 60),
    "int8_both": Recipe("int8, 1x64 and 64x1, transposed", int8_both, tensors(1), 60),
    "uint8_both": Recipe("uint8 with zero points, 1x64 and 64x1, transposed", uint8_both, tensors(1)),
    "int8_rows": Recipe("int8, 1x256", int8_rows, tensors(1), tiled=False),
    "squares": Recipe("128x128", squares, tensors(1)),
    "rowwise_both": Recipe("rowwise along rows and columns, transposed", rowwise_both, tensors(1), 64),
    "norm_backward": Recipe(
        "RMSNorm backward, MXFP8 along rows and columns", norm_backward, of_a_norm, 80, exact=False
    ),
    "gelu_backward": Recipe(
        "dGELU(tanh), bias gradient, MXFP8 along rows and columns", gelu_backward, tensors(2), 75, exact=False
    ),
    "swiglu_backward": Recipe(
        "dSwiGLU, MXFP8 along rows and columns", swiglu_backward, tensors(3), 80, exact=False
    ),
    "delayed": Recipe("delayed scaling along rows and columns, transposed", delayed, tensors(1, factor=True)),
    "gelu_delayed": Recipe(
        "dGELU(tanh), bias gradient, delayed scaling along rows and columns",
        gelu_delayed,
        tensors(2, factor=True),
        exact=False,
    ),
    "swiglu_rowwise": Recipe(
        "SwiGLU, rowwise along rows and columns, transposed", swiglu_rowwise, tensors(2), exact=False, wider=4
    ),
    "swiglu_backward_rowwise": Recipe(
        "dSwiGLU, rowwise along rows and columns, transposed",
        swiglu_backward_rowwise,
        tensors(3),
        exact=False,
        wider=4,
    ),
}


def inputs(recipe: Recipe, rows: int, cols: int, device: str) -> list[Tensor]:
    """Random tensors of very different rows. Where results are to be exact, one block each is of zeros,
    infinities, NaN and subnormal numbers, and NaN and infinities also lie between other numbers."""
    generator = torch.Generator(device).manual_seed(rows * 1_000_003 + cols)
    found = []
    for shape, dtype in recipe.like(rows, cols):
        x = torch.randn(shape, generator=generator, device=device)
        found.append(x.to(dtype))
    if recipe.exact:
        x = found[0]
        x *= torch.exp2(torch.randint(-8, 8, (rows, 1), generator=generator, device=device)).to(x.dtype)
        for i, value in enumerate(SPECIAL):
            x[rows // 2 :, : cols // 2][32 * i : 32 * (i + 1), 32 * i : 32 * (i + 1)] = value
        x[5, 7], x[9, cols - 1], x[rows - 1, 3] = float("nan"), float("inf"), -float("inf")
    elif len(found) == 4:
        found[3] = found[3].abs() + 0.5
    return found


def different(ours: Tensor, eager: Tensor) -> int:
    """Elements that are not eager's bit by bit. One NaN is as good as another."""
    assert ours.shape == eager.shape and ours.dtype == eager.dtype, (ours.shape, ours.dtype)
    if not ours.dtype.is_floating_point:
        return int((ours != eager).sum())
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[ours.dtype.itemsize]
    same = ours.contiguous().view(whole) == eager.contiguous().view(whole)
    if ours.dtype == F8:
        nan = ours.contiguous().view(whole) & 127 == 127
        return int((~same & ~(nan & (eager.contiguous().view(whole) & 127 == 127))).sum())
    return int((~same & ~(ours.isnan() & eager.isnan())).sum())
