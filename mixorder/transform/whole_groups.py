"""Keep whole reduction groups in a tile, so that every tensor is read once: all that elements need is
reduced there.

Takes a program as lowered, with one nest, as `transform.reduction_groups` does. The axes that such reductions
are over lie within a tile. What is also summed over others, for gradients of weights, is reduced within a
tile as far as it goes, and stored in a workspace, whose elements a second nest adds up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import sympy

from ..errors import Decline, DeclineReason, GainsNothing
from ..ir.program import (
    Axis,
    AxisClass,
    Buffer,
    Load,
    LoopProgram,
    Nest,
    Reduce,
    Ref,
    Statement,
    Store,
    behind,
    closure,
    live,
    loops_of,
    operands,
    workspace,
)
from ..ir.rewriting import along_one
from .reduction_groups import axis_groups, in_memory_order
from .split import added_up


def within_a_tile(program: LoopProgram) -> LoopProgram:
    """The program's nests: that of the elements, and one for sums over several tiles, if there are any.
    Raises `Decline` where these are not enough."""
    (nest,) = program.nests
    axes, body, deps = in_memory_order(program), nest.body, nest.dependence()
    every = {axis.symbol for axis in axes}
    reductions = [s for s in body if isinstance(s, Reduce)]
    computed = behind(body, reductions)
    elements = [s for s in body if isinstance(s, Store) and every <= s.index.free_symbols]
    late = [s for s in elements if s.value.name in computed]
    inside = {symbol for s in closure(body, late) if isinstance(s, Reduce) for symbol in s.axes}
    if not inside:
        raise Decline(DeclineReason.AXIS_CLASS, "nothing of full size is computed from the sums")
    if not all(axis.size.is_number for axis in axes if axis.symbol in inside):
        raise GainsNothing(DeclineReason.DYNAMIC_SHAPE, "reduction groups of any size")
    spanning = [s for s in reductions if not inside.issuperset(s.axes)]
    totals = behind(body, spanning)
    final = [s for s in body if isinstance(s, Store) and s.value.name in totals]
    over = _outside(program, spanning, inside, totals)
    kept = {stmt: _kept(stmt, axes, deps) for stmt in spanning}
    if any(every <= {axis.symbol for axis in (*over, *kept_axes)} for kept_axes in kept.values()):
        raise Decline(DeclineReason.AXIS_CLASS, "sums of elements of several reduction groups")

    main, second, buffers = list[Statement](), list[Statement](), list[Buffer]()
    for stmt in body:
        if stmt not in spanning:
            main += [] if stmt in final or getattr(stmt, "name", None) in totals else [stmt]
            second += [] if isinstance(stmt, Store) else [stmt]
            continue
        value = stmt.value
        if within := tuple(symbol for symbol in stmt.axes if symbol in inside):
            value = Ref(f"{stmt.name}.group")
            main.append(dataclasses.replace(stmt, name=value.name, axes=within))
        buffer, place = workspace(f"ws{len(buffers)}", stmt.dtype, [*over, *kept[stmt]])
        buffers.append(buffer)
        main.append(Store(buffer.name, place, value))
        load = Load(f"{stmt.name}.partial", buffer.name, place, stmt.dtype)
        second += added_up(stmt, [load], (over[-1].symbol,))
    nests = [_of_elements(axes, live(main))]
    if final:
        nests.append(_of_totals(axes, over, closure(second, final)))
    return dataclasses.replace(program, buffers=(*program.buffers, *buffers), nests=tuple(nests))


def _kept(stmt: Reduce, axes: Sequence[Axis], deps: Mapping[str, frozenset[sympy.Symbol]]) -> list[Axis]:
    """The axes of a sum over several tiles."""
    kept = [a for a in axes if a.symbol in deps[stmt.value.name] and a.symbol not in stmt.axes]
    if not all(axis.size.is_number for axis in kept):
        raise Decline(DeclineReason.DYNAMIC_SHAPE, "sums for each element of a symbolic size")
    return kept


def _outside(
    program: LoopProgram, spanning: Sequence[Reduce], inside: set[sympy.Symbol], totals: set[str]
) -> list[Axis]:
    """The axes outside of a tile that sums are over."""
    deps = program.nests[0].dependence()
    for stmt in spanning:
        outside = {*stmt.axes} - inside
        if outside != {*spanning[0].axes} - inside:
            raise Decline(DeclineReason.AXIS_CLASS, "sums over several sets of reduction groups", stmt.name)
        if not totals.isdisjoint(operands(stmt)) or not outside <= deps[stmt.value.name]:
            raise Decline(DeclineReason.AXIS_CLASS, "sums of what all reduction groups have", stmt.name)
    symbols = {symbol for stmt in spanning for symbol in stmt.axes}
    return [a for a in in_memory_order(program) if a.symbol in symbols and a.symbol not in inside]


def _of_elements(axes: Sequence[Axis], body: Sequence[Statement]) -> Nest:
    """The first nest, in which neighbours that no access and no reduction tells apart are one axis."""
    groups = axis_groups(axes, body, [s.axes for s in body if isinstance(s, Reduce)])
    return Nest(tuple(axis for _, axis in groups), along_one(body, groups, dividing=True))


def _of_totals(axes: Sequence[Axis], over: Sequence[Axis], body: Sequence[Statement]) -> Nest:
    """The second nest. Its first axis has all that sums are over."""
    if any(isinstance(s, Reduce) and s.axes != (over[-1].symbol,) for s in body):
        raise Decline(
            DeclineReason.AXIS_CLASS, "sums over reduction groups of what follows from sums over them"
        )
    row = Axis(over[-1].symbol, sympy.prod(axis.size for axis in over), AxisClass.ROW)
    body = along_one(body, [(over, row)])
    deps = Nest((row, *axes), body).dependence()
    used = {symbol for s in body for symbol in loops_of(s, deps)}
    return Nest((row, *(axis for axis in axes if axis.symbol in used - {row.symbol})), body)
