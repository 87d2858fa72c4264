"""Sums over all rows beside blocks that end within a tile, such as a bias gradient beside the casts.

Each program reduces the rows of its tile, and writes a partial result for each of its columns. Takes a
tile-local program as lowered, with one nest; returns it with a second one, the finalisation, which reduces
the partials.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sympy

from ..errors import Decline, DeclineReason
from ..ir.program import (
    Axis,
    AxisClass,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Statement,
    Store,
    Value,
    behind,
    closure,
    live,
    operands,
)
from ..ir.rewriting import along_one
from .split import SPLIT, divided


def split_spanning(program: LoopProgram) -> LoopProgram:
    """Split each reduction over blocks as well as within them. Raises `Decline` where these are not all over
    the same axes, or their results do not lie column by column."""
    nest = program.nests[0]
    blocks = {axis.symbol for axis in nest.loops if axis.kind is AxisClass.BATCH}
    spanning = [s for s in nest.body if isinstance(s, Reduce) and blocks & set(s.axes)]
    if not spanning:
        return program
    reduced = set(spanning[0].axes)
    if any(set(s.axes) != reduced for s in spanning):
        raise Decline(DeclineReason.AXIS_CLASS, "sums over different blocks", spanning[-1].name)
    columns = tuple(axis for axis in nest.loops if axis.symbol not in reduced)
    totals = behind(nest.body, spanning)
    stores = [s for s in nest.body if isinstance(s, Store) and s.value.name in totals]
    partials, final, spaces = divided(Nest(nest.loops, closure(nest.body, stores)), spanning, columns)
    main = [partials.get(s.name, s) if isinstance(s, Reduce) else s for s in nest.body]
    main = [s for s in main if s not in stores]
    # They follow one another in all its tensors.
    column = Axis(columns[-1].symbol, sympy.prod(axis.size for axis in columns), AxisClass.COLUMN)
    body = along_one(final.body, [(columns, column)])
    return dataclasses.replace(
        program,
        buffers=(*program.buffers, *spaces),
        nests=(Nest((SPLIT, *nest.loops), _early(live(main))), Nest((column, SPLIT), body)),
    )


def _early(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The statements with each sum, and what only it needs, right behind its other operands, which are then
    not held until the end. RMSNorm's backward and both MXFP8 casts: 117 registers of a thread, and 96."""
    statements = list(body)
    for stmt in [s for s in body if isinstance(s, PartialAccumulate)]:
        roots = [s for s in statements if isinstance(s, Store | PartialAccumulate) and s is not stmt]
        shared = set(closure(statements, roots))
        private = [s for s in closure(statements, [stmt]) if s not in shared]
        needed = {name for s in private for name in operands(s)}
        rest = [s for s in statements if s not in private]
        last = max((i for i, s in enumerate(rest) if isinstance(s, Value) and s.name in needed), default=-1)
        statements = [*rest[: last + 1], *private, *rest[last + 1 :]]
    return tuple(statements)
