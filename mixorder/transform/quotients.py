"""Divide by a block's value with its reciprocal, which is computed once per block.

CUDA's division of float32 has some 17 instructions and a call, in each thread and for each element. Blocked
programs need its bits, which are eager's. With `r` as the reciprocal and `q` as the product, both rounded,
the remainder `s q - a` is exact, and `q - r (s q - a)` is rounded as the quotient is. The 23,259,273 pairs of
mantissas were tried whose quotient is nearer than 2 / s units to the middle between two float32; further from
it, the error of the correction is too small. Numbers of bfloat16 need no correction if the quotient is
rounded to bfloat16, whose middles are further away.

That holds for divisors of a known range (`_bounds`) and, with a correction, for dividends from 2**-102 on. A
smaller one gives a quotient that its users cannot tell from zero (`_is_coarse`). Takes a program, and returns
one for GPUs of NVIDIA.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import torch

from ..ir.program import Compute, LoopProgram, Nest, Reduce, Ref, Statement, Value, live, operands
from .half_precision import halves_of

INVERSE = "inverse_in_range"
CORRECTED = "corrected_quotient"  # of a dividend, a finite divisor and its reciprocal
LEAST, MOST = 2.0**-80, 2.0**126  # of a divisor, so that no reciprocal is infinite or subnormal
_LARGEST = torch.finfo(torch.float32).max

_Users = Mapping[str, Sequence[Statement]]
_Values = Mapping[str, Value]
_Bounds = tuple[float, float]


def divide_by_blocks(program: LoopProgram) -> LoopProgram:
    """A blocked program with products and corrections in place of quotients of float32. The other quotients
    are stated as what they are there: `div_rn`."""
    if not program.blocked:
        return program
    return dataclasses.replace(program, nests=tuple(_of_nest(program, nest) for nest in program.nests))


def _of_nest(program: LoopProgram, nest: Nest) -> Nest:
    deps = nest.dependence()
    values = {s.name: s for s in nest.statements if isinstance(s, Value)}
    users: dict[str, list[Statement]] = {}
    for stmt in nest.statements:
        for name in operands(stmt):
            users.setdefault(name, []).append(stmt)
    body: list[Statement] = []
    known = set[str]()  # divisors whose reciprocals are computed
    for stmt in nest.body:
        if not (isinstance(stmt, Compute) and stmt.op == "truediv" and stmt.dtype == torch.float32):
            body.append(stmt)
            continue
        divisor = stmt.args[1]
        once = deps[divisor.name] < deps[stmt.name]
        found = _quotient(stmt, program, values, users) if once else None
        if found is not None and divisor.name not in known:
            known.add(divisor.name)
            body += _of_divisor(divisor)
        body.append(found or dataclasses.replace(stmt, op="div_rn"))
    return dataclasses.replace(nest, body=live(body))


def _quotient(stmt: Compute, program: LoopProgram, values: _Values, users: _Users) -> Compute | None:
    """A quotient by its divisor's reciprocal; None where that may have other bits."""
    dividend, divisor = stmt.args
    bounds = _bounds(divisor.name, program, values)
    if bounds is None or bounds[0] < LEAST or bounds[1] > MOST:
        return None
    inverse, finite = Ref(f"{divisor.name}.inverse"), Ref(f"{divisor.name}.finite")
    halves = all(halves_of(one.name, program, values) == {torch.bfloat16} for one in stmt.args)
    if halves and all(map(_rounds, users.get(stmt.name, ()))):
        return dataclasses.replace(stmt, op="mul", args=(dividend, inverse))
    if not _is_coarse(stmt.name, users):
        return None
    return dataclasses.replace(stmt, op=CORRECTED, args=(dividend, finite, inverse))


def _rounds(user: Statement) -> bool:
    return isinstance(user, Compute) and user.op == "to_dtype" and user.dtype == torch.bfloat16


def _of_divisor(divisor: Ref) -> list[Compute]:
    """The reciprocal; and the divisor, or the largest number in place of infinity."""
    inverse, largest, finite = (f"{divisor.name}.{part}" for part in ("inverse", "largest", "finite"))
    f32 = torch.float32
    return [
        Compute(inverse, INVERSE, (divisor,), (), f32),
        Compute(largest, "constant", (_LARGEST, f32), (), f32),
        Compute(finite, "minimum", (divisor, Ref(largest)), (), f32),
    ]


def _is_coarse(name: str, users: _Users) -> bool:
    """Whether a value is only cast to float8, whose numbers are no smaller than 2**-16, by way of half
    precision or bounds too."""
    return all(_is_cast(user) or (_leads_on(user) and _is_coarse(user.name, users)) for user in users[name])


def _is_cast(user: Statement) -> bool:
    """Whether a statement casts to float8."""
    if not (isinstance(user, Compute) and user.op == "to_dtype"):
        return False
    return user.dtype.is_floating_point and user.dtype.itemsize == 1


def _leads_on(user: Statement) -> TypeGuard[Compute]:
    return isinstance(user, Compute) and user.op in ("to_dtype", "maximum", "minimum")


def _bounds(name: str, program: LoopProgram, values: _Values) -> _Bounds | None:
    """The least positive number and the largest finite one that a value may be, if it is never negative."""
    stmt = values[name]
    if isinstance(stmt, Reduce):
        return _bounds(stmt.value.name, program, values) if stmt.kind.selects else None
    if not isinstance(stmt, Compute):
        return None
    if stmt.op == "constant":
        number = float(stmt.args[0])
        return (number, number) if 0 < number < math.inf else None
    own = [arg.name for arg in stmt.args if isinstance(arg, Ref)]
    if stmt.op == "abs":
        return _of_numbers(*(halves_of(own[0], program, values) or {stmt.dtype}))
    found = [_bounds(one, program, values) for one in own]
    known = [one for one in found if one is not None]
    lows, highs = [low for low, _ in known], [high for _, high in known]
    every = bool(known) and len(known) == len(found)
    if stmt.op == "maximum" and (floors := [b[0] for b in known if b[0] == b[1]]):
        return max(floors), max(highs) if every else _LARGEST
    if not every:
        return None
    if stmt.op == "mul":
        return math.prod(lows), math.prod(highs)
    if stmt.op in ("maximum", "minimum"):
        return min(lows), max(highs) if stmt.op == "maximum" else min(highs)
    if stmt.op == "to_dtype" and stmt.dtype.is_floating_point:
        least, most = _of_numbers(stmt.dtype)
        return max(lows[0], least), min(highs[0], most)
    return None


def _of_numbers(*dtypes: torch.dtype) -> _Bounds:
    """The same of all numbers of some dtypes."""
    limits = [torch.finfo(dtype) for dtype in dtypes]
    return min(one.smallest_normal * one.eps for one in limits), max(one.max for one in limits)
