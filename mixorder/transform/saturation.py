"""Leave out clamps that a cast to float8 does by itself, and round where a cast to an integer does.

GPUs with instructions for float8 cast what is beyond its range, infinity too, to the largest number, and NaN
to NaN. A clamp to that range before the cast changes nothing then. It is a third of what an MXFP8 cast
computes for an element.

A value is often rounded, clamped to whole numbers and cast. It is the same if it is clamped first. The
compiler makes one instruction then of rounding and the cast, which a multiprocessor runs at an eighth of the
rate of others.
"""

from __future__ import annotations

import dataclasses

import torch

from ..ir.program import Compute, Ref, Statement, Value
from ..ir.rewriting import Scope, Steps, is_op

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


def round_last(stmt: Statement, scope: Scope) -> list[Statement]:
    """A cast to an integer of what is clamped to whole numbers before it is rounded, not after."""
    if not isinstance(stmt, Compute) or stmt.op != "to_dtype" or stmt.dtype.is_floating_point:
        return []
    value, bounds = scope.values[stmt.args[0].name], list[tuple[str, Ref]]()
    while isinstance(value, Compute) and value.op in _BOUNDS:
        operand, bound, number = scope.with_constant(value)
        if number is None or number % 1:
            return []
        bounds.append((value.op, bound))
        value = scope.values[operand.name]
    if not bounds or not is_op(value, "round", torch.float32):
        return []
    step, clamped = Steps(stmt.name, torch.float32), value.args[0]
    for i, (op, limit) in enumerate(reversed(bounds)):
        clamped = step(f"clamped{i}", op, clamped, limit)
    rounded = step("rounded", "round", clamped)
    return [*step.made, dataclasses.replace(stmt, args=(rounded, *stmt.args[1:]))]
