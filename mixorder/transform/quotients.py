"""Divide by a block's value with its reciprocal, which is computed once per block.

CUDA's division of float32 has some 17 instructions and a call, in each thread and for each element. Blocked
programs need its bits, which are eager's. With `r` as the reciprocal and `q` as the product, both rounded,
the remainder `s q - a` is exact, and `q - r (s q - a)` is rounded as the quotient is. The 23,259,273 pairs of
mantissas were tried whose quotient is nearer than 2 / s units to the middle between two float32; further from
it, the error of the correction is too small. Numbers of bfloat16 need no correction if the quotient is
rounded to bfloat16, whose middles are further away.

That holds for divisors of a known range (`_bounds`) and, with a correction, for dividends from 2**-102 on. A
smaller one gives a quotient that its users cannot tell from zero (`_is_coarse`). A divisor of another range
is first multiplied by a power of two, which brings it to 1/2 or above, and below 1, or near that; so are its
dividends, by one product more for each. These overflow only where the quotient does, and are inexact only
where it is below 2**-101. Takes a program, and returns one for GPUs of NVIDIA.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch

from ..ir.program import Compute, LoopProgram, Nest, Reduce, Ref, Statement, Value, live, operands
from .half_precision import halves_of

INVERSE = "inverse_in_range"
CORRECTED = "corrected_quotient"  # of a dividend, a divisor and its reciprocal
LEAST, MOST = 2.0**-60, 2.0**126  # of a divisor, so that no reciprocal is infinite or subnormal
_LARGEST = torch.finfo(torch.float32).max
_MANTISSA_BITS = 23
_INFINITE = 255 << _MANTISSA_BITS  # the bits of an infinite float32
_INEXACT = 2.0**-42  # quotients below this may have other bits
_MOST_TOLD = 2.0**20  # 2**106 times this may be infinite where the quotient is a large number

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_ROUNDING = frozenset({"round", "trunc"})
_SELECTING = frozenset({"maximum", "minimum", "abs", "neg"})

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
    known = dict[str, _Divisor]()
    for stmt in nest.body:
        if not (isinstance(stmt, Compute) and stmt.op == "truediv" and stmt.dtype == torch.float32):
            body.append(stmt)
            continue
        divisor = stmt.args[1].name
        if deps[divisor] < deps[stmt.name] and divisor not in known:
            known[divisor] = _Divisor.of(divisor, program, values)
            body += known[divisor].computed()
        found = _quotient(stmt, known[divisor], program, values, users) if divisor in known else []
        body += found or [dataclasses.replace(stmt, op="div_rn")]
    return dataclasses.replace(nest, body=live(body))


@dataclasses.dataclass(frozen=True)
class _Divisor:
    """A block's value. `in_range`: whether no reciprocal of it is infinite or subnormal."""

    name: str
    in_range: bool

    @classmethod
    def of(cls, name: str, program: LoopProgram, values: _Values) -> _Divisor:
        bounds = _bounds(name, program, values)
        return cls(name, bounds is not None and bounds[0] >= LEAST and bounds[1] <= MOST)

    @property
    def scaled(self) -> Ref:
        return Ref(self.name if self.in_range else f"{self.name}.scaled")

    @property
    def inverse(self) -> Ref:
        return Ref(f"{self.name}.inverse")

    @property
    def power(self) -> Ref:
        """The power of two that the divisor and its dividends are multiplied by."""
        return Ref(f"{self.name}.power")

    def computed(self) -> list[Compute]:
        """What is computed once per block. The exponent of the power is 126 less the divisor's, but -126 at
        least, so that it is no subnormal number. It has the divisor's sign, since a correction by a negative
        divisor would lose that of a zero. A zero, infinity or NaN stays what it is."""
        i32, f32 = torch.int32, torch.float32

        def value(part: str, op: str, *args: object, dtype: torch.dtype = i32) -> Compute:
            return Compute(f"{self.name}.{part}", op, args, (), dtype)

        def part(name: str) -> Ref:
            return Ref(f"{self.name}.{name}")

        inverse = value("inverse", INVERSE, self.scaled, dtype=f32)
        if self.in_range:
            return [inverse]
        return [
            value("bits", "to_dtype_bitcast", Ref(self.name), i32, f32),
            value("infinite", "constant", _INFINITE, i32),
            value("exponent", "bitwise_and", part("bits"), part("infinite")),
            value("most", "constant", 253 << _MANTISSA_BITS, i32),
            value("less", "sub", part("most"), part("exponent")),
            value("least", "constant", 1 << _MANTISSA_BITS, i32),
            value("normal", "maximum", part("less"), part("least")),
            value("negative", "constant", -(2**31), i32),
            value("sign", "bitwise_and", part("bits"), part("negative")),
            value("signed", "bitwise_or", part("normal"), part("sign")),
            value("power", "to_dtype_bitcast", part("signed"), f32, i32, dtype=f32),
            value("scaled", "mul", Ref(self.name), self.power, dtype=f32),
            inverse,
        ]


def _quotient(
    stmt: Compute, divisor: _Divisor, program: LoopProgram, values: _Values, users: _Users
) -> list[Compute]:
    """A quotient by its divisor's reciprocal; empty where that may have other bits."""
    halves = all(halves_of(one.name, program, values) == {torch.bfloat16} for one in stmt.args)
    rounded = halves and all(map(_rounds, users.get(stmt.name, ())))
    if not (rounded and divisor.in_range) and not _is_coarse(stmt.name, users, values):
        return []
    found, dividend = list[Compute](), stmt.args[0]
    if not divisor.in_range:
        found = [Compute(f"{stmt.name}.scaled", "mul", (dividend, divisor.power), (), stmt.dtype)]
        dividend = Ref(found[0].name)
    if rounded:
        return [*found, dataclasses.replace(stmt, op="mul", args=(dividend, divisor.inverse))]
    args = (dividend, divisor.scaled, divisor.inverse)
    return [*found, dataclasses.replace(stmt, op=CORRECTED, args=args)]


def _rounds(user: Statement) -> bool:
    return isinstance(user, Compute) and user.op == "to_dtype" and user.dtype == torch.bfloat16


def _is_coarse(name: str, users: _Users, values: _Values, below: float = _INEXACT) -> bool:
    """Whether nothing that a value is used for can tell numbers `below` a bound from zero, nor the largest
    ones from infinity."""
    return all(
        isinstance(user, Compute) and _forgets(user, name, users, values, below) for user in users[name]
    )


def _forgets(user: Compute, name: str, users: _Users, values: _Values, below: float) -> bool:
    if user.op == "isnan" or (user.op == "to_dtype" and below < _least(user.dtype)):
        return True
    other = _number(user, name, values)
    if user.op in _COMPARISONS:
        return below < other
    if user.op in _ROUNDING or (user.op in ("add", "sub") and below < 2.0**-26 * other):
        below = 0.0  # all of them are rounded to one number
    elif user.op == "mul" and other >= 1:  # the largest stay so
        below *= other
    elif not (_selects(user, name) or (user.op in ("floor", "ceil") and not below)):
        return False
    return _is_coarse(user.name, users, values, below)


def _selects(user: Compute, name: str) -> bool:
    """Whether the result of an op is an operand, but for its sign and a cast."""
    if user.op == "to_dtype":
        return user.dtype.is_floating_point
    return user.op in _SELECTING or (user.op == "where" and user.args[0] != Ref(name))


def _least(dtype: torch.dtype) -> float:
    """Below this, a cast to a dtype gives zero; 0 for dtypes with the range of float32."""
    if dtype == torch.bool:
        return 0.0
    if not dtype.is_floating_point:
        return 1.0
    limits = torch.finfo(dtype)
    return limits.smallest_normal * limits.eps / 2 if limits.max < _MOST_TOLD else 0.0


def _number(user: Compute, name: str, values: _Values) -> float:
    """The magnitude of an op's other operand, if that is a number that is not large; otherwise 0."""
    others = [arg for arg in user.args if arg != Ref(name)]
    stmt = values[others[0].name] if len(others) == 1 and isinstance(others[0], Ref) else None
    if not isinstance(stmt, Compute) or stmt.op != "constant":
        return 0.0
    number = abs(float(stmt.args[0]))
    return number if number < _MOST_TOLD else 0.0


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
