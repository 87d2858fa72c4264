"""Finish the sums of a program that has all rows in its main kernel, without a workspace.

Where the schedule does not split the rows, a program's accumulators have the totals of its columns after its
last row. What the finalisation would compute from them follows the loop over rows then: there are no partial
results in memory, and no second launch.
"""

from __future__ import annotations

import dataclasses

from ..ir.program import BufferRole, LoopProgram, Nest, Reduce, Ref, Statement, Value
from ..ir.rewriting import reading


def finished(program: LoopProgram) -> LoopProgram:
    """A merged program in one nest, for a schedule with one split. Its workspaces become accumulators, which
    are never in memory."""
    main, final = program.nests
    taken = {s.name for s in main.statements if isinstance(s, Value)}
    after = tuple(_after(final, taken))
    buffers = tuple(
        dataclasses.replace(b, role=BufferRole.ACCUMULATOR) if b.role is BufferRole.WORKSPACE else b
        for b in program.buffers
    )
    return dataclasses.replace(program, buffers=buffers, nests=(dataclasses.replace(main, after=after),))


def _after(final: Nest, taken: set[str]) -> list[Statement]:
    """The statements of a finalisation of one split, which reduces nothing. Names in `taken` are changed."""
    named, statements = dict[str, Ref](), list[Statement]()
    for stmt in final.statements:
        if isinstance(stmt, Reduce):
            named[stmt.name] = named[stmt.value.name]  # of one element
            continue
        new = reading(stmt, named)
        if isinstance(new, Value):
            named[new.name] = Ref(f"{new.name}.after" if new.name in taken else new.name)
            new = dataclasses.replace(new, name=named[new.name].name)
        statements.append(new)
    return statements
