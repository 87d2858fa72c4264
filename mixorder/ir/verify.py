"""What a loop program may look like in each form. Raises `ValueError` on the first broken rule.

The pipeline calls `verify` between stages, in strict mode, and `check_stores` before kernels are written, in
every compile.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from ..inductor.symbols import FloorDiv, ModularIndexing, canonical
from .dtypes import BOOL, IN_SLOTS, added_up_in, computed_in
from .in_place import why_not
from .program import (
    NUM_SPLITS,
    Axis,
    AxisClass,
    BufferRole,
    Carry,
    Exchange,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Store,
    Value,
    depth_of,
    index_symbols,
    loops_of,
    operands,
)

_Steps = list[tuple[sympy.Expr | int, sympy.Expr | int]]
"""Parts of an offset: a stride and how many of it."""


class Form(enum.Enum):
    """The last stage that a program has passed."""

    LOWERED = "lowered"
    MERGED = "merged"  # in one nest over rows, whose sums over these another nest adds up
    COOPERATIVE = "cooperative"
    TWO_PASS = "two_pass"  # in three nests: sums, what follows from them, and what that is needed for
    TILE_LOCAL = "tile_local"  # in one nest, whose reductions end within a tile
    WHOLE_GROUPS = "whole_groups"  # in one nest, and another one for sums over several tiles


def verify(program: LoopProgram, form: Form) -> LoopProgram:
    """Return the program, unchanged, if it is legal in this form."""
    for nest in (*program.nests, *([program.producer_nest] if program.producer_nest else [])):
        _verify_values(program, nest)
        _verify_dtypes(program, nest)
    stored = [s.buffer for nest in program.nests for s in nest.body if isinstance(s, Store)]
    staged = [name for name in stored if program.buffer(name).role is BufferRole.WORKSPACE]
    stored = [name for name in stored if name not in staged]
    outputs = [b.name for b in program.role(BufferRole.OUTPUT)]
    _require(sorted(stored) == sorted(outputs), "outputs {} are stored as {}", outputs, stored)
    _require(
        not staged or form in (Form.TILE_LOCAL, Form.TWO_PASS, Form.WHOLE_GROUPS), "{} are staged", staged
    )
    if form is Form.TILE_LOCAL:
        _verify_tile_local(program)
    elif form is Form.TWO_PASS:
        _require(len(program.nests) in (3, 4), "{} nests instead of three or four", len(program.nests))
        _require(not any(isinstance(s, Reduce) for s in program.nests[2].body), "the third nest reduces")
    elif form is Form.WHOLE_GROUPS:
        _require(program.over_reduction_groups, "no sums of reduction groups")
        _require(len(program.nests) in (1, 2), "{} nests instead of one or two", len(program.nests))
    elif form is Form.LOWERED:
        _require(not program.role(BufferRole.WORKSPACE), "a workspace before the split")
        _require(all(b.over is None for b in program.buffers), "an output is over an input before the split")
    else:
        _verify_merged(program)
    if form is Form.COOPERATIVE:
        _verify_phases(program.nests[0])
    _verify_in_place(program)
    return program


def check_stores(program: LoopProgram) -> None:
    """Raise `ValueError` unless each element of each output is stored exactly once, as far as its index
    tells: the strides of the loops are those of the buffer's dims."""
    for nest in program.nests:
        stores = [s for s in nest.statements if isinstance(s, Store)]
        long = {axis.symbol for axis in nest.loops if _plain(axis.size) != 1}
        deps = nest.dependence() if stores else {}
        for store in stores:
            buffer = program.buffer(store.buffer)
            if buffer.role is BufferRole.OUTPUT:
                repeated = (loops_of(store, deps) - store.index.free_symbols) & long
                _require(not repeated, "{} is repeated for each of {}", store, repeated)
                dims = _joined(list(zip(buffer.stride, buffer.shape, strict=True)))
                _require(_steps(store.index, nest.loops) == dims, "{} does not cover {}", store, buffer)


def _steps(index: sympy.Expr, loops: Sequence[Axis]) -> _Steps | None:
    """An index as its strides; None for one that is no sum of multiples of whole loops or their digits."""
    sizes, strides = {axis.symbol: axis.size for axis in loops}, dict[sympy.Expr, sympy.Expr]()
    for term in sympy.Add.make_args(sympy.expand(index)):
        if term != 0:
            stride, place = term.as_independent(*sizes)
            strides[place] = strides.get(place, sympy.S.Zero) + stride
    steps, digits = _Steps(), dict[sympy.Expr, _Steps]()
    for place, stride in strides.items():
        is_digit = isinstance(place, FloorDiv | ModularIndexing)
        whole, by, *counts = place.args if is_digit else (place, sympy.S.One)
        if whole not in sizes and is_digit:  # several loops together, such as blocks and what is in one
            match _steps(whole, loops):
                case [(1, size)]:
                    sizes[whole] = size
        if whole not in sizes:
            return None
        count = counts[0] if counts else sympy.cancel(sizes[whole] / by)
        digits.setdefault(whole, []).append((by, count))
        steps.append((stride, count))
    for part in [whole for whole in digits if whole.is_Symbol]:
        for whole in digits:
            if part != whole and part in whole.free_symbols:
                moved = [_digit_of(whole, sizes, part, *digit) for digit in digits[part]]
                digits[part] = []
                digits[whole] += [digit for digit in moved if digit is not None]
    digits = {whole: parts for whole, parts in digits.items() if parts}
    used = [symbol for whole in digits for symbol in whole.free_symbols & {axis.symbol for axis in loops}]
    are_whole = all(_joined(parts) == _joined([(sympy.S.One, sizes[w])]) for w, parts in digits.items())
    return _joined(steps) if are_whole and len(used) == len({*used}) else None


def _digit_of(
    whole: sympy.Expr, sizes: Mapping[sympy.Expr, Any], loop: sympy.Expr, by: sympy.Expr, count: sympy.Expr
) -> tuple[sympy.Expr, sympy.Expr] | None:
    """By what a sum of loops is divided, and modulo what, to give a digit of one of its loops; None where the
    others carry into it."""
    strides = {symbol: whole.coeff(symbol) for symbol in whole.free_symbols}
    step = strides[loop] * by
    lower = [s for s, stride in strides.items() if s != loop and stride % (step * count) != 0]
    carried = sum(strides[s] * (sizes[s] - 1) for s in lower)
    return (step, count) if bool(carried < strides[loop]) else None


def _joined(steps: _Steps) -> _Steps:
    """The fewest steps with the same offsets, in an order of their own."""
    left = [(_plain(stride), size) for stride, n in steps if (size := _plain(n)) != 1]
    for outer, inner in itertools.permutations(left, 2):
        if outer[0] == _plain(inner[0] * inner[1]):
            rest = [step for step in left if step is not outer and step is not inner]
            return _joined([*rest, (inner[0], outer[1] * inner[1])])
    return sorted(left, key=str)


def _plain(size: sympy.Expr | int) -> sympy.Expr | int:
    """An int, where it is one, else the form that all equal sizes have."""
    if not isinstance(size, int) and not size.is_Integer:
        size = canonical(size)
    return size if isinstance(size, int) else int(size) if size.is_Integer else size


def _verify_tile_local(program: LoopProgram) -> None:
    """One nest, or a second one for partial results, of which the first reduces no axis of blocks. Behind
    these, a nest for each staged result, which copies it."""
    main, *rest = program.nests
    final = [nest for nest in rest if nest.over_splits]
    copied = [s.buffer for n in rest if not n.over_splits for s in n.body if isinstance(s, Load)]
    spaces = [b.name for b in program.role(BufferRole.WORKSPACE)]
    staged = [s.buffer for s in main.body if isinstance(s, Store) and s.buffer in spaces]
    _require(program.tile_local and len(final) <= 1, "a tile-local program has one nest and a finalisation")
    _require(staged == copied, "{} are staged, and {} copied", staged, copied)
    _require(bool(final) == (len(spaces) > len(staged)), "a finalisation without a workspace")
    mailbox = {b.name for b in program.role(BufferRole.MAILBOX)}
    produced = program.producer_nest.body if program.producer_nest else ()
    filled = {s.buffer for s in produced if isinstance(s, Store)}
    _require(filled == mailbox, "the mailboxes {} are written as {}", mailbox, filled)
    if final or filled:
        blocks = {axis.symbol for axis in main.loops if axis.kind is AxisClass.BATCH}
        for stmt in main.body:
            whole = not isinstance(stmt, Reduce) or blocks.isdisjoint(stmt.axes)
            _require(whole, "{} spans more than a tile", stmt)


def _verify_in_place(program: LoopProgram) -> None:
    """An output reuses one input's memory, after its last read, and no two outputs reuse the same input's."""
    over = [b for b in program.buffers if b.over is not None]
    waits = any(isinstance(s, Exchange) for s in program.nests[0].body)
    _require(not (over and waits), "a program that waits for others may have to read its input again")
    _require(len({b.over for b in over}) == len(over), "two outputs are over one input")
    for buffer in over:
        _require(buffer.role is BufferRole.OUTPUT, "{} is over an input, and no output", buffer.name)
        source = program.buffer(str(buffer.over))
        _require(
            source.role is BufferRole.INPUT, "{} is over {}, which is no input", buffer.name, source.name
        )
        reason = why_not(program, buffer, source)
        _require(reason is None, "{} is over {}: {}", buffer.name, source.name, reason)


def _verify_values(program: LoopProgram, nest: Nest) -> None:
    """Static single assignment, and indices over the nest's own loops."""
    symbols = {axis.symbol for axis in nest.loops} | {NUM_SPLITS} | {size for size, _ in program.hints}
    defined: set[str] = set()
    bools: set[str] = set()
    for stmt in nest.statements:
        for name in operands(stmt):
            _require(name in defined, "{} uses %{} before its definition", stmt, name)
        if isinstance(stmt, Load | Store | PartialAccumulate | Exchange):
            program.buffer(stmt.buffer)
        _require(index_symbols(stmt) <= symbols, "{} leaves the nest's loops", stmt)
        if isinstance(stmt, Load) and stmt.predicate is not None:
            _require(stmt.predicate.name in bools, "{} depends on what is no bool", stmt)
        if isinstance(stmt, Value):
            _require(stmt.name not in defined, "%{} is defined twice", stmt.name)
            defined.add(stmt.name)
            if stmt.dtype == BOOL:
                bools.add(stmt.name)
        if isinstance(stmt, PartialAccumulate) and stmt.peak is not None:
            behind = nest.statements[nest.statements.index(stmt) :]
            maxima = [s for s in behind if isinstance(s, PartialAccumulate) and s.buffer == stmt.peak]
            _require([s.value for s in maxima] == [stmt.value], "{} is behind its maximum", stmt)
        if isinstance(stmt, Reduce):
            _require(set(stmt.axes) <= symbols, "{} reduces a loop that is not there", stmt)


def _verify_dtypes(program: LoopProgram, nest: Nest) -> None:
    """Only a cast changes a dtype, except that half precision in memory is computed in float32. A reduction
    accumulates in the dtype that its result requires."""
    dtypes = {s.name: s.dtype for s in nest.statements if isinstance(s, Value)}
    for stmt in nest.statements:
        if isinstance(stmt, Reduce):
            wanted = stmt.kind.accumulates_in(stmt.stored)
            # The sum of partials may have a wider dtype than the partials.
            _require(stmt.dtype in (wanted, added_up_in(wanted)), "{} is to be in {}", stmt, wanted)
            _require(dtypes[stmt.value.name] == stmt.dtype, "{} is of {}", stmt, dtypes[stmt.value.name])
        elif isinstance(stmt, Carry):
            _require(dtypes[stmt.value.name] == stmt.dtype, "{} is of {}", stmt, dtypes[stmt.value.name])
        elif isinstance(stmt, Load | Store | PartialAccumulate):
            value = stmt.dtype if isinstance(stmt, Load) else dtypes[stmt.value.name]
            stored = program.buffer(stmt.buffer).dtype
            legal = {stored, computed_in(stored)}
            partials = BufferRole.WORKSPACE, BufferRole.ACCUMULATOR
            if isinstance(stmt, Load) and program.buffer(stmt.buffer).role in partials:
                legal.add(added_up_in(stored))
            if isinstance(stmt, Store) and program.buffer(stmt.buffer).role is BufferRole.MAILBOX:
                legal = {IN_SLOTS}
            _require(value in legal, "{}: {} in a buffer of {}", stmt, value, stored)


def _verify_merged(program: LoopProgram) -> None:
    """One nest is over rows. No reduction is over rows, rows enclose columns, and no preamble depends on
    rows."""
    over_rows = [n for n in program.nests if any(axis.kind is AxisClass.ROW for axis in n.loops)]
    _require(len(over_rows) == 1, "{} nests over rows after the split", len(over_rows))
    for nest in program.nests:
        _verify_order(nest)


def _verify_order(nest: Nest) -> None:
    over = {axis.symbol for axis in nest.loops if axis.kind is AxisClass.ROW}
    for stmt in nest.body:
        outer = isinstance(stmt, Reduce) and not over.isdisjoint(stmt.axes)
        _require(not outer, "{} is an outer reduction", stmt)
    kinds = [axis.kind for axis in nest.loops]
    if AxisClass.ROW in kinds and AxisClass.COLUMN in kinds:
        _require(kinds.index(AxisClass.ROW) < kinds.index(AxisClass.COLUMN), "columns enclose rows")
    deps = nest.dependence()
    for stmt in nest.preamble:
        rows = [a for a in nest.loops if a.kind in (AxisClass.ROW, AxisClass.SPLIT)]
        _require(depth_of(stmt, tuple(rows), deps) == 0, "{} is hoisted but depends on rows", stmt)


def _verify_phases(nest: Nest) -> None:
    """A phase uses a value that varies over rows only if it computes it, or the value is carried to it or
    exchanged just before it."""
    deps = nest.dependence()
    rows = {axis.symbol for axis in nest.loops if axis.kind is AxisClass.ROW}
    phase, phase_of = 0, dict[str, int]()
    for stmt in nest.body:
        if isinstance(stmt, Exchange):
            phase += 1
            phase_of.update({ref.name: phase for ref in stmt.values})
            continue
        for name in operands(stmt):
            if deps[name] & rows:
                # A reduction belongs to no phase until it is exchanged.
                here = name in phase_of and phase_of[name] + isinstance(stmt, Carry) == phase
                _require(here, "{} is in phase {}, %{} is not", stmt, phase, name)
        if isinstance(stmt, Value) and not isinstance(stmt, Reduce):
            phase_of[stmt.name] = phase


def _require(condition: bool, message: str, *args: object) -> None:
    """The arguments fill the message's braces, once it is raised: writing out a statement takes long."""
    if not condition:
        raise ValueError(message.format(*args))
