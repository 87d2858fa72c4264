"""Divide by numbers of few bits, such as the largest element of a block in half precision, without branches.

CUDA's division of float32 has a branch for quotients or divisors at the ends of the range, which keeps the
instructions of different quotients from being mixed. A divisor with 11 bits or fewer needs no more than one
correction of an approximate quotient (`codegen.quotients` has the proof). The factor of a block in FP8
formats is such a quotient, in each thread that has elements of the block.
"""

from __future__ import annotations

import torch

from ..ir.program import Compute, Ref, Statement
from ..ir.rewriting import Scope, is_op
from .half_precision import halves_of

QUOTIENT = "quotient_of_few_bits"  # of a divisor and, as a number, a dividend
LEAST_DIVISOR, LEAST, MOST = 2.0**-100, 4.0, 2.0**20  # of a divisor, and of dividends


def divide_by_few_bits(stmt: Statement, scope: Scope) -> list[Statement]:
    """One op in place of the quotient of a constant by a divisor of few bits, where that is used for divisors
    from some least one on alone."""
    if not is_op(stmt, "div_rn", torch.float32):
        return []
    dividend, divisor = scope.constant(stmt.args[0]), stmt.args[1]
    if dividend is None or not LEAST <= dividend <= MOST or not halves_of(divisor.name, scope):
        return []
    if not all(_is_bounded(user, stmt.name, divisor, scope) for user in scope.users[stmt.name]):
        return []
    return [Compute(stmt.name, QUOTIENT, (divisor, dividend), (), stmt.dtype)]


def _is_bounded(user: Statement, quotient: str, divisor: Ref, scope: Scope) -> bool:
    """Whether a statement takes a quotient only where its divisor is no less than `LEAST_DIVISOR`."""
    if not isinstance(user, Compute) or user.op != "where" or user.args[2] != Ref(quotient):
        return False
    below = scope.values[user.args[0].name]
    if user.args[1] == Ref(quotient) or not isinstance(below, Compute) or below.op != "lt":
        return False
    least = scope.constant(below.args[1])
    return below.args[0] == divisor and least is not None and least >= LEAST_DIVISOR
