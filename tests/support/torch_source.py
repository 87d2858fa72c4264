"""The source of a function that computes an op on a sample, between reductions over rows and columns.

In: a `Unit`, and whether it is to run in float64. Out: names of its tensors, lines, results, and a namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .torch_cases import Slot, Unit


def text_of(value: Any, names: Sequence[str], constants: dict[str, Any], wide: bool, prefix: str) -> str:
    """Source of an argument; what has no literal becomes one of `constants`. In float64 if `wide`."""

    def inner(v: Any) -> str:
        return text_of(v, names, constants, wide, prefix)

    if isinstance(value, Slot):
        return names[value.index]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {inner(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        left, right = "[]" if isinstance(value, list) else "()"
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        return left + ", ".join(map(inner, value)) + comma + right
    if isinstance(value, torch.dtype):
        return "torch.float64" if wide and value.is_floating_point else str(value)
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return repr(value)
    name = f"{prefix}c{len(constants)}"
    constants[name] = value
    return name


def source(unit: Unit, prefix: str, wide: bool) -> tuple[list[str], list[str], list[str], dict[str, Any]]:
    """Names of the tensors that it takes, its lines, its results, and what it needs in its namespace."""
    p = prefix
    names = [f"{p}a{i}" for i in range(len(unit.tensors))]
    extra = [f"{p}{n}" for n in ("scale", "shift", "weight", "bias")][: len(unit.extra)]
    constants: dict[str, Any] = {}
    given = list(names)
    given[unit.main] = f"{p}x"
    parts = [text_of(a, given, constants, wide, p) for a in unit.args]
    parts += [f"{k}={text_of(v, given, constants, wide, p)}" for k, v in unit.kwargs.items()]
    lines = _before(unit, p, names[unit.main], wide)
    lines.append(f"{p}y = {p}op({', '.join(parts)})")
    after, results = _after(unit, p)
    return [*names, *extra], [*lines, *after], results, constants | {f"{p}op": unit.call}


def _outer(x: Tensor) -> tuple[int, ...]:
    return tuple(range(x.dim() - 1))


def _before(unit: Unit, p: str, a: str, wide: bool) -> list[str]:
    """What makes the op's input `x`. Behind a row's result it has the same bits in whatever order one sums.
    `f` has its values as they were, in a floating dtype."""
    cols = (unit.x.shape[-1],)
    dtype = unit.x.dtype
    kept = f"{a}" if dtype.is_floating_point else f"{a}.to(torch.float{64 if wide else 32})"
    match unit.mode:
        case "beside":
            return [f"{p}x = {a}", f"{p}f = {kept}"]
        case "layer" | "rms":
            return [f"{p}x = {a} * {p}scale + {p}shift"]
        case "through":
            normed = f"torch.nn.functional.rms_norm({a} * {p}scale + {p}shift, {cols}, {p}weight, 1e-5)"
            return [f"{p}x = {a} * torch.sigmoid({normed} + {p}bias)"]
    if dtype.is_floating_point:
        behind = f"{a} * ({p}row.to({a}.dtype) * 0.5 + 0.5)"
    else:
        behind = f"{a} & {p}row" if dtype == torch.bool else f"torch.where({p}row, {a}, 1)"
    test = f"{p}row = {p}f.amax(-1, keepdim=True) > -{p}f.amin(-1, keepdim=True)"
    cols_first = f"{p}cols = {p}f.sum({_outer(unit.x)})"
    return [f"{p}f = {kept}", cols_first, test, f"{p}x = {behind}"]


def _after(unit: Unit, p: str) -> tuple[list[str], list[str]]:
    """Lines and results beside and behind the op."""
    x, outer, cols = unit.x, _outer(unit.x), (unit.x.shape[-1],)
    leaves = [(f"{p}y{path}", t) for path, t in unit.leaves]
    match unit.mode:
        case "layer":
            norm = f"torch.nn.functional.layer_norm({p}x, {cols}, {p}weight, {p}bias, 1e-5)"
        case "rms":
            norm = f"torch.nn.functional.rms_norm({p}x, {cols}, {p}weight, 1e-5) + {p}bias"
        case "through":
            return [], [y for y, t in leaves if t.is_floating_point()]
        case "beside":
            made = [f"{p}rows = {p}f.sum(-1, keepdim=True)", f"{p}scaled = {p}f * {p}rows"]
            return made, [*(y for y, _ in leaves), f"{p}rows", f"{p}scaled", f"{p}f.sum({outer})"]
        case _:
            behind = [text for y, t in leaves for text in _behind(y, t, x, p, outer)]
            # A region grows from the first sum over rows, and Inductor orders sums as results.
            return [], [f"{p}cols", f"({p}f * {p}row).sum({outer})", *(y for y, _ in leaves), *behind]
    return [f"{p}n = {norm}"], [*(y for y, t in leaves if t.is_floating_point()), f"{p}n"]


def _behind(y: str, t: Tensor, x: Tensor, p: str, outer: tuple[int, ...]) -> Iterable[str]:
    if t.shape == x.shape:
        exact = not t.is_floating_point()
        return [f"{y}.sum(-1)", f"{y}.sum({outer})", *([f"({y} > 0).sum({outer})"] if exact else [])]
    try:
        fits = torch.broadcast_shapes(t.shape, x.shape) == x.shape
    except RuntimeError:
        fits = False
    return [f"{p}x * {y}"] if fits else []
