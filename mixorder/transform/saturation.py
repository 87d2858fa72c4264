"""Leave out clamps that a cast to float8 does by itself.

GPUs with instructions for float8 cast what is beyond its range, infinity too, to the largest number, and NaN
to NaN. A clamp to that range before the cast changes nothing then. It is a third of what an MXFP8 cast
computes for an element.
"""

from __future__ import annotations

import dataclasses

import torch

from ..ir.program import Compute, LoopProgram, Nest, Ref, Statement, Value, live

_LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
_BOUNDS = {"maximum": -1, "minimum": 1}


def without_clamps(program: LoopProgram) -> LoopProgram:
    """The program, whose casts take the values before their clamps."""
    return dataclasses.replace(program, nests=tuple(map(_of_nest, program.nests)))


def _of_nest(nest: Nest) -> Nest:
    values = {s.name: s for s in nest.statements if isinstance(s, Value)}
    body = tuple(_cast(s, values) for s in nest.body)
    return dataclasses.replace(nest, body=live(body)) if body != nest.body else nest


def _cast(stmt: Statement, values: dict[str, Value]) -> Statement:
    if not (isinstance(stmt, Compute) and stmt.op == "to_dtype" and stmt.dtype in _LARGEST):
        return stmt
    value: Ref = stmt.args[0]
    while (clamped := _clamped(values[value.name], _LARGEST[stmt.dtype], values)) is not None:
        value = clamped
    return dataclasses.replace(stmt, args=(value, *stmt.args[1:]))


def _clamped(stmt: Value, largest: float, values: dict[str, Value]) -> Ref | None:
    """What a value is before it is clamped to a range on one side; None where it is computed otherwise."""
    if not (isinstance(stmt, Compute) and stmt.op in _BOUNDS and stmt.dtype == torch.float32):
        return None
    for value, bound in (stmt.args, stmt.args[::-1]):
        limit = values[bound.name]
        if isinstance(limit, Compute) and limit.op == "constant":
            return value if limit.args[0] == _BOUNDS[stmt.op] * largest else None
    return None
