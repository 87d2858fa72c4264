"""Small results of a tile through a workspace, in which a tile's elements of them are whole sectors.

The first kernel stores them with another axis innermost. A nest for each then copies it to its place; all of
these are one kernel (`codegen.staged`). `schedule.staged` says when this pays. Takes a tile-local program,
and returns it with these nests behind the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import sympy

from ..ir.program import (
    Axis,
    AxisClass,
    Buffer,
    BufferRole,
    Load,
    LoopProgram,
    Nest,
    Ref,
    Statement,
    Store,
    flat,
)

# The axis that is innermost in the graph, and all others.
_INNER = sympy.Symbol("c", integer=True, nonnegative=True)
_OTHERS = sympy.Symbol("r", integer=True, nonnegative=True)


def staged(program: LoopProgram, results: Mapping[str, tuple[Axis, ...]]) -> LoopProgram:
    """The program with some results staged: by the buffer of each, its axes, innermost in memory first."""
    if not results:
        return program
    main, *rest = program.nests
    body, spaces, copies = list[Statement](), list[Buffer](), list[Nest]()
    for stmt in main.body:
        if not isinstance(stmt, Store) or stmt.buffer not in results:
            body.append(stmt)
            continue
        space, store, copy = _through_workspace(program, stmt, results[stmt.buffer], len(spaces))
        spaces.append(space)
        copies.append(copy)
        body.append(store)
    nests = (dataclasses.replace(main, body=tuple(body)), *rest, *copies)
    return dataclasses.replace(program, buffers=(*program.buffers, *spaces), nests=nests)


def _through_workspace(
    program: LoopProgram, store: Store, axes: tuple[Axis, ...], number: int
) -> tuple[Buffer, Store, Nest]:
    """The workspace of a result whose axes are these, innermost first; the store to it, and the copy."""
    dtype, numel = program.buffer(store.buffer).dtype, sympy.prod(axis.size for axis in axes)
    inner = Axis(_INNER, axes[0].size, AxisClass.BATCH)
    outer = Axis(_OTHERS, sympy.prod(axis.size for axis in axes[1:]), AxisClass.BATCH)
    space = Buffer(f"stage{number}", BufferRole.WORKSPACE, dtype, (numel,), (sympy.S.One,))
    value = f"{store.buffer}.staged"
    start = store.index.xreplace({axis.symbol: sympy.S.Zero for axis in axes})
    copy = (
        Load(value, space.name, _INNER * outer.size + _OTHERS, dtype),
        Store(store.buffer, start + _OTHERS * inner.size + _INNER, Ref(value)),
    )
    return (
        space,
        Store(space.name, flat([axes[0], *reversed(axes[1:])]), store.value),
        Nest((inner, outer), copy),
    )
