"""Round float32 to bfloat16, and convert bfloat16 to float32, two elements at a time (`codegen.bfloat16`).

Takes a program and returns one.
"""

from __future__ import annotations

import dataclasses

import sympy
import torch

from ..ir.program import AxisClass, Compute, Load, LoopProgram, Nest, Ref, Statement, Value, live

ROUNDED = "rounded_to_bfloat16"
UNPACKED = "unpacked_bfloat16"
UNPACKED_AGAIN = "unpacked_bfloat16_again"  # by another instruction, so that no compiler makes one of both
# H200, with MXFP8 both ways, 16384x4096, us without and with: dGELU (two tensors) 139.6 and 135.8, behind a
# norm (two) 154.0 and 152.9; dSwiGLU (three) 197.1 and 199.0. Casts alone: 1x128 both ways 79.0 and 79.6.
MOST_UNPACKED = 2


def round_at_once(program: LoopProgram) -> LoopProgram:
    """The program with one op for each pair of casts, from float32 to bfloat16 and back."""
    return dataclasses.replace(program, nests=tuple(map(_of_nest, program.nests)))


def _of_nest(nest: Nest) -> Nest:
    values = {s.name: s for s in nest.statements if isinstance(s, Value)}
    body = tuple(_rounded(s, values) for s in nest.body)
    return dataclasses.replace(nest, body=live(body)) if body != nest.body else nest


def _rounded(stmt: Statement, values: dict[str, Value]) -> Statement:
    """The op in place of a cast back to float32; any other statement as it is."""
    if not _casts(stmt, torch.float32):
        return stmt
    assert isinstance(stmt, Compute)
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


def unpack_at_once(program: LoopProgram) -> LoopProgram:
    """A blocked program with one op for the conversion of full tensors in bfloat16, if there are at most
    `MOST_UNPACKED` and it rounds anything; for values of whole rows, of all that has their columns."""
    main, *others = program.nests
    every = {axis.symbol for axis in main.loops if axis.kind is not AxisClass.SPLIT}
    loads = _halves(main, program, every)
    rounds = any(isinstance(s, Compute) and s.op == ROUNDED for s in main.body)
    few = len(loads) <= MOST_UNPACKED or program.ahead is not None
    if not program.blocked or not rounds or not few:
        return program
    ahead = program.ahead
    if ahead is not None:
        ahead = _unpacked(ahead, _halves(ahead, program, {ahead.loops[-1].symbol}))
    return dataclasses.replace(program, nests=(_unpacked(main, loads), *others), ahead=ahead)


def _halves(nest: Nest, program: LoopProgram, along: set[sympy.Symbol]) -> list[Load]:
    """Loads of bfloat16 as float32 that vary along some axes."""
    loads = (s for s in nest.body if isinstance(s, Load) and _is_half(s, program))
    return [s for s in loads if s.predicate is None and along <= s.index.free_symbols]


def _unpacked(nest: Nest, loads: list[Load]) -> Nest:
    body = list[Statement]()
    for stmt in nest.body:
        if isinstance(stmt, Load) and stmt in loads:
            name = f"{stmt.name}.half"
            body.append(dataclasses.replace(stmt, name=name, dtype=torch.bfloat16))
            body.append(Compute(stmt.name, UNPACKED, (Ref(name),), (), torch.float32))
        else:
            body.append(stmt)
    return dataclasses.replace(nest, body=tuple(body))


def _is_half(stmt: Load, program: LoopProgram) -> bool:
    return program.buffer(stmt.buffer).dtype == torch.bfloat16 and stmt.dtype == torch.float32
