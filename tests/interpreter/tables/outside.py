"""What a region cannot compute stays outside of it, and the rest of the region is fused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from graphs import f32, f64
from table import Entry, of


def scaled(x: Any, y: Any, factor: Any) -> Any:
    z = factor * (x * y).sum(-1, keepdim=True)
    return z, (z * y).sum(0)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "power": lambda x, y: x.abs() ** 2.7,
    "ldexp": lambda x, y: torch.ldexp(x, (y * 3).int()),
    "integer power": lambda x, y: (x * 4).int() ** (y * 4).int().abs(),  # by a kernel of ATen's
    "by the root of a size": lambda x, y: x / math.sqrt(x.shape[0]),
    "by a share of a size": lambda x, y: x / (x.shape[0] / 7),
}


def without_a_loop(name: str, dtype: torch.dtype, dynamic: bool) -> Entry:
    factor, dims = OPERATORS[name], (0,) * dynamic
    return Entry(
        of(lambda x, y: scaled(x, y, factor(x, y))),
        ((60, 24), (60, 24)),
        dtype,
        dims=(dims, dims),
        regions=None,
        shows=lambda *found: found,
    )


def other_axes(x: Any) -> Any:
    """The sum over two axes lies above the sum over one that a row is made of."""
    y = x * x.sum((1, 2), keepdim=True)
    return x.sum(-1), y.sum((0, 1))


def norm_over_two_axes(x: Any) -> Any:
    z = x * x.amax(-1, keepdim=True)
    z = z * torch.rsqrt(z.square().mean((1, 2), keepdim=True) + 0.1)
    return z.sum(-1), z.sum((0, 1)), z


ENTRIES: dict[str, Entry] = {
    **{
        f"{name}{' dynamic' * dynamic}": without_a_loop(name, (f32, f64)[(i + dynamic) % 2], dynamic)
        for i, name in enumerate(OPERATORS)
        for dynamic in (False, True)
        if not (dynamic and name == "by a share of a size")  # which asks for a guard
    },
    "other axes": Entry(of(other_axes), ((4, 20, 24),), regions=None, cancelled=10),
    "norm over two axes": Entry(of(norm_over_two_axes), ((4, 20, 24),), regions=None, cancelled=10),
}
