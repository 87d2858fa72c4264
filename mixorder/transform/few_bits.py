"""Divide by numbers of few bits, such as the largest element of a block in half precision, without branches.

CUDA's division of float32 has a branch for quotients or divisors at the ends of the range, which keeps the
instructions of different quotients from being mixed. A divisor with 11 bits or fewer needs no more than one
correction of an approximate quotient (`codegen.quotients` has the proof). The factor of a block in FP8
formats is such a quotient, in each thread that has elements of the block.
Takes a program and returns one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..ir.program import Compute, LoopProgram, Nest, Ref, Statement, Value, live, operands
from .half_precision import halves_of

QUOTIENT = "quotient_of_few_bits"  # of a divisor and, as a number, a dividend
LEAST_DIVISOR, LEAST, MOST = 2.0**-100, 4.0, 2.0**20  # of a divisor, and of dividends


def divide_by_few_bits(program: LoopProgram) -> LoopProgram:
    """The program with one op for each quotient of a constant by a divisor of few bits, where that is used
    for divisors from some least one on alone."""
    return dataclasses.replace(program, nests=tuple(_of_nest(program, nest) for nest in program.nests))


def _of_nest(program: LoopProgram, nest: Nest) -> Nest:
    values = {s.name: s for s in nest.statements if isinstance(s, Value)}
    users: dict[str, list[Statement]] = {}
    for stmt in nest.statements:
        for name in operands(stmt):
            users.setdefault(name, []).append(stmt)
    body = tuple(_divided(s, program, values, users) for s in nest.body)
    return dataclasses.replace(nest, body=live(body)) if body != nest.body else nest


def _divided(
    stmt: Statement, program: LoopProgram, values: Mapping[str, Value], users: Mapping[str, list[Statement]]
) -> Statement:
    """The op in place of a division; any other statement as it is."""
    if not isinstance(stmt, Compute) or stmt.op != "div_rn":
        return stmt
    dividend, divisor = _constant(stmt.args[0], values), stmt.args[1]
    if dividend is None or not LEAST <= dividend <= MOST or not halves_of(divisor.name, program, values):
        return stmt
    if not all(_is_bounded(user, stmt.name, divisor, values) for user in users.get(stmt.name, ())):
        return stmt
    return Compute(stmt.name, QUOTIENT, (divisor, dividend), (), stmt.dtype)


def _is_bounded(user: Statement, quotient: str, divisor: Ref, values: Mapping[str, Value]) -> bool:
    """Whether a statement takes a quotient only where its divisor is no less than `LEAST_DIVISOR`."""
    if not isinstance(user, Compute) or user.op != "where" or user.args[2] != Ref(quotient):
        return False
    below = values[user.args[0].name]
    if user.args[1] == Ref(quotient) or not isinstance(below, Compute) or below.op != "lt":
        return False
    least = _constant(below.args[1], values)
    return below.args[0] == divisor and least is not None and least >= LEAST_DIVISOR


def _constant(ref: object, values: Mapping[str, Value]) -> float | None:
    stmt = values[ref.name] if isinstance(ref, Ref) else None
    return stmt.args[0] if isinstance(stmt, Compute) and stmt.op == "constant" else None
