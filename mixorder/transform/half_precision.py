"""Which values of float32 are numbers in half precision, always: what is loaded from such a tensor, its
magnitude, its largest element, a clamped or a whole number.
"""

from __future__ import annotations

import torch

from ..ir.dtypes import HALVES
from ..ir.program import Compute, Load, Reduce, Ref, Statement, operands
from ..ir.rewriting import SELECTING, Scope, is_op, reading, selected
from .rounding import ROUNDED

WHOLE = frozenset({"round", "trunc", "floor", "ceil"})  # where these change a number, they have fewer bits

_SMALL = 2 / torch.finfo(torch.bfloat16).eps  # whole numbers up to this one have 8 bits

_Halves = frozenset[torch.dtype]


def without_rounding(stmt: Statement, scope: Scope) -> list[Statement]:
    """A statement that takes a float32 itself in place of one that is rounded to half precision, where that
    changes nothing."""
    replacements = dict[str, Ref]()
    for name in operands(stmt):
        value = scope.values[name]
        while is_op(value, "to_dtype", torch.float32) and isinstance(value.args[0], Ref):
            half = scope.values[value.args[0].name]
            if not isinstance(half, Compute) or not isinstance(half.args[0], Ref):  # a symbol of a loop
                break
            if halves_of(half.args[0].name, scope) != {half.dtype}:
                break
            value = scope.values[half.args[0].name]
            replacements[name] = Ref(value.name)
    return [reading(stmt, replacements)] if replacements else []


def halves_of(name: str, scope: Scope) -> _Halves:
    """The dtypes in half precision of which a float32 is always a number; none if it may have more bits."""
    stmt = scope.values[name]
    if isinstance(stmt, Load):
        return HALVES & {scope.program.buffer(stmt.buffer).dtype}
    if isinstance(stmt, Reduce):
        return halves_of(stmt.value.name, scope) if stmt.kind.selects else frozenset()
    if not isinstance(stmt, Compute):
        return frozenset()
    if stmt.op == ROUNDED:
        return frozenset({torch.bfloat16})
    if stmt.op == "to_dtype":
        return HALVES & {scope.values[operand].dtype for operand in operands(stmt)}
    if stmt.op not in SELECTING | WHOLE:
        return frozenset()
    halves = [halves_of(operand, scope) for operand in selected(stmt) if not _is_small(operand, scope)]
    return _Halves().union(*halves) if all(halves) else frozenset()


def _is_small(name: str, scope: Scope) -> bool:
    """Whether a value is a whole number that both dtypes have."""
    number = scope.constant(Ref(name))
    return number is not None and abs(number) <= _SMALL and number % 1 == 0
