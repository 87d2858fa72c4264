"""What needs no reduction before the first reduction of a tile, where fewer values are held across it then.

A kernel with two results, such as dSwiGLU, otherwise holds what the second one is computed from while it
reduces and casts the first: 126 registers of a thread, and 96 with both computed first, so that five programs
fit a multiprocessor instead of four.
Takes a tile-local program and returns one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..ir.program import Compute, Load, LoopProgram, Reduce, Statement, Value, behind, operands


def schedule_for_registers(program: LoopProgram) -> LoopProgram:
    """The program with its tile's statements in the order in which fewer values are held."""
    main, *rest = program.nests
    every = {axis.symbol for axis in main.axes}
    full = {name for name, deps in main.dependence().items() if every <= deps}
    body = min(main.body, _unreduced_first(main.body), key=lambda statements: _held(statements, full))
    return dataclasses.replace(program, nests=(dataclasses.replace(main, body=tuple(body)), *rest))


def _unreduced_first(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The statements with those that need no reduction first."""
    late = behind(body, [s for s in body if isinstance(s, Reduce)])
    first = [s for s in body if isinstance(s, Load | Compute) and s.name not in late]
    return (*first, *(s for s in body if s not in first))


def _held(body: Sequence[Statement], full: set[str]) -> float:
    """Values of each element that a thread has from before the first reduction to after it. What is loaded
    has half the bits. What is computed from such values alone, as a magnitude is, need not be kept."""
    first = next((i for i, stmt in enumerate(body) if isinstance(stmt, Reduce)), len(body))
    used = {name for stmt in body[first:] for name in operands(stmt)} & full
    values = [s for s in body[:first] if isinstance(s, Value) and s.name in used]
    kept = [s for s in values if isinstance(s, Load) or not used.issuperset(operands(s))]
    return sum(0.5 if isinstance(stmt, Load) else 1.0 for stmt in kept)
