"""Bring the partial accumulation into the inner reduction's loop order, and merge both into one nest.

`reorder` only changes the order of loops and statements. `merge` joins nests that then have the same loops,
so that each load and each value that both need occurs once. It also hoists what does not depend on rows.
"""

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
from .alignment import alignment_phase

# Outermost first. A program has one index on the batch axis, and the rows of its split. Columns are
# innermost, because memory is contiguous along them.
_ORDER = {
    AxisClass.BATCH: 0,
    AxisClass.SPLIT: 1,
    AxisClass.ROW: 2,
    AxisClass.COLUMN: 3,
    AxisClass.COMMON: 4,
}


def reorder(program: LoopProgram) -> LoopProgram:
    """Give every nest over rows the loops (split, row, column), and put its statements in loop order."""
    split = program.axis(AxisClass.SPLIT)
    nests = []
    for nest in program.nests:
        loops = nest.loops
        if any(axis.kind is AxisClass.ROW for axis in loops):
            if split is not None and split not in loops:
                loops = (*loops, split)
            loops = tuple(sorted(loops, key=lambda axis: _ORDER[axis.kind]))
        nests.append(_arranged(dataclasses.replace(nest, loops=loops)))
    return dataclasses.replace(program, nests=tuple(nests))


def merge(program: LoopProgram) -> LoopProgram:
    """Merge the nests over rows into one; nests over splits alone (the finalisation) follow it."""
    over_rows = [n for n in program.nests if any(a.kind is AxisClass.ROW for a in n.loops)]
    others = [n for n in program.nests if n not in over_rows]
    loops = over_rows[0].loops
    if any(n.loops != loops for n in over_rows):
        raise ValueError("nests over rows have different loops: reorder first")
    seen: dict[Statement, None] = {}
    for nest in over_rows:
        seen.update(dict.fromkeys(nest.body))
    merged = _hoisted(_arranged(Nest(loops, tuple(seen))))
    program = dataclasses.replace(program, nests=(merged, *others))
    return dataclasses.replace(program, phase=alignment_phase(program))


def _arranged(nest: Nest) -> Nest:
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
        if not isinstance(stmt, Load | Compute) or deps[stmt.name] & outer:
            body.append(stmt)
        elif all(n in hoisted for n in operands(stmt)):
            hoisted[stmt.name] = stmt
        else:
            body.append(stmt)
    return dataclasses.replace(nest, preamble=tuple(hoisted.values()), body=tuple(body))
