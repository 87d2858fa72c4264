"""Round float32 to bfloat16 and convert it back, two elements at a time (`codegen.bfloat16`).

A value of a whole row stays as it is: where a tile has one row it is a single element, and Triton refuses an
instruction for two. Takes a program and returns one.
"""

from __future__ import annotations

import dataclasses

import torch

from ..ir.program import AxisClass, Compute, LoopProgram, Nest, Statement, Value, live

ROUNDED = "rounded_to_bfloat16"


def round_at_once(program: LoopProgram) -> LoopProgram:
    """The program with one op for each pair of casts, from float32 to bfloat16 and back."""
    return dataclasses.replace(program, nests=tuple(map(_of_nest, program.nests)))


def _of_nest(nest: Nest) -> Nest:
    values = {s.name: s for s in nest.statements if isinstance(s, Value)}
    cols = {axis.symbol for axis in nest.loops if axis.kind in (AxisClass.COLUMN, AxisClass.COMMON)}
    deps = nest.dependence()
    body = tuple(
        _rounded(s, values) if isinstance(s, Compute) and cols & deps[s.name] else s for s in nest.body
    )
    return dataclasses.replace(nest, body=live(body)) if body != nest.body else nest


def _rounded(stmt: Compute, values: dict[str, Value]) -> Compute:
    """The op in place of a cast back to float32; any other op as it is."""
    if not _casts(stmt, torch.float32):
        return stmt
    half = values[stmt.args[0].name]
    if not _casts(half, torch.bfloat16):
        return stmt
    assert isinstance(half, Compute)
    value = half.args[0]
    if values[value.name].dtype != torch.float32:
        return stmt
    return Compute(stmt.name, ROUNDED, (value,), (), torch.float32)


def _casts(stmt: Statement, dtype: torch.dtype) -> bool:
    return isinstance(stmt, Compute) and stmt.op == "to_dtype" and stmt.dtype == dtype
