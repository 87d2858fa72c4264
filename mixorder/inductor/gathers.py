"""Loops for operators whose lowering in Inductor may write a tensor: each element is read where it is needed.

Tensors are `TensorBox`es that are never realized in memory. `ops.masked` restricts the loads of a part to the
iterations inside that part: elsewhere its index is out of range.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor.ir import Pointwise, TensorBox
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import ops

aten = torch.ops.aten


def cat(tensors: Sequence[TensorBox], dim: int = 0) -> TensorBox:
    """The tensors one after the other along `dim`, in their common dtype."""
    dtype = functools.reduce(torch.promote_types, (tensor.get_dtype() for tensor in tensors))
    cast = lowerings[torch.ops.prims.convert_element_type.default]
    loaders = [cast(tensor, dtype).make_loader() for tensor in tensors]
    size = list(tensors[0].get_size())
    dim %= len(size)
    ends = list(itertools.accumulate(tensor.get_size()[dim] for tensor in tensors))
    starts = [sympy.S.Zero, *ends[:-1]]
    size[dim] = ends[-1]

    def inner_fn(index: Sequence[sympy.Expr]) -> Any:
        value = None
        at = ops.index_expr(index[dim], torch.int64)
        for load, start, end in reversed(list(zip(loaders, starts, ends, strict=True))):
            place = [*index[:dim], index[dim] - start, *index[dim + 1 :]]
            before_end = ops.lt(at, _number(end))
            after_start = ops.ge(at, _number(start))
            if value is None:
                value = ops.masked(after_start, functools.partial(load, place), 0)
            else:
                inside = before_end if start == 0 else ops.and_(after_start, before_end)
                value = ops.where(before_end, ops.masked(inside, functools.partial(load, place), 0), value)
        return value

    return _loop(tensors[0], dtype, inner_fn, size)


def pad(x: TensorBox, padding: Sequence[Any], value: float = 0) -> TensorBox:
    """`x` with `padding` = (before, after) of the last dim, then of the one before it, and so on."""
    load, size = x.make_loader(), list(x.get_size())
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    amounts = [(0, 0)] * (len(size) - len(pairs)) + pairs[::-1]

    def inner_fn(index: Sequence[sympy.Expr]) -> Any:
        place = [i - before for i, (before, _) in zip(index, amounts, strict=True)]
        checks = []
        for i, n, (before, after) in zip(place, size, amounts, strict=True):
            if before != 0:
                checks.append(ops.ge(ops.index_expr(i, torch.int64), _number(0)))
            if after != 0:
                checks.append(ops.lt(ops.index_expr(i, torch.int64), _number(n)))
        if not checks:
            return load(place)
        return ops.masked(functools.reduce(ops.and_, checks), functools.partial(load, place), value)

    sizes = [n + before + after for n, (before, after) in zip(size, amounts, strict=True)]
    return _loop(x, x.get_dtype(), inner_fn, sizes)


def select_scatter(x: TensorBox, src: TensorBox, dim: int, index: int) -> TensorBox:
    """As a slice of size one: Inductor's lowering of that reads `src` only inside the slice."""
    size = x.get_size()
    dim %= len(size)
    start = index if index >= 0 else index + size[dim]
    piece = lowerings[aten.unsqueeze.default](src, dim)
    return lowerings[aten.slice_scatter.default](x, piece, dim, start, start + 1)


def masked_write(
    x: TensorBox, indices: Sequence[TensorBox], value: TensorBox, accumulate: bool = False
) -> TensorBox:
    """`x` with `value` where a mask of the shape of `x` is true."""
    (mask,) = indices
    chosen: TensorBox = lowerings[aten.where.self](mask, value, x)
    return chosen


LOWERINGS: dict[object, Callable[..., TensorBox]] = {
    aten.cat.default: cat,
    aten.constant_pad_nd.default: pad,
    aten.select_scatter.default: select_scatter,
    aten.index_put.default: masked_write,
}


def _number(n: Any) -> Any:
    return ops.constant(int(n), torch.int64) if sympy.sympify(n).is_number else ops.index_expr(n, torch.int64)


def _loop(like: TensorBox, dtype: torch.dtype, inner_fn: Callable[..., Any], size: list[Any]) -> TensorBox:
    return Pointwise.create(
        device=like.get_device(), dtype=dtype, inner_fn=inner_fn, ranges=[sympy.sympify(n) for n in size]
    )
