"""Finish the sums of a program that has all rows in its main kernel, without a workspace.

Where the schedule does not split the rows, a program's accumulators have the totals of its columns after its
last row. What the finalisation would compute from them follows the loop over rows then: there are no partial
results in memory, and no second launch.
"""

from __future__ import annotations

import dataclasses

from ..ir.program import (
    Accumulated,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    Nest,
    Reduce,
    Ref,
    Statement,
    Store,
    Value,
    operands,
)
from ..ir.rewriting import renamed


def finished(program: LoopProgram) -> LoopProgram:
    """A merged program in one nest, for a schedule with one split. Its workspaces become accumulators, which
    are never in memory."""
    main, final = program.nests
    taken = {s.name for s in main.statements if isinstance(s, Value)}
    after = tuple(_after(program, final, taken))
    buffers = tuple(
        dataclasses.replace(b, role=BufferRole.ACCUMULATOR) if b.role is BufferRole.WORKSPACE else b
        for b in program.buffers
    )
    return dataclasses.replace(program, buffers=buffers, nests=(dataclasses.replace(main, after=after),))


def _after(program: LoopProgram, final: Nest, taken: set[str]) -> list[Statement]:
    """The statements of a finalisation of one split, which reduces nothing. Names in `taken` are changed."""
    workspaces = {b.name for b in program.role(BufferRole.WORKSPACE)}
    named, statements = dict[str, str](), list[Statement]()
    for stmt in final.statements:
        if isinstance(stmt, Reduce):
            named[stmt.name] = named[stmt.value.name]  # of one element
            continue
        used = {name: named[name] for name in operands(stmt)}
        if isinstance(stmt, Store):
            statements.append(dataclasses.replace(stmt, value=Ref(used[stmt.value.name])))
            continue
        assert isinstance(stmt, Load | Compute), stmt
        named[stmt.name] = f"{stmt.name}.after" if stmt.name in taken else stmt.name
        if isinstance(stmt, Load) and stmt.buffer in workspaces:
            statements.append(Accumulated(named[stmt.name], stmt.buffer, stmt.index, stmt.dtype))
        else:
            statements.append(renamed(stmt, named[stmt.name], used))
    return statements
