"""Round float32 to bfloat16 and convert it back, two elements at a time (`codegen.bfloat16`).

A value of a whole row stays as it is: where a tile has one row it is a single element, and Triton refuses an
instruction for two.
"""

from __future__ import annotations

import torch

from ..ir.program import AxisClass, Compute, Statement
from ..ir.rewriting import Scope, is_op

ROUNDED = "rounded_to_bfloat16"


def round_at_once(stmt: Statement, scope: Scope) -> list[Statement]:
    """One op in place of a cast to float32 of what was cast from float32 to bfloat16."""
    if not is_op(stmt, "to_dtype", torch.float32):
        return []
    half = scope.values[stmt.args[0].name]
    cols = {a.symbol for a in scope.nest.loops if a.kind in (AxisClass.COLUMN, AxisClass.COMMON)}
    if not is_op(half, "to_dtype", torch.bfloat16) or cols.isdisjoint(scope.deps[stmt.name]):
        return []
    value = half.args[0]
    if scope.values[value.name].dtype != torch.float32:
        return []
    return [Compute(stmt.name, ROUNDED, (value,), (), torch.float32)]
