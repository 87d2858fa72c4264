"""Which values of float32 are numbers in half precision, always: what is loaded from such a tensor, its
magnitude, its largest element.
"""

from __future__ import annotations

import torch

from ..ir.dtypes import HALVES
from ..ir.program import Compute, Load, Reduce, Ref
from ..ir.rewriting import Scope
from .rounding import ROUNDED

_SELECTING = frozenset({"maximum", "minimum", "abs", "neg", "where"})  # of their operands

_Halves = frozenset[torch.dtype]


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
    own = [arg.name for arg in stmt.args if isinstance(arg, Ref)]
    if stmt.op == "to_dtype":
        return HALVES & {scope.values[own[0]].dtype}
    if stmt.op not in _SELECTING:
        return frozenset()
    found = [halves_of(one, scope) for one in own[stmt.op == "where" :]]
    return _Halves().union(*found) if all(found) else frozenset()
