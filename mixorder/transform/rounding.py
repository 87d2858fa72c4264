"""Round float32 to bfloat16 and convert it back, two elements at a time (`codegen.bfloat16`).

A value of a whole row stays as it is: where a tile has one row it is a single element, and Triton refuses an
instruction for two.
"""

from __future__ import annotations

import sympy
import torch

from ..ir.program import AxisClass, Compute, Statement
from ..ir.rewriting import Scope, is_op

ROUNDED = "rounded_to_bfloat16"


def round_at_once(stmt: Statement, scope: Scope) -> list[Statement]:
    """One op in place of a cast to float32 of what was cast from float32 to bfloat16."""
    if not is_op(stmt, "to_dtype", torch.float32):
        return []
    half = scope.values[stmt.args[0].name]
    if not is_op(half, "to_dtype", torch.bfloat16) or _columns(scope).isdisjoint(scope.deps[stmt.name]):
        return []
    value = half.args[0]
    if scope.values[value.name].dtype != torch.float32:
        return []
    return [Compute(stmt.name, ROUNDED, (value,), (), torch.float32)]


def _columns(scope: Scope) -> set[sympy.Symbol]:
    """The axes along which a tile has columns: the last one of a tile without a column axis."""
    loops = [axis for axis in scope.nest.loops if axis.kind is not AxisClass.SPLIT]
    kinds = AxisClass.COLUMN, AxisClass.COMMON
    columns = {axis.symbol for axis in loops if axis.kind in kinds and axis.size != 1}
    batch_axes = [axis for axis in loops[-1:] if axis.kind is AxisClass.BATCH and axis.size != 1]
    return columns or {axis.symbol for axis in batch_axes if len(loops) > 1}
