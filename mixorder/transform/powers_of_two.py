"""Multiply by the reciprocal of a power of two, once per block, instead of dividing each element by it.

The scale of a block in the MX formats is a power of two. Its reciprocal is exact, so that a product with it
is the quotient, bit by bit, at a tenth of a division's instructions. The reciprocal itself is a difference of
exponents: a division would take a branch for each block, in each thread that has elements of it. Whether a
value is a power of two is read off the ops that it is computed with.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from ..ir.program import Compute, Ref, Statement
from ..ir.rewriting import SELECTING, Scope, Steps, is_op, selected

MANTISSA_BITS = 23
INFINITE = 255 << MANTISSA_BITS  # the bits of an infinite float32
_LEAST = torch.finfo(
    torch.float32
).smallest_normal  # whose reciprocal, and that of all larger ones, is a float32


def multiply_by_reciprocals(stmt: Statement, scope: Scope) -> list[Statement]:
    """A product in place of a quotient of float32 by a block's power of two."""
    if not is_op(stmt, "truediv", torch.float32):
        return []
    value, divisor = stmt.args
    if not scope.deps[divisor.name] < scope.deps[stmt.name] or not is_power_of_two(divisor.name, scope):
        return []
    made = [] if divisor.name in scope.made else _reciprocal(divisor)
    scope.made.add(divisor.name)
    return [*made, dataclasses.replace(stmt, op="mul", args=(value, Ref(f"{divisor.name}.reciprocal")))]


def _reciprocal(divisor: Ref) -> list[Compute]:
    """Half of the power whose exponent is 255 less the divisor's. That of 2**127 is subnormal, and so exact
    only as a product. Zero gives infinity, infinity zero, NaN another NaN, and a negative divisor keeps its
    sign."""
    i32, f32 = torch.int32, torch.float32
    step = Steps(f"{divisor.name}.reciprocal", f32)
    bits = step("bits", "to_dtype_bitcast", divisor, i32, f32, dtype=i32)
    less = step("less", "sub", step.constant("most", INFINITE, i32), bits, dtype=i32)
    twice = step("twice", "to_dtype_bitcast", less, f32, i32)
    step("", "mul", twice, step.constant("half", 0.5))
    return step.made


def is_power_of_two(name: str, scope: Scope) -> bool:
    """Whether a float32 is a power of two of at least `_LEAST`, zero, infinite or NaN, whatever is read."""
    stmt = scope.values[name]
    if not isinstance(stmt, Compute):
        return False
    if stmt.op == "constant":
        return _is_power(stmt.args[0])
    if stmt.op == "to_dtype_bitcast":
        return stmt.dtype == torch.float32 and _is_exponent(stmt.args[0].name, scope)
    if stmt.op not in SELECTING:
        return False
    return all(is_power_of_two(operand, scope) for operand in selected(stmt))


def _is_power(value: float) -> bool:
    if value == 0 or not math.isfinite(value):
        return True
    return math.frexp(abs(value))[0] == 0.5 and abs(value) >= _LEAST


def _is_exponent(name: str, scope: Scope) -> bool:
    """Whether an integer has only zeros where a float32 has its mantissa."""
    stmt = scope.values[name]
    if not isinstance(stmt, Compute) or stmt.op != "bitwise_left_shift" or stmt.dtype.itemsize != 4:
        return False
    by = scope.constant(stmt.args[1])
    return by is not None and by >= MANTISSA_BITS
