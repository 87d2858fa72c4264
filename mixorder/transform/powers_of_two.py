"""Multiply by the reciprocal of a power of two, once per block, instead of dividing each element by it.

The scale of a block in the MX formats is a power of two. Its reciprocal is exact, so that a product with it
is the quotient, bit by bit, at a tenth of a division's instructions. The reciprocal itself is a difference of
exponents: a division would take a branch for each block, in each thread that has elements of it. Takes a
program and returns one; whether a value is a power of two is read off the ops that it is computed with.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch

from ..ir.program import Compute, LoopProgram, Nest, Ref, Statement, Value

_MANTISSA_BITS = 23
_INFINITE = 255 << _MANTISSA_BITS  # the bits of an infinite float32
_LEAST = 2.0**-126  # whose reciprocal, and that of all larger ones, is a float32
_SELECTING = frozenset({"maximum", "minimum", "neg", "abs"})  # give one of their operands, but for the sign


def multiply_by_reciprocals(program: LoopProgram) -> LoopProgram:
    """The program with products in place of quotients of float32 by blocks' powers of two."""
    return dataclasses.replace(program, nests=tuple(map(_of_nest, program.nests)))


def _of_nest(nest: Nest) -> Nest:
    deps = nest.dependence()
    values = {s.name: s for s in nest.statements if isinstance(s, Value)}
    body: list[Statement] = []
    known: dict[str, str] = {}  # a divisor, and its reciprocal
    for stmt in nest.body:
        if not (isinstance(stmt, Compute) and stmt.op == "truediv" and stmt.dtype == torch.float32):
            body.append(stmt)
            continue
        value, divisor = stmt.args
        if not deps[divisor.name] < deps[stmt.name] or not is_power_of_two(divisor.name, values):
            body.append(stmt)
            continue
        if divisor.name not in known:
            known[divisor.name] = f"{divisor.name}.reciprocal"
            body.extend(_reciprocal(divisor, known[divisor.name]))
        body.append(dataclasses.replace(stmt, op="mul", args=(value, Ref(known[divisor.name]))))
    return dataclasses.replace(nest, body=tuple(body))


def _reciprocal(divisor: Ref, name: str) -> list[Compute]:
    """Half of the power whose exponent is 255 less the divisor's. That of 2**127 is subnormal, and so exact
    only as a product. Zero gives infinity, infinity zero, NaN another NaN, and a negative divisor keeps its
    sign."""
    i32, f32 = torch.int32, torch.float32

    def value(part: str, op: str, *args: object, dtype: torch.dtype = f32) -> Compute:
        return Compute(f"{name}.{part}" if part else name, op, args, (), dtype)

    bits, most, less, twice, half = (
        Ref(f"{name}.{part}") for part in ("bits", "most", "less", "twice", "half")
    )
    return [
        value("bits", "to_dtype_bitcast", divisor, i32, f32, dtype=i32),
        value("most", "constant", _INFINITE, i32, dtype=i32),
        value("less", "sub", most, bits, dtype=i32),
        value("twice", "to_dtype_bitcast", less, f32, i32),
        value("half", "constant", 0.5, f32),
        value("", "mul", twice, half),
    ]


def is_power_of_two(name: str, values: Mapping[str, Value]) -> bool:
    """Whether a float32 is a power of two of at least `_LEAST`, zero, infinite or NaN, whatever is read."""
    stmt = values[name]
    if not isinstance(stmt, Compute):
        return False
    if stmt.op == "constant":
        return _is_power(stmt.args[0])
    operands = [arg.name for arg in stmt.args if isinstance(arg, Ref)]
    if stmt.op == "to_dtype_bitcast":
        return stmt.dtype == torch.float32 and _is_exponent(operands[0], values)
    if stmt.op == "where":
        operands = operands[1:]
    elif stmt.op not in _SELECTING:
        return False
    return all(is_power_of_two(operand, values) for operand in operands)


def _is_power(value: float) -> bool:
    if value == 0 or not math.isfinite(value):
        return True
    return math.frexp(abs(value))[0] == 0.5 and abs(value) >= _LEAST


def _is_exponent(name: str, values: Mapping[str, Value]) -> bool:
    """Whether an integer has only zeros where a float32 has its mantissa."""
    stmt = values[name]
    if not isinstance(stmt, Compute) or stmt.op != "bitwise_left_shift" or stmt.dtype.itemsize != 4:
        return False
    by = values[stmt.args[1].name]
    return isinstance(by, Compute) and by.op == "constant" and by.args[0] >= _MANTISSA_BITS
