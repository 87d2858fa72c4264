"""Put the statements of a nest in order: what needs fewer reductions first, and what does not depend on rows
once, before the loops over these."""

from __future__ import annotations

import dataclasses

from ..ir.program import (
    AxisClass,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Statement,
    Store,
    Value,
    depth_of,
    operands,
)
from .alignment import row_alignment


def reorder(program: LoopProgram) -> LoopProgram:
    """The program with the statements of its nest over rows in order."""
    main, *finals = program.nests
    program = dataclasses.replace(program, nests=(_hoisted(arranged(main)), *finals))
    return dataclasses.replace(program, alignment=row_alignment(program))


def arranged(nest: Nest) -> Nest:
    """Sort statements by level, and within a level by loop depth, with its stores and then reductions last.

    The level of a value is the number of dependent reductions before it. A load moves to the first level that
    uses it, so that a tile that only the second level needs takes no registers during the first.
    """
    deps, level = nest.dependence(), nest.reductions_above()
    first_use: dict[str, int] = {}
    for stmt in nest.body:
        at = max((level[n] for n in operands(stmt)), default=0)
        at = level[stmt.name] if isinstance(stmt, Value) else at
        for name in operands(stmt):
            first_use[name] = min(first_use.get(name, at), at)

    def key(stmt: Statement) -> tuple[int, int, int]:
        depth = depth_of(stmt, nest.loops, deps)
        if isinstance(stmt, Load):
            return (first_use.get(stmt.name, 0), 0, depth)
        if isinstance(stmt, Reduce):
            return (level[stmt.name], 2, depth)
        if isinstance(stmt, Store | PartialAccumulate):
            value = stmt.value.name
            reduced = any(isinstance(s, Reduce) and s.name == value for s in nest.body)
            return (level[value] + reduced, 1, depth)
        return (level[stmt.name], 0, depth)  # type: ignore[union-attr]

    return dataclasses.replace(nest, body=tuple(sorted(nest.body, key=key)))


def _hoisted(nest: Nest) -> Nest:
    """Move what depends on columns alone, and on no reduction, before the loops over rows."""
    deps = nest.dependence()
    outer = {a.symbol for a in nest.loops if a.kind in (AxisClass.ROW, AxisClass.SPLIT)}
    hoisted: dict[str, Statement] = {}
    body: list[Statement] = []
    for stmt in nest.body:
        varies = not isinstance(stmt, Load | Compute) or deps[stmt.name] & outer
        if not varies and hoisted.keys() >= {*operands(stmt)}:
            hoisted[stmt.name] = stmt  # type: ignore[union-attr]
        else:
            body.append(stmt)
    return dataclasses.replace(nest, preamble=tuple(hoisted.values()), body=tuple(body))
