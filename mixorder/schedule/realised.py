"""A region's loops as Inductor has them where it stores a value on the way (`region.realised`).

The value is stored by the first loops that compute it, or by a kernel of its own before Inductor's fusion of
row-wise and column-wise reductions. The loops that follow read it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import sympy

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
    Statement,
    Store,
    Value,
    closure,
    live,
)
from .facts import cost_of
from .work import Work

ONE = sympy.S.One
Places = Mapping[str, tuple[Buffer, sympy.Expr]]
"""Values by name, and where they are stored."""


def as_stored(
    program: LoopProgram, is_mixed: Callable[[LoopProgram], bool]
) -> tuple[LoopProgram, Nest | None]:
    """The program with its nests as Inductor has them, and the nest that is a kernel of its own before them.
    `is_mixed`: whether Inductor makes one kernel of a program's two nests."""
    kept = _kept(program) if _reduces_rows(program) else {}
    if not kept:
        return program, None
    added = (buffer for buffer, _ in kept.values() if buffer not in program.buffers)
    whole = dataclasses.replace(program, buffers=(*program.buffers, *added))
    reading = dataclasses.replace(whole, nests=tuple(_reading(nest, kept) for nest in program.nests))
    if not _can_store(whole, kept) or (is_mixed(program) and is_mixed(reading)):
        filled = tuple(nest for nest in reading.nests if nest.statements)
        return dataclasses.replace(reading, nests=filled), _writing(whole, kept)
    first, written = program.nests[0], {s.buffer for s in program.nests[0].statements if isinstance(s, Store)}
    stores = [s for s in _stores(kept) if s.buffer not in written]
    body = closure(_values(program.nests), [*(s for s in first.body if isinstance(s, Store)), *stores])
    return dataclasses.replace(whole, nests=(Nest(first.loops, body), *reading.nests[1:])), None


def with_pieces(program: LoopProgram) -> tuple[LoopProgram, list[Work]]:
    """The program with loops that read what Inductor stores of parts of them, such as one tensor of a `cat`
    that takes much to compute. And the work of the kernels that store it, one for each size."""
    first = program.nests[0]
    computed = {s.name: s for s in first.statements if isinstance(s, Compute)}
    deps, full = first.dependence(), {axis.symbol for axis in program.tile_axes}
    buffers, loads, work = dict[object, Buffer](), dict[str, Load](), dict[int, Work]()
    for one in program.realised:
        if one.numel is None or one.name not in computed or not full <= deps[one.name]:
            continue
        body = closure(first.statements, [Store("", one.index, Ref(one.name))])[:-1]
        own = [s for s in body if isinstance(s, Load | Compute) and full <= deps[s.name]]
        if any(isinstance(s, Reduce) for s in body):
            continue
        read, numel = frozenset(s.buffer for s in own if isinstance(s, Load)), program.hint(one.numel)
        key = (one.numel, one.dtype, read)  # the same value, at other places
        if key not in buffers:
            buffers[key] = Buffer(f"piece{len(buffers)}", BufferRole.INPUT, one.dtype, (one.numel,), (ONE,))
            moved = numel * sum(b.dtype.itemsize for b in (buffers[key], *map(program.buffer, read)))
            light = numel * sum(cost_of(s.op) for s in own if isinstance(s, Compute))
            work[numel] = work.get(numel, Work(0, 0)) + Work(moved, moved, light)
        loads[one.name] = Load(
            one.name, buffers[key].name, one.index, computed[one.name].dtype, one.predicate
        )
    if not loads:
        return program, []
    nests = tuple(
        dataclasses.replace(
            nest, body=live(loads.get(s.name, s) if isinstance(s, Value) else s for s in nest.body)
        )
        for nest in program.nests
    )
    added = (*program.buffers, *buffers.values())
    return dataclasses.replace(program, buffers=added, nests=nests), list(work.values())


def _reduces_rows(program: LoopProgram) -> bool:
    """Whether the first nest reduces along rows, which are in no batch. For others, predictions with stored
    values were worse than without (docs/tuning.md, "Tried, without gain")."""
    _, last = program.tile_axes
    reductions = [s for s in program.nests[0].statements if isinstance(s, Reduce)]
    batched = program.axis(AxisClass.BATCH) is not None
    return not batched and any(last.symbol in s.axes for s in reductions)


def _can_store(program: LoopProgram, kept: Places) -> bool:
    """Whether the first nest stores what it computes on the way: its loops are those of the values. It does
    not if it only adds up rows, or moves the values to another place."""
    row, last = program.tile_axes
    first = program.nests[0]
    reductions = [s for s in first.statements if isinstance(s, Reduce)]
    if last.kind is not AxisClass.COLUMN or any(row.symbol in s.axes for s in reductions):
        return False
    full = {row.symbol, last.symbol}
    places = [index for _, index in kept.values()]
    if not reductions:
        stores = (s for s in first.statements if isinstance(s, Store))
        places += [s.index for s in stores if full <= s.index.free_symbols]
    return all(_in_order(program, index) for index in places)


def _in_order(program: LoopProgram, index: sympy.Expr) -> bool:
    """Whether elements are in the order of the loops, at some points of them. Those of a batch may lie within
    rows as well: Inductor orders its loops as the tensors are."""
    axes = _axes(program)
    orders = [axes] if len(axes) == 2 else [axes, (axes[1], axes[0], axes[2])]
    sizes = [(axis.symbol, max(1, program.hint(axis.size))) for axis in axes]
    points = [{symbol: sympy.Integer(i * STEP % size) for symbol, size in sizes} for i in range(POINTS)]
    hints = dict(program.hints)
    own = [index.xreplace(hints).xreplace(at) for at in points]
    return any(own == [_position(order).xreplace(hints).xreplace(at) for at in points] for order in orders)


def _position(axes: Iterable[Axis]) -> sympy.Expr:
    """The index of loops, outermost first, into a tensor in their order."""
    found = sympy.S.Zero
    for axis in axes:
        found = found * axis.size + axis.symbol
    return found


POINTS, STEP = 8, 7919  # a prime


def _kept(program: LoopProgram) -> dict[str, tuple[Buffer, sympy.Expr]]:
    """The values over rows and columns that Inductor stores before any reduction."""
    row, last = program.tile_axes
    numel = sympy.prod(axis.size for axis in _axes(program))
    found: dict[str, tuple[Buffer, sympy.Expr]] = {}
    for one in program.realised:
        nest = next((nest for nest in program.nests if one.name in _names(nest)), None)
        if nest is None or not {row.symbol, last.symbol} <= nest.dependence()[one.name]:
            continue
        store = Store(one.output or f"kept{len(found)}", one.index, Ref(one.name))
        if any(isinstance(s, Reduce) for s in closure(nest.statements, [store])):
            continue
        own = Buffer(store.buffer, BufferRole.INPUT, one.dtype, (numel,), (sympy.S.One,))
        buffer = own if one.output is None else program.buffer(one.output)
        found[one.name] = (buffer, one.index)
    return found


def _axes(program: LoopProgram) -> tuple[Axis, ...]:
    return tuple(axis for axis in (program.axis(AxisClass.BATCH), *program.tile_axes) if axis is not None)


def _names(nest: Nest) -> set[str]:
    """The values that a nest computes."""
    return {s.name for s in nest.statements if isinstance(s, Compute)}


def _values(nests: Iterable[Nest]) -> list[Statement]:
    """The values of some nests, each once."""
    return list({s.name: s for nest in nests for s in nest.statements if isinstance(s, Value)}.values())


def _stores(kept: Places) -> list[Store]:
    return [Store(buffer.name, index, Ref(name)) for name, (buffer, index) in kept.items()]


def _reading(nest: Nest, kept: Places) -> Nest:
    """A nest that reads these values, and does not store them."""

    def read(stmt: Statement) -> Statement:
        if not (isinstance(stmt, Value) and stmt.name in kept):
            return stmt
        buffer, index = kept[stmt.name]
        return Load(stmt.name, buffer.name, index, stmt.dtype)

    places = {(name, buffer.name) for name, (buffer, _) in kept.items()}
    own = [s for s in nest.body if not (isinstance(s, Store) and (s.value.name, s.buffer) in places)]
    return dataclasses.replace(nest, body=live(map(read, own)))


def _writing(program: LoopProgram, kept: Places) -> Nest:
    """A nest that stores these values."""
    return Nest(_axes(program), closure(_values(program.nests), _stores(kept)))
