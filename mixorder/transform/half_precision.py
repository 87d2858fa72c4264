"""Which values of float32 are numbers in half precision, always: what is loaded from such a tensor, its
magnitude, its largest element.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from ..ir.dtypes import HALVES
from ..ir.program import BufferRole, Compute, Load, LoopProgram, Nest, Reduce, Ref, Value
from .rounding import ROUNDED

_SELECTING = frozenset({"maximum", "minimum", "abs", "neg", "where"})  # of their operands

_Halves = frozenset[torch.dtype]


def halves_of(name: str, program: LoopProgram, values: Mapping[str, Value]) -> _Halves:
    """The dtypes in half precision of which a float32 is always a number; none if it may have more bits."""
    stmt = values[name]
    if isinstance(stmt, Load):
        return HALVES & {program.buffer(stmt.buffer).dtype}
    if isinstance(stmt, Reduce):
        return halves_of(stmt.value.name, program, values) if stmt.kind.selects else frozenset()
    if not isinstance(stmt, Compute):
        return frozenset()
    if stmt.op == ROUNDED:
        return frozenset({torch.bfloat16})
    own = [arg.name for arg in stmt.args if isinstance(arg, Ref)]
    if stmt.op == "to_dtype":
        return HALVES & {values[own[0]].dtype}
    if stmt.op not in _SELECTING:
        return frozenset()
    found = [halves_of(one, program, values) for one in own[stmt.op == "where" :]]
    return _Halves().union(*found) if all(found) else frozenset()


def partial_dtype(program: LoopProgram, nest: Nest, reduce: Reduce) -> torch.dtype:
    """The dtype in which partial results of a reduction of `nest` are stored: a half precision that holds
    each of them exactly, if there is one. H200, `rowwise` scales both ways, whose 512 partial results for
    each of 4096 columns are 8.4 MB in float32: 109.8 us, in bfloat16 108.8."""
    values = {s.name: s for s in nest.statements if isinstance(s, Value)}
    if not reduce.kind.selects or reduce.dtype != torch.float32:
        return reduce.dtype
    halves = halves_of(reduce.value.name, program, values)
    return next(iter(halves)) if len(halves) == 1 else reduce.dtype


def with_float32_partials(program: LoopProgram) -> LoopProgram:
    """The program with partial results of half precision stored in float32, for kernels with few of them for
    each column. H200, cooperative, `rowwise` scales both ways of 8192x28672: 458 us in bfloat16, 445 so."""
    narrow = {b.name for b in program.role(BufferRole.WORKSPACE) if b.dtype in HALVES}
    buffers = (
        dataclasses.replace(b, dtype=torch.float32) if b.name in narrow else b for b in program.buffers
    )
    return dataclasses.replace(program, buffers=tuple(buffers))
