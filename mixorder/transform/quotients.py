"""Divide by a block's value with its reciprocal, which is computed once per block.

CUDA's division of float32 has some 17 instructions and a call, in each thread and for each element.
Tile-local programs need its bits, which are eager's. With `r` as the reciprocal and `q` as the product, both
rounded, the remainder `s q - a` is exact, and `q - r (s q - a)` is rounded as the quotient is. The 23,259,273
pairs of mantissas were tried whose quotient is nearer than 2 / s units to the middle between two float32;
further from it, the error of the correction is too small. Numbers of bfloat16 need none if the quotient is
rounded to bfloat16, whose middles are further away.

That holds for divisors of a known range (`_bounds`) and, with a correction, for dividends from 2**-102 on. A
smaller one gives a quotient that its users cannot tell from zero (`_is_coarse`). A divisor of another range
is first multiplied by a power of two, which brings it to 1/2 or above, and below 1, or near that; so are its
dividends, by one product more for each. These overflow only where the quotient does, and are inexact only
where it is below 2**-101. A quotient of a block's own values is computed so where elements have the same
divisor. This is for GPUs of NVIDIA.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from ..ir.program import Compute, Reduce, Ref, Statement, operands
from ..ir.rewriting import Scope, Steps, is_op
from .half_precision import WHOLE, halves_of
from .powers_of_two import INFINITE, MANTISSA_BITS

INVERSE = "inverse_in_range"
CORRECTED = "corrected_quotient"  # of a dividend, a divisor and its reciprocal
LEAST, MOST = 2.0**-60, 2.0**126  # of a divisor, so that no reciprocal is infinite or subnormal
_LARGEST = torch.finfo(torch.float32).max
_INEXACT = 2.0**-42  # quotients below this may have other bits
_MOST_TOLD = 2.0**20  # 2**106 times this may be infinite where the quotient is a large number

_FAR = 2.0**-16  # a sum with a number from here on is that number, beside one below `_INEXACT`
_HUGE = 2.0**100  # from here on, a quotient may be infinite that is none
# Of a number near zero one near zero, with its sign or the other; of a huge number any, but always the same.
_NEAR = frozenset({"abs", "neg", "round", "trunc", "maximum", "minimum", "where"})
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})

_Bounds = tuple[float, float]


def divide_by_blocks(stmt: Statement, scope: Scope) -> list[Statement]:
    """In a tile-local program, a product and a correction in place of a quotient of float32. Another quotient
    is stated as what it is there: `div_rn`."""
    if not scope.program.tile_local or not is_op(stmt, "truediv", torch.float32):
        return []
    name, statements = stmt.args[1].name, list[Statement]()
    users = (s for s in scope.users[name] if is_op(s, "truediv", torch.float32) and s.args[1].name == name)
    if any(scope.deps[name] < scope.deps[user.name] for user in users):
        bounds = _bounds(name, scope)  # in which no reciprocal is infinite or subnormal
        in_range = bounds is not None and bounds[0] >= LEAST and bounds[1] <= MOST
        statements += [] if name in scope.made else _of_divisor(name, in_range)
        scope.made.add(name)
        if quotient := _quotient(stmt, in_range, scope):
            return [*statements, *quotient]
    return [*statements, dataclasses.replace(stmt, op="div_rn")]


def _of_divisor(name: str, in_range: bool) -> list[Compute]:
    """What is computed once per block: the divisor's reciprocal. Before that, if it is not in range, the
    power of two that it and its dividends are multiplied by. The exponent of the power is 126 less the
    divisor's, but -126 at least, so that it is no subnormal number. It has the divisor's sign, since a
    correction by a negative divisor would lose that of a zero. A zero, infinity or NaN stays what it is."""
    i32, f32 = torch.int32, torch.float32
    step, scaled = Steps(name, i32), Ref(name)
    if not in_range:
        bits = step("bits", "to_dtype_bitcast", Ref(name), i32, f32)
        exponent = step("exponent", "bitwise_and", bits, step.constant("infinite", INFINITE))
        less = step("less", "sub", step.constant("most", 253 << MANTISSA_BITS), exponent)
        normal = step("normal", "maximum", less, step.constant("least", 1 << MANTISSA_BITS))
        sign = step("sign", "bitwise_and", bits, step.constant("negative", -(2**31)))
        signed = step("signed", "bitwise_or", normal, sign)
        power = step("power", "to_dtype_bitcast", signed, f32, i32, dtype=f32)
        scaled = step("scaled", "mul", Ref(name), power, dtype=f32)
    step("inverse", INVERSE, scaled, dtype=f32)
    return step.made


def _quotient(stmt: Compute, in_range: bool, scope: Scope) -> list[Compute]:
    """A quotient by its divisor's reciprocal; empty where that may have other bits."""
    halves = all(halves_of(arg.name, scope) == {torch.bfloat16} for arg in stmt.args)
    rounded = halves and all(is_op(user, "to_dtype", torch.bfloat16) for user in scope.users[stmt.name])
    if not (rounded and in_range) and not _is_coarse(stmt.name, scope):
        return []
    (dividend, divisor), statements = stmt.args, list[Compute]()
    inverse = Ref(f"{divisor.name}.inverse")
    if not in_range:
        power = Ref(f"{divisor.name}.power")
        statements = [Compute(f"{stmt.name}.scaled", "mul", (dividend, power), (), stmt.dtype)]
        dividend, divisor = Ref(statements[0].name), Ref(f"{divisor.name}.scaled")
    if rounded:
        return [*statements, dataclasses.replace(stmt, op="mul", args=(dividend, inverse))]
    return [*statements, dataclasses.replace(stmt, op=CORRECTED, args=(dividend, divisor, inverse))]


def _is_coarse(name: str, scope: Scope) -> bool:
    """Whether nothing tells an inexact quotient from zero, or a huge one from infinity: what is computed from
    it is cast to dtypes, added to numbers or compared with numbers that are the same for both."""
    values = [name]
    for value in values:
        for user in scope.users[value]:
            if not isinstance(user, Compute):
                return False
            if not _ends(user, value, scope):
                if not _passes(user, value, scope):
                    return False
                values += [user.name] if user.name not in values else []
    return True


def _ends(user: Compute, name: str, scope: Scope) -> bool:
    """Whether a statement gives the same for a number near zero as for zero, and for huge ones."""
    if user.op in ("to_dtype", "isnan"):
        return user.op == "isnan" or _least(user.dtype) > _INEXACT
    numbers = [scope.constant(arg) for arg in user.args if arg != Ref(name)]
    if len(numbers) != 1 or numbers[0] is None:
        return False
    least = _INEXACT if user.op in _COMPARISONS else _FAR if user.op in ("add", "sub") else math.inf
    return least <= abs(numbers[0]) <= _HUGE


def _passes(user: Compute, name: str, scope: Scope) -> bool:
    """Whether a statement gives numbers near zero for such, unless it gives the same as for zero."""
    if user.op in ("add", "sub"):
        return all(arg == Ref(name) or _is_whole(arg, scope) for arg in user.args)
    if user.op == "to_dtype":
        return user.dtype.is_floating_point and user.dtype.itemsize <= 4  # sums in float64 have more bits
    return user.op in _NEAR


def _is_whole(arg: Ref, scope: Scope) -> bool:
    """Whether a value is always a whole number, infinite or NaN."""
    stmt, number = scope.values[arg.name], scope.constant(arg)
    if number is not None:
        return number % 1 == 0
    if not isinstance(stmt, Compute) or stmt.op in WHOLE:
        return isinstance(stmt, Compute)
    if stmt.op == "to_dtype" and not scope.values[stmt.args[0].name].dtype.is_floating_point:
        return True
    refs = (Ref(operand) for operand in operands(stmt))
    return stmt.op in ("to_dtype", "neg", "maximum", "minimum") and all(_is_whole(ref, scope) for ref in refs)


def _least(dtype: torch.dtype) -> float:
    """Below this, a cast to a dtype gives zero; 0 for dtypes that tell huge numbers from infinity."""
    if dtype == torch.bool:
        return 0.0
    if not dtype.is_floating_point:
        return 1.0
    limits = torch.finfo(dtype)
    return limits.smallest_normal * limits.eps / 2 if limits.max < _MOST_TOLD else 0.0


def _bounds(name: str, scope: Scope) -> _Bounds | None:
    """The least positive number and the largest finite one that a value may be, if it is never negative."""
    stmt = scope.values[name]
    if isinstance(stmt, Reduce):
        return _bounds(stmt.value.name, scope) if stmt.kind.selects else None
    if not isinstance(stmt, Compute):
        return None
    if stmt.op == "constant":
        number = float(stmt.args[0])
        return (number, number) if 0 < number < math.inf else None
    if stmt.op == "abs":
        return _of_numbers(*(halves_of(stmt.args[0].name, scope) or {stmt.dtype}))
    bounds = [_bounds(operand, scope) for operand in operands(stmt)]
    known = [pair for pair in bounds if pair is not None]
    lows, highs = [low for low, _ in known], [high for _, high in known]
    every = bool(known) and len(known) == len(bounds)
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
    return min(limit.smallest_normal * limit.eps for limit in limits), max(limit.max for limit in limits)
