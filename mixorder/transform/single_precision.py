"""Divide in float32 where the graph divides in float64 and rounds the quotient to float32.

The factor of a block in FP8 formats is often `(448 / amax.double().clamp(min=1e-12)).float()`. On a GPU a
division in float64 takes some ten times the instructions of one in float32, in each thread that has elements
of the block. The results are the same, bit by bit: see `_exact`.
"""

from __future__ import annotations

import ctypes
import math
import struct

import torch

from ..ir.program import Compute, Ref, Statement
from ..ir.rewriting import Scope, Steps, is_op


def divide_in_float32(stmt: Statement, scope: Scope) -> list[Compute]:
    """A quotient of float32 in place of one of float64 that is rounded to float32."""
    if not is_op(stmt, "to_dtype", torch.float32):
        return []
    value = scope.values[stmt.args[0].name]
    if is_op(value, "truediv", torch.float64):
        return _quotient(stmt.name, value.args[0], value.args[1], scope, twice=False)
    if is_op(value, "mul", torch.float64):
        for factor, dividend in (value.args, value.args[::-1]):
            inverse = scope.values[factor.name]
            if is_op(inverse, "reciprocal", torch.float64):
                return _quotient(stmt.name, dividend, inverse.args[0], scope, twice=True)
    return []


def _quotient(name: str, dividend: Ref, divisor: Ref, scope: Scope, twice: bool) -> list[Compute]:
    """`dividend / max(divisor, least)` of a float32 divisor, or of one without that bound. `twice`: the
    reciprocal is rounded, and then its product with the dividend."""
    number, value, least = scope.constant(dividend), scope.values[divisor.name], None
    if number is None or not _exact(number):
        return []
    if is_op(value, "maximum", torch.float64):
        operand, _, least = scope.with_constant(value)
        if least is None or not 0 < least < math.inf:
            return []
        value = scope.values[operand.name]
    if not is_op(value, "to_dtype", torch.float64) or scope.values[value.args[0].name].dtype != torch.float32:
        return []
    step, single = Steps(name, torch.float32), value.args[0]
    ratio = step("" if least is None else "quotient", "div_rn", step.constant("dividend", number), single)
    if least is not None:
        below = step("below", "lt", single, step.constant("smallest", _from(least)), dtype=torch.bool)
        at_least = 1.0 / least * number if twice else number / least  # where the divisor is less
        step("", "where", below, step.constant("least", _rounded(at_least)), ratio)
    return step.made


def _exact(dividend: float) -> bool:
    """Whether both ways give the same float32 for every float32 divisor.

    A quotient of two float32, of 24 bits each, is no middle between two float32, as 25 bits times those of
    the divisor would be more than 24; nor within 2**-49 of one, relative to it. Two roundings to float64 move
    it by 2**-52 at most, so that it is rounded to the same float32. That holds for normal results: all are,
    if the dividend is at least 4, as divisors are less than 2**128.
    """
    return 4 <= dividend < math.inf and _rounded(dividend) == dividend


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
