"""Leave out clamps that a cast to float8 does by itself.

GPUs with instructions for float8 cast what is beyond its range, infinity too, to the largest number, and NaN
to NaN. A clamp to that range before the cast changes nothing then. It is a third of what an MXFP8 cast
computes for an element.
"""

from __future__ import annotations

import dataclasses

import torch

from ..ir.program import Compute, Ref, Statement, Value
from ..ir.rewriting import Scope

_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
_BOUNDS = {"maximum": -1, "minimum": 1}


def without_clamp(stmt: Statement, scope: Scope) -> list[Statement]:
    """A cast that takes the value before its clamps."""
    if not (isinstance(stmt, Compute) and stmt.op == "to_dtype" and stmt.dtype in _LARGEST):
        return []
    value: Ref = stmt.args[0]
    while (clamped := _clamped(scope.values[value.name], _LARGEST[stmt.dtype], scope)) is not None:
        value = clamped
    return [dataclasses.replace(stmt, args=(value, *stmt.args[1:]))]


def _clamped(stmt: Value, largest: float, scope: Scope) -> Ref | None:
    """What a value is before it is clamped to a range on one side; None where it is computed otherwise."""
    if not (isinstance(stmt, Compute) and stmt.op in _BOUNDS and stmt.dtype == torch.float32):
        return None
    value, _, limit = scope.with_constant(stmt)
    return value if limit == _BOUNDS[stmt.op] * largest else None
