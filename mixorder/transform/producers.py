"""Values of whole rows in front of blocks that end within a tile, such as a norm's sums before its casts.

Other programs of the same kernel compute them, a few rows each, and store them in a mailbox. They come before
the tiles of these rows, so that a tile seldom waits, and finds in L2 what they have read.
Takes a tile-local program as lowered, with one nest; returns it with a second one, `producer_nest`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import sympy
import torch

from ..errors import Decline, DeclineReason
from ..ir.program import (
    Axis,
    AxisClass,
    Buffer,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    Nest,
    Reduce,
    Ref,
    Store,
    Value,
    closure,
    flat,
    index_symbols,
    live,
    operands,
)
from ..ir.rewriting import along_one
from .cooperative import EMPTY, MAILBOX

_ROW = sympy.Symbol("r", integer=True, nonnegative=True)
_COLUMN = sympy.Symbol("c", integer=True, nonnegative=True)


def with_producers(program: LoopProgram) -> LoopProgram:
    """Move each reduction over whole rows to the producers, and what is computed from these alone.
    Raises `Decline` where one depends on another, is in no float32, or reads what does not lie row by row."""
    nest = program.nests[0]
    reductions = [s for s in nest.body if isinstance(s, Reduce) and _is_over_rows(s, nest)]
    if not reductions:
        return program
    _check(reductions, nest)
    gone = set(reductions[0].axes)
    rows, columns = (tuple(a for a in nest.loops if (a.symbol in gone) == inner) for inner in (False, True))
    outer, inner = _as_one(_ROW, rows, AxisClass.ROW), _as_one(_COLUMN, columns, AxisClass.COLUMN)
    values = _values(nest, reductions)
    size = outer.size * len(values) + 1  # the last word counts programs
    mailbox = Buffer(MAILBOX, BufferRole.MAILBOX, torch.int32, (size,), (sympy.S.One,), fill=EMPTY)
    place, groups = flat(rows), [(rows, outer), (columns, inner)]
    producer_body = list(along_one(closure(nest.body, values), groups))
    for stmt in producer_body:
        if isinstance(stmt, Compute) and index_symbols(stmt):
            raise Decline(DeclineReason.AXIS_CLASS, "a number of a row or a column", stmt.name)
    body = list(nest.body)
    for i, value in enumerate(values):
        first = i * outer.size
        slot = f"{value.name}.slot"
        producer_body.append(Store(MAILBOX, _ROW + first, Ref(value.name)))
        word = Load(slot, MAILBOX, place + first, torch.int32)
        as_float = (Ref(slot), torch.float32, torch.int32)
        at = body.index(value)
        body[at : at + 1] = [word, Compute(value.name, "to_dtype_bitcast", as_float, (), torch.float32)]
    return dataclasses.replace(
        program,
        buffers=(*program.buffers, mailbox),
        nests=(Nest(nest.loops, live(body)),),
        producer_nest=Nest((outer, inner), tuple(producer_body)),
    )


def _values(nest: Nest, reductions: Sequence[Reduce]) -> list[Reduce | Compute]:
    """What the tiles need: values of rows that are computed from reductions, such as their means, if they are
    no more than these. A tile would divide once more for each of its rows, in each thread."""
    deps = nest.dependence()
    known: dict[str, Reduce | Compute] = {r.name: r for r in reductions}
    for stmt in nest.body:
        if not isinstance(stmt, Compute) or stmt.dtype != torch.float32 or index_symbols(stmt):
            continue
        names = set(operands(stmt))
        if names & known.keys() and all(deps[n] <= deps[reductions[0].name] for n in names):
            known[stmt.name] = stmt
    users = [s for s in nest.body if not (isinstance(s, Value) and s.name in known)]
    needed = {name for s in users for name in operands(s)}
    values = [value for name, value in known.items() if name in needed]
    return values if len(values) <= len(reductions) else list(reductions)


def _is_over_rows(stmt: Reduce, nest: Nest) -> bool:
    """Whether a reduction is over blocks as well as within them, and over all columns: the last axes."""
    blocks = {axis.symbol for axis in nest.loops if axis.kind is AxisClass.BATCH}
    last = {axis.symbol for axis in nest.loops[len(nest.loops) - len(stmt.axes) :]}
    return set(stmt.axes) == last and not blocks.isdisjoint(last) and len(last) < len(nest.loops)


def _check(reductions: Sequence[Reduce], nest: Nest) -> None:
    names = {r.name for r in reductions}
    for reduction in reductions:
        if set(reduction.axes) != set(reductions[0].axes):
            raise Decline(DeclineReason.AXIS_CLASS, "reductions over rows of several lengths", reduction.name)
        if reduction.dtype != torch.float32:
            raise Decline(
                DeclineReason.UNSUPPORTED_DTYPE, "a value of a whole row is not float32", reduction.name
            )
        if any(name in names for s in closure(nest.body, [reduction]) for name in operands(s)):
            raise Decline(
                DeclineReason.AXIS_CLASS, "a reduction over rows depends on another one", reduction.name
            )


def _as_one(symbol: sympy.Symbol, axes: Sequence[Axis], kind: AxisClass) -> Axis:
    return Axis(symbol, sympy.prod(axis.size for axis in axes), kind)
