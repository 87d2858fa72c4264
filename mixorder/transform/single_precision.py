"""Divide in float32 where the graph divides in float64 and rounds the quotient to float32.

The factor of a block in FP8 formats is often `(448 / amax.double().clamp(min=1e-12)).float()`. On a GPU a
division in float64 takes some ten times the instructions of one in float32, in each thread that has elements
of the block. The results are the same, bit by bit: see `_exact`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import struct

import torch

from ..ir.program import Compute, Ref, Statement
from ..ir.rewriting import Scope, Steps, is_op


@dataclasses.dataclass(frozen=True)
class _Quotient:
    """`dividend / max(divisor, least)` in float64, of a float32 divisor. `at_least`: the quotient, rounded to
    float32, where the divisor is less than `least`."""

    dividend: float
    divisor: Ref
    least: float | None = None
    at_least: float = 0.0


def divide_in_float32(stmt: Statement, scope: Scope) -> list[Compute]:
    """A quotient of float32 in place of one of float64 that is rounded to float32."""
    if not is_op(stmt, "to_dtype", torch.float32) or (quotient := _rounded_quotient(stmt, scope)) is None:
        return []
    return _in_float32(stmt.name, quotient)


def _rounded_quotient(stmt: Compute, scope: Scope) -> _Quotient | None:
    """The quotient in float64 that a statement rounds to float32."""
    value = scope.values[stmt.args[0].name]
    if is_op(value, "truediv", torch.float64):
        return _quotient(scope.constant(value.args[0]), value.args[1], scope, twice=False)
    if is_op(value, "mul", torch.float64):
        for factor, dividend in (value.args, value.args[::-1]):
            inverse = scope.values[factor.name]
            if is_op(inverse, "reciprocal", torch.float64):
                return _quotient(scope.constant(dividend), inverse.args[0], scope, twice=True)
    return None


def _quotient(dividend: float | None, divisor: Ref, scope: Scope, twice: bool) -> _Quotient | None:
    """`twice`: the reciprocal is rounded, and then its product with the dividend."""
    if dividend is None or not _exact(dividend):
        return None
    least, value = None, scope.values[divisor.name]
    if is_op(value, "maximum", torch.float64):
        bound, operand = value.args
        if (least := scope.constant(bound)) is None:
            bound, operand = operand, bound
            least = scope.constant(bound)
        if least is None or not 0 < least < math.inf:
            return None
        value = scope.values[operand.name]
    if not is_op(value, "to_dtype", torch.float64) or scope.values[value.args[0].name].dtype != torch.float32:
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


def _in_float32(name: str, quotient: _Quotient) -> list[Compute]:
    step = Steps(name, torch.float32)
    dividend = step.constant("dividend", quotient.dividend)
    ratio = step("" if quotient.least is None else "quotient", "div_rn", dividend, quotient.divisor)
    if quotient.least is not None:
        smallest = step.constant("smallest", _from(quotient.least))
        below = step("below", "lt", quotient.divisor, smallest, dtype=torch.bool)
        step("", "where", below, step.constant("least", quotient.at_least), ratio)
    return step.made


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
