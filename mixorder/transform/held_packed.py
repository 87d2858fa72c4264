"""While a tile waits for values of its rows, it holds what it has loaded, not what it has computed from it.

A tile of a norm in front of casts sums up columns before it waits, and casts behind. Both need the loaded
tensors in float32, twice as many registers as they have in bfloat16. So they are converted again behind the
wait, by another instruction (`codegen.bfloat16`). H100, MXFP8 both ways, 16384x4096: 96 registers of a thread
and 188 us, 72 and 178. Takes a blocked program and returns one.
"""

from __future__ import annotations

import dataclasses

import sympy
import torch

from ..ir.program import (
    AxisClass,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Ref,
    Statement,
    Store,
    behind,
    closure,
    operands,
)
from ..ir.rewriting import reading
from .cooperative import MAILBOX

UNPACKED = "unpacked_bfloat16"
UNPACKED_AGAIN = "unpacked_bfloat16_again"  # by another instruction, so that no compiler makes one of both


def hold_packed(program: LoopProgram) -> LoopProgram:
    """A program whose tile computes what needs no awaited value, waits, and then computes the rest."""
    if program.ahead is None:
        return program
    main, *others = program.nests
    every = {axis.symbol for axis in main.loops if axis.kind is not AxisClass.SPLIT}
    ahead = _unpacked(program.ahead, {program.ahead.loops[-1].symbol}, program)
    main = _in_two_phases(_unpacked(main, every, program))
    return dataclasses.replace(program, nests=(main, *others), ahead=ahead)


def _unpacked(nest: Nest, along: set[sympy.Symbol], program: LoopProgram) -> Nest:
    """The nest with an op for the conversion of each bfloat16 that varies along some axes."""
    body = list[Statement]()
    for stmt in nest.body:
        if isinstance(stmt, Load) and _is_half(stmt, program) and along <= stmt.index.free_symbols:
            name = f"{stmt.name}.half"
            body.append(dataclasses.replace(stmt, name=name, dtype=torch.bfloat16))
            body.append(Compute(stmt.name, UNPACKED, (Ref(name),), (), torch.float32))
        else:
            body.append(stmt)
    return dataclasses.replace(nest, body=tuple(body))


def _is_half(stmt: Load, program: LoopProgram) -> bool:
    """Whether a load converts bfloat16 to float32."""
    half = program.buffer(stmt.buffer).dtype == torch.bfloat16 and stmt.dtype == torch.float32
    return half and stmt.predicate is None


def _in_two_phases(nest: Nest) -> Nest:
    body = nest.body
    waits = [s for s in body if isinstance(s, Load) and s.buffer == MAILBOX]
    late = behind(body, waits)
    ends = [s for s in body if isinstance(s, Store | PartialAccumulate)]
    sooner = closure(body, [s for s in ends if late.isdisjoint(operands(s))])
    later = closure(body, [s for s in ends if not late.isdisjoint(operands(s))])
    again = {s.name: s for s in _again(nest, sooner, later)}
    if sooner and not again:
        return nest
    loads = [s for s in body if isinstance(s, Load)]
    names = {name: Ref(f"{name}.again") for name in again}
    first = [s for s in body if s in sooner and s not in loads]
    last = [s for s in body if s in later and s not in loads and (s not in first or s in again.values())]
    last = [_copy(s, names) if s in again.values() else s for s in last]
    loads = [s for s in loads if s not in waits]
    return dataclasses.replace(nest, body=(*loads, *first, *waits, *(reading(s, names) for s in last)))


def _again(nest: Nest, sooner: tuple[Statement, ...], later: tuple[Statement, ...]) -> list[Compute]:
    """What both phases need of each element. Empty where it is computed from what is not converted by an
    instruction of which there are two: a compiler would make one of both again."""
    every = {axis.symbol for axis in nest.loops if axis.kind is not AxisClass.SPLIT}
    deps = nest.dependence()
    shared = set(later)
    both = [s for s in sooner if isinstance(s, Compute) and s in shared and every <= deps[s.name]]
    full = {s.name for s in sooner if isinstance(s, Load) and every <= deps[s.name]}
    converted = {s.name for s in both if s.op == UNPACKED}
    plain = any(full & set(operands(s)) for s in both if s.name not in converted)
    return both if converted and not plain else []


def _copy(stmt: Statement, names: dict[str, Ref]) -> Compute:
    assert isinstance(stmt, Compute)
    op = UNPACKED_AGAIN if stmt.op == UNPACKED else stmt.op
    return dataclasses.replace(stmt, name=names[stmt.name].name, op=op)
