"""Divide in float32 where the graph divides in float64 and rounds the quotient to float32.

The factor of a block in FP8 formats is often `(448 / amax.double().clamp(min=1e-12)).float()`. On a GPU a
division in float64 takes some ten times the instructions of one in float32, in each thread that has elements
of the block. The results are the same, bit by bit: see `_exact`. Takes a program and returns one.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import struct
from collections.abc import Mapping
from typing import TypeGuard

import torch

from ..ir.program import Compute, LoopProgram, Nest, Ref, Statement, Value, live

_NAMES = ("below", "least", "smallest", "quotient", "dividend")


@dataclasses.dataclass(frozen=True)
class _Quotient:
    """`dividend / max(divisor, least)` in float64, of a float32 divisor. `at_least`: the quotient, rounded to
    float32, where the divisor is less than `least`."""

    dividend: float
    divisor: Ref
    least: float | None = None
    at_least: float = 0.0


def divide_in_float32(program: LoopProgram) -> LoopProgram:
    """The program with quotients of float32 in place of those of float64 that are rounded to float32."""
    return dataclasses.replace(program, nests=tuple(map(_of_nest, program.nests)))


def _of_nest(nest: Nest) -> Nest:
    values = {s.name: s for s in nest.statements if isinstance(s, Value)}
    body: list[Statement] = []
    for stmt in nest.body:
        if isinstance(stmt, Compute) and (quotient := _rounded_quotient(stmt, values)):
            body.extend(_in_float32(stmt.name, quotient))
        else:
            body.append(stmt)
    return dataclasses.replace(nest, body=live(body))


def _rounded_quotient(stmt: Compute, values: Mapping[str, Value]) -> _Quotient | None:
    """The quotient in float64 that a statement rounds to float32."""
    if not _is(stmt, "to_dtype", torch.float32):
        return None
    value = values[stmt.args[0].name]
    if _is(value, "truediv", torch.float64):
        return _quotient(_constant(value.args[0], values), value.args[1], values, twice=False)
    if _is(value, "mul", torch.float64):
        for one, other in (value.args, value.args[::-1]):
            inverse = values[one.name]
            if _is(inverse, "reciprocal", torch.float64):
                return _quotient(_constant(other, values), inverse.args[0], values, twice=True)
    return None


def _quotient(
    dividend: float | None, divisor: Ref, values: Mapping[str, Value], twice: bool
) -> _Quotient | None:
    """`twice`: the reciprocal is rounded, and then its product with the dividend."""
    if dividend is None or not _exact(dividend):
        return None
    least, value = None, values[divisor.name]
    if _is(value, "maximum", torch.float64):
        one, other = value.args
        if (least := _constant(one, values)) is None:
            one, other = other, one
            least = _constant(one, values)
        if least is None or not 0 < least < math.inf:
            return None
        value = values[other.name]
    if not _is(value, "to_dtype", torch.float64) or values[value.args[0].name].dtype != torch.float32:
        return None
    if least is None:
        return _Quotient(dividend, value.args[0])
    at_least = 1.0 / least * dividend if twice else dividend / least
    return _Quotient(dividend, value.args[0], least, _rounded(at_least))


def _exact(dividend: float) -> bool:
    """Whether both ways give the same float32 for every float32 divisor.

    A quotient of two float32, of 24 bits each, is no middle between two float32, as 25 bits times those of
    the divisor would be more than 24; nor within 2**-49 of one, relative to it. Two roundings to float64 move
    it by 2**-52 at most, so that it is rounded to the same float32. That holds for normal results: all are,
    if the dividend is at least 4, as divisors are less than 2**128.
    """
    return 4 <= dividend < math.inf and _rounded(dividend) == dividend


def _in_float32(name: str, quotient: _Quotient) -> list[Statement]:
    f32 = torch.float32

    def value(part: str, op: str, *args: object, dtype: torch.dtype = f32) -> Compute:
        return Compute(f"{name}.{part}" if part else name, op, args, (), dtype)

    below, least, smallest, ratio, dividend = (Ref(f"{name}.{part}") for part in _NAMES)
    constant = value("dividend", "constant", quotient.dividend, f32)
    if quotient.least is None:
        return [constant, value("", "div_rn", dividend, quotient.divisor)]
    return [
        constant,
        value("quotient", "div_rn", dividend, quotient.divisor),
        value("smallest", "constant", _from(quotient.least), f32),
        value("below", "lt", quotient.divisor, smallest, dtype=torch.bool),
        value("least", "constant", quotient.at_least, f32),
        value("", "where", below, least, ratio),
    ]


def _rounded(value: float) -> float:
    """A float64 rounded to float32."""
    return ctypes.c_float(value).value


def _from(bound: float) -> float:
    """The smallest float32 that is not less than a positive float64."""
    rounded = _rounded(bound)
    if rounded >= bound:
        return rounded
    (bits,) = struct.unpack("I", struct.pack("f", rounded))
    (following,) = struct.unpack("f", struct.pack("I", bits + 1))
    return float(following)


def _is(stmt: Statement, op: str, dtype: torch.dtype) -> TypeGuard[Compute]:
    return isinstance(stmt, Compute) and stmt.op == op and stmt.dtype == dtype


def _constant(ref: Ref, values: Mapping[str, Value]) -> float | None:
    stmt = values[ref.name]
    return stmt.args[0] if isinstance(stmt, Compute) and stmt.op == "constant" else None
