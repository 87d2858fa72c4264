"""Write the kernel of a program whose reductions all end within its tile.

A value is a tensor with a dim for each axis along which the tile has several elements, and size 1 along those
that it does not depend on. Memory is accessed in the order in which it lies: axes that follow one another
without a gap make one dim, the contiguous one last. A value is turned to that order before its store, so that
Triton exchanges it through shared memory and both loads and stores are of whole sectors.

Triton deals the elements of a load out to lanes, then warps, then the registers of a thread, in the order of
its dims: the contiguous one first, then from the first on. So a load whose rows are two dims decides which
rows a thread has. With rows next to each other, it has bytes next to each other of a transposed result, and
reduces more of a column by itself. Values keep this order until they are stored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import sympy
import torch

from ..inductor.printing import IndentedBuffer, triton_compute_type
from ..ir.program import (
    NUM_SPLITS,
    SPLIT_SYMBOL,
    Axis,
    AxisClass,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Statement,
    Store,
    index_symbols,
    is_full,
    operands,
)
from ..ir.reductions import ReductionKind
from ..schedule.device import H200
from ..schedule.rows_ahead import Groups, groups_of
from ..schedule.schedule import Schedule, next_power_of_2
from ..transform.cooperative import MAILBOX
from .maxima import Maxima
from .op_printer import OpPrinter
from .registers import HELPER, MOST, WORD, along_columns
from .rows_ahead import FUNCTION, awaited, roles
from .source import KernelSource, LaunchConfig
from .writer import INT32_LIMIT, buffers_of, filler, named

_CASTS = ("to_dtype", "to_dtype_bitcast")


@dataclasses.dataclass(frozen=True)
class _Dim:
    """Axes that an access runs over as one dim: neighbours in memory, `stride` elements apart.

    `extent`: the tile's elements. `total`: those of the whole space.
    """

    axes: tuple[Axis, ...]
    stride: int
    extent: int
    total: int

    @property
    def name(self) -> str:
        return "".join(str(axis.symbol) for axis in self.axes)

    @property
    def masked(self) -> bool:
        return self.total % self.extent != 0


@dataclasses.dataclass(frozen=True)
class _Part:
    """Elements of a dim, `step` apart, that are one dim of a load."""

    dim: _Dim
    step: int
    extent: int


def tile_kernel(program: LoopProgram, schedule: Schedule, label: str) -> KernelSource:
    """The kernel of a blocked program."""
    writer = _TileWriter(program, schedule)
    writer.begin()
    if program.ahead is not None:
        writer.begin_groups(program.ahead)
    for stmt in program.nests[0].statements:
        writer.statement(stmt)
    return writer.finish(f"triton_mixorder_{label}")


def row_values(program: LoopProgram, ahead: Nest, schedule: Schedule) -> tuple[str, str]:
    """The text of a function that computes and stores values of whole rows, and its pointers."""
    row, column = ahead.loops
    extents = schedule.ahead_rows, next_power_of_2(int(column.size))
    own = dataclasses.replace(schedule, extents=extents, thread_rows=0, band=1, ahead=0)
    writer = _TileWriter(dataclasses.replace(program, nests=(ahead,)), own)
    writer.apart = frozenset({row})
    pointers = ", ".join(b.pointer for b in writer.buffers)
    writer.code.writeline("@triton.jit")
    writer.code.writeline(f"def {FUNCTION}({pointers}, {writer.number(row)}):")
    writer.code.do_indent()
    for stmt in ahead.statements:
        writer.statement(stmt)
    return f"{writer.maxima.functions}{writer.code.getvalue()}\n\n", pointers


class _TileWriter:
    def __init__(self, program: LoopProgram, schedule: Schedule) -> None:
        self.program, self.nest, self.schedule = program, program.nests[0], schedule
        self.axes = [axis for axis in self.nest.loops if axis.kind is not AxisClass.SPLIT]
        self.extents = dict(zip(self.axes, schedule.extents, strict=True))
        self.tiled = [axis for axis in self.axes if self.extents[axis] > 1]
        self.code = IndentedBuffer()
        self.ops = OpPrinter(self.code, {axis.symbol: axis.size for axis in self.axes}, exact=True)
        self.deps = self.nest.dependence()
        self.buffers = buffers_of(program, self.nest)
        if schedule.ahead and program.ahead is not None:
            read = buffers_of(program, program.ahead)
            self.buffers = [b for b in program.buffers if b in self.buffers or b in read]
        offsets = [b.max_offset.subs(NUM_SPLITS, schedule.num_splits) for b in self.buffers]
        self.wide = any(offset >= INT32_LIMIT for offset in offsets)
        reduced = {s for stmt in self.nest.body if isinstance(stmt, Reduce) for s in stmt.axes}
        self.reduced_axes = frozenset(axis for axis in self.axes if axis.symbol in reduced)
        self.maxima = Maxima()
        self.maxima.compared = self.turns_a_byte()
        self._known: set[str] = set()  # names of indices that the kernel has defined
        self._dealt: dict[str, str] = {}  # names of indices of two dims, by their text
        self.rows = self.row_axis() if schedule.thread_rows else None
        self.turned = self.turned_casts() if schedule.thread_rows >= WORD else frozenset()
        self._deals = False  # whether a thread has rows next to each other
        self._words = False  # whether a cast has words along columns
        self._functions = ""  # what the kernel calls
        self._groups: Groups | None = None
        self.apart: frozenset[Axis] = frozenset()  # axes that have dims of their own in loads

    def begin(self) -> None:
        pointers = ", ".join(b.pointer for b in self.buffers)
        self.code.writeline("@triton.jit")
        self.code.writeline(f"def KERNEL({pointers}):")
        self.code.do_indent()
        first = "tl.program_id(0)"
        if self.schedule.ahead:
            return
        if programs := self.schedule.programs:
            walk = f"{first}, {self.tiles_in_all}, {programs}, num_stages={self.schedule.tile.num_stages}"
            self.code.writeline(f"for tile in tl.range({walk}):")
            self.code.do_indent()
            first = "tile"
        if self.schedule.backwards:
            first = f"({self.tiles_in_all - 1} - {first})"
        self.code.writeline(f"program = {first}" + ".to(tl.int64)" * self.wide)
        if (band := self.schedule.band) > 1:
            along, across = (axis for axis in self.axes if self.tiles(axis) > 1)
            each = band * self.tiles(across)
            self.code.writeline(f"{self.number(along)} = program // {each} * {band} + program % {band}")
            self.code.writeline(f"{self.number(across)} = program % {each} // {band}")
            return
        before = 1
        for axis in reversed(self.axes):
            tiles = self.tiles(axis)
            if tiles > 1:
                number = "program" if before == 1 else f"program // {before}"
                number += f" % {tiles}" * (before * tiles != self.tiles_in_all)
                self.code.writeline(f"{self.number(axis)} = {number}")
            before *= tiles

    def begin_groups(self, ahead: Nest) -> None:
        """Begin a kernel whose programs come in groups (`codegen.rows_ahead`)."""
        rows = int(ahead.loops[0].size)
        sizes = [int(axis.size) for axis in self.axes]
        row_axes = next(k for k in range(1, len(sizes)) if math.prod(sizes[:k]) == rows)
        groups = self._groups = groups_of(sizes, row_axes, self.schedule)
        self._functions, pointers = row_values(self.program, ahead, self.schedule)
        row, column = self.number(self.axes[0]), self.number(self.axes[row_axes])
        mailbox = self.program.buffer(MAILBOX)
        counter = f"{mailbox.pointer} + {int(mailbox.numel) - 1}"
        for line in roles(groups, self.schedule.ahead, pointers, counter, row, column, self.wide):
            self.code.writeline(line)
        self.code.do_indent()

    def number(self, axis: Axis) -> str:
        """The number of the tile along an axis: the index itself where the tile has one element."""
        return f"{axis.symbol}_tile" if self.extents[axis] > 1 else str(axis.symbol)

    def tiles(self, axis: Axis) -> int:
        return -(-int(axis.size) // self.extents[axis])

    @property
    def tiles_in_all(self) -> int:
        return math.prod(map(self.tiles, self.axes))

    def finish(self, name: str) -> KernelSource:
        functions = self._functions + self.maxima.functions + HELPER * self._words
        name, text = named(name, functions + self.code.getvalue())
        stored = {s.buffer for s in self.nest.body if isinstance(s, Store | PartialAccumulate)}
        names = tuple(b.name for b in self.buffers)
        config = LaunchConfig((), self.schedule.tile.num_warps, self.schedule.tile.num_stages)
        written = tuple(n for n in names if n in stored)
        grid = self.schedule.programs or self.tiles_in_all
        if self._groups is not None:
            written = (*written, MAILBOX)
            grid = (self._groups.row_tiles + self.schedule.ahead) * self._groups.programs
        most = self.schedule.max_registers
        return KernelSource(name, text, names, written, (), grid, config, exact=True, registers=most)

    def statement(self, stmt: Statement) -> None:
        with self.ops.active():
            if isinstance(stmt, Load):
                self.load(stmt)
            elif isinstance(stmt, Reduce):
                self.reduce(stmt)
            elif isinstance(stmt, Store):
                self.store(stmt, str(self.ops.variables[stmt.value.name]), self.deps[stmt.value.name])
            elif isinstance(stmt, PartialAccumulate):
                self.store_partial(stmt)
            else:
                assert isinstance(stmt, Compute)
                for axis in (a for a in self.axes if a.symbol in index_symbols(stmt)):
                    self.define_index(axis)
                if stmt.name in self.turned and self._deals:
                    self.in_words(stmt.args[0].name)
                self.ops.compute(stmt)

    # Where an access goes.

    def dims(self, index: sympy.Expr, apart: frozenset[Axis] = frozenset()) -> list[_Dim]:
        """The dims of an access, outermost in memory first. Axes `apart` have dims of their own, before the
        others, but for the contiguous one."""
        strides = {axis: int(index.coeff(axis.symbol)) for axis in self.tiled}
        order = sorted((a for a in self.tiled if strides[a]), key=lambda a: strides[a], reverse=True)
        found, first = list[_Dim](), list[_Dim]()
        for axis in reversed(order):
            size, extent = int(axis.size), self.extents[axis]
            one = _Dim((axis,), strides[axis], extent, size)
            own = first if found and axis in apart else found
            if own and own[0].extent == own[0].total and strides[axis] == own[0].stride * own[0].total:
                after = own[0]
                joined = (axis, *after.axes), after.stride, extent * after.extent, size * after.total
                own[0] = _Dim(*joined)
            else:
                own.insert(0, one)
        return first + found

    def define(self, name: str, first: Axis, extent: int, spread: str = "") -> None:
        """Define the indices of a tile's elements along `first` and what follows it without a gap."""
        if name not in self._known:
            self._known.add(name)
            start = f"{self.number(first)} * {extent} + " * (self.tiles(first) > 1)
            self.code.writeline(f"{name} = {start}tl.arange(0, {extent}){spread}")

    def define_index(self, axis: Axis) -> None:
        """Define the symbol of an axis, for its use as a value."""
        if axis in self.tiled:
            spread = _spread(len(self.tiled), self.tiled.index(axis))
            self.define(str(axis.symbol), axis, self.extents[axis], spread)

    @staticmethod
    def at(dim: _Dim) -> str:
        return f"at_{dim.name}"

    def place(self, buffer: str, index: sympy.Expr, parts: Sequence[_Part]) -> tuple[str, str]:
        """The address of an access and its mask, which is empty where all elements exist."""
        tiled = {axis.symbol for axis in self.tiled}
        outside = sympy.expand(index.xreplace(dict.fromkeys(tiled, sympy.S.Zero)))
        constant = outside.xreplace(dict.fromkeys(outside.free_symbols, sympy.S.Zero))
        terms = [str(constant)] * bool(constant)
        terms += [f"{outside.coeff(s)} * {s}" for s in sorted(outside.free_symbols, key=str)]
        masks = []
        for dim in dict.fromkeys(part.dim for part in parts):
            at = self.index_along(dim, parts)
            terms.append(f"{dim.stride} * " * (dim.stride != 1) + at)
            if dim.masked:
                masks.append(f"({at} < {dim.total})")
        pointer = self.program.buffer(buffer).pointer
        mask = " & ".join(masks)
        return f"{pointer} + ({' + '.join(terms) or '0'})", mask

    def index_along(self, dim: _Dim, parts: Sequence[_Part]) -> str:
        """The index along a dim, defined before if it is not yet, in a tensor of all parts."""
        own = {i: part for i, part in enumerate(parts) if part.dim == dim}
        spread = {i: "" if len(parts) == 1 else _spread(len(parts), i) for i in own}
        if len(own) == 1:
            self.define(self.at(dim), dim.axes[0], dim.extent)
            return self.at(dim) + "".join(spread.values())
        steps = [
            f"{p.step} * " * (p.step != 1) + f"tl.arange(0, {p.extent}){spread[i]}" for i, p in own.items()
        ]
        if self.tiles(dim.axes[0]) > 1:
            steps.insert(0, f"{self.number(dim.axes[0])} * {dim.extent}")
        text = " + ".join(steps)
        if text not in self._dealt:
            same = sum(name.startswith(f"dealt_{dim.name}") for name in self._dealt.values())
            self._dealt[text] = f"dealt_{dim.name}" + f"_{same}" * bool(same)
            self.code.writeline(f"{self._dealt[text]} = {text}")
        return self._dealt[text]

    def parts(self, dims: Sequence[_Dim]) -> list[_Part]:
        """The dims of a load in the order in which Triton deals its elements out. Of a full tile, a warp has
        `warp_cols` columns, and a thread `thread_rows` rows."""
        whole = [_Part(dim, 1, dim.extent) for dim in dims]
        rows = next((dim for dim in dims[:-1] if self.rows in dim.axes), None)
        if rows is None or sum(len(dim.axes) for dim in dims) < len(self.tiled) or dims[-1].stride != 1:
            return whole
        last = dims[-1]
        self._deals = True
        each, cols = min(self.schedule.thread_rows, rows.extent), min(self.schedule.warp_cols, last.extent)
        others = (part for part in whole if part.dim not in (rows, last))
        parts = [_Part(rows, each, rows.extent // each), *others, _Part(last, cols, last.extent // cols)]
        parts += [_Part(rows, 1, each), _Part(last, 1, cols)]
        return [part for part in parts if part.extent > 1]

    @staticmethod
    def joined(text: str, parts: Sequence[_Part]) -> tuple[list[_Dim], str]:
        """A load with one dim for each dim of memory, and these dims."""
        dims = list(dict.fromkeys(part.dim for part in parts))
        if len(parts) > len(dims):
            order = [i for dim in dims for i, part in enumerate(parts) if part.dim == dim]
            if order != sorted(order):
                text = f"tl.permute({text}, ({', '.join(map(str, order))}))"
            text = f"tl.reshape({text}, [{', '.join(str(dim.extent) for dim in dims)}])"
        return dims, text

    def row_axis(self) -> Axis | None:
        """The axis along which a thread has several elements of a full tensor: that along which a result is
        turned around, or else the innermost of those that are reduced across memory."""
        loaded, turned = self.full_axes(Load), list[Axis]()
        for stored in self.full_axes(Store):
            # Of packed elements, the load has axes that the store has not.
            before = {next((axis for axis in axes if axis in stored), None) for axes in loaded}
            turned += [axis for axis in stored[:1] if axis not in before]
        first = {axis for axes in loaded for axis in axes[:1]}
        across = [axis for axis in reversed(self.tiled) if axis in self.reduced_axes and axis not in first]
        return next(iter(turned + across), None)

    def full_axes(self, kind: type[Load | Store]) -> list[list[Axis]]:
        """The axes of each full tensor that is loaded, or stored, innermost first."""
        reduced = {axis.symbol for axis in self.reduced_axes}
        accesses = [s for s in self.nest.body if isinstance(s, kind) and is_full(s, self.tiled, reduced)]
        return [[axis for dim in self.dims(s.index) for axis in dim.axes][::-1] for s in accesses]

    def shape(self, axes: Sequence[Axis]) -> str:
        return f"[{', '.join(str(self.extents[a]) if a in axes else '1' for a in self.tiled)}]"

    # Statements.

    def load(self, stmt: Load) -> None:
        # Threads and warps are spread over the last dims. Along the first ones a thread has several elements,
        # which it reduces by itself.
        apart = self.reduced_axes | self.apart | ({self.rows} if self.rows else set())
        parts = self.parts(self.dims(stmt.index, apart))
        address, mask = self.place(stmt.buffer, stmt.index, parts)
        text = f"tl.load({address}{f', {mask}, other=0' * bool(mask)})"
        if stmt.buffer == MAILBOX:
            text = awaited(address, mask, self.program.buffer(MAILBOX).pointer)
        if self.program.buffer(stmt.buffer).dtype != stmt.dtype:
            text += f".to({triton_compute_type(stmt.dtype)})"
        dims, text = self.joined(text, parts)
        axes = [axis for dim in dims for axis in dim.axes]
        if axes:
            text = self.in_order(text, axes, [len(dim.axes) for dim in dims])
        self.ops.define(text, stmt.dtype, stmt.name)

    def in_order(self, text: str, axes: list[Axis], grouped: list[int]) -> str:
        """A value in memory's order of some axes as one in the tile's, with size 1 along the others."""
        own = [axis for axis in self.tiled if axis in axes]
        if axes != own:
            if any(n > 1 for n in grouped):
                text = f"tl.reshape({text}, [{', '.join(str(self.extents[a]) for a in axes)}])"
            text = f"tl.permute({text}, ({', '.join(str(axes.index(a)) for a in own)}))"
            grouped = [1] * len(own)
        if len(grouped) == len(self.tiled):
            return text
        return f"tl.reshape({text}, {self.shape(own)})"

    def reduce(self, stmt: Reduce) -> None:
        along = [axis for axis in self.tiled if axis.symbol in stmt.axes]
        value = self.spread(stmt.value.name, along)
        self.ops.define(self.reduced(stmt.kind, stmt.dtype, value, along), stmt.dtype, stmt.name)

    def spread(self, name: str, along: Sequence[Axis]) -> str:
        """A value with all elements of the tile along some axes."""
        value, have = str(self.ops.variables[name]), self.deps[name]
        if {axis.symbol for axis in along} <= have:
            return value
        wanted = [axis for axis in self.tiled if axis.symbol in have or axis in along]
        return f"tl.broadcast_to({value}, {self.shape(wanted)})"

    def reduced(self, kind: ReductionKind, dtype: torch.dtype, value: str, along: Sequence[Axis]) -> str:
        """A value reduced along some axes, which stay with size 1."""
        for axis in reversed(along):
            place = self.tiled.index(axis)
            kept = ", ".join("None" if i == place else ":" for i in range(len(self.tiled)))
            is_maximum = self.maxima.has(kind, dtype)
            text = self.maxima.along(kind, value, place) if is_maximum else f"{kind.tile}({value}, {place})"
            value = f"{text}[{kept}]"
        return value

    def turned_casts(self) -> frozenset[str]:
        """Casts to one byte whose results are only stored, with `rows` next to each other in memory."""
        threads = H200.warp_size * self.schedule.tile.num_warps
        many = math.prod(self.schedule.extents) > MOST * threads
        if self.rows is None or self.extents[self.rows] % WORD or many:
            return frozenset()
        users: dict[str, list[Statement]] = {}
        for stmt in self.nest.body:
            for name in operands(stmt):
                users.setdefault(name, []).append(stmt)
        full = frozenset(axis.symbol for axis in self.tiled)
        found = set[str]()
        for cast in (s for s in self.nest.body if isinstance(s, Compute) and s.op == "to_dtype"):
            stored = all(isinstance(user, Store) and self.along_rows(user) for user in users[cast.name])
            if stored and cast.dtype.itemsize == 1 and full <= self.deps[cast.name]:
                found.add(cast.name)
        return frozenset(found)

    def along_rows(self, store: Store) -> bool:
        """Whether a store has `rows` next to each other in memory."""
        return self.dims(store.index)[-1].axes[-1] is self.rows

    def in_words(self, name: str) -> None:
        """From here on, a value with words along columns: it has the same elements."""
        assert self.rows is not None
        value, shape = self.ops.variables[name], [self.extents[axis] for axis in self.tiled]
        self._words = True
        self.ops.define(along_columns(str(value), shape, self.tiled.index(self.rows)), value.dtype, name)

    def turns_a_byte(self) -> bool:
        """Whether a float of one byte is stored in two orders. Beside the instruction for a maximum that
        propagates NaN, ptxas of CUDA 12 then writes wrong bytes for some tiles (triton-lang/triton#11111)."""
        casts = {s.name: s for s in self.nest.body if isinstance(s, Compute) and s.op in _CASTS}
        orders: dict[str, set[tuple[str, ...]]] = {}
        for stmt in (s for s in self.nest.body if isinstance(s, Store)):
            name, narrow = stmt.value.name, False
            while cast := casts.get(name):  # equal casts are one value, whatever they are viewed as
                narrow |= cast.dtype.is_floating_point and cast.dtype.itemsize == 1
                name = cast.args[0].name
            if narrow:
                dims = tuple(str(axis.symbol) for dim in self.dims(stmt.index) for axis in dim.axes)
                orders.setdefault(name, set()).add(dims)
        return any(len(found) > 1 for found in orders.values())

    def store_partial(self, stmt: PartialAccumulate) -> None:
        """Reduce the rows of the tile, and write the result to the tile's row of the workspace."""
        own = stmt.index.free_symbols
        gone = [axis for axis in self.axes if axis.symbol not in own]
        along = [axis for axis in self.tiled if axis in gone]
        kind, dtype = stmt.kind, self.program.buffer(stmt.buffer).dtype
        value = self.spread(stmt.value.name, self.tiled)
        for axis in (a for a in along if int(a.size) % self.extents[a]):
            self.define_index(axis)
            value = f"tl.where({axis.symbol} < {axis.size}, {value}, {filler(kind, dtype)})"
        if str(SPLIT_SYMBOL) not in self._known:
            self._known.add(str(SPLIT_SYMBOL))
            first, *rest = [axis for axis in gone if self.tiles(axis) > 1] or [gone[0]]
            number = self.number(first) if self.tiles(first) > 1 else "0"
            for axis in rest:
                number = f"({number}) * {self.tiles(axis)} + {self.number(axis)}"
            self.code.writeline(f"{SPLIT_SYMBOL} = {number}")
        value = self.reduced(kind, dtype, value, along)
        self.store(stmt, value, frozenset(a.symbol for a in self.tiled if a not in gone))

    def store(self, stmt: Store | PartialAccumulate, value: str, varies: frozenset[sympy.Symbol]) -> None:
        dims = self.dims(stmt.index)
        address, mask = self.place(stmt.buffer, stmt.index, [_Part(dim, 1, dim.extent) for dim in dims])
        if dims:
            value = self.in_memory(value, varies, dims)
        else:
            address = f"tl.broadcast_to({address}, {self.shape(())})"
        self.code.writeline(f"tl.store({address}, {value}{f', {mask}' * bool(mask)})")

    def in_memory(self, value: str, varies: frozenset[sympy.Symbol], dims: Sequence[_Dim]) -> str:
        """A value of the tile in the dims of memory."""
        axes = [axis for dim in dims for axis in dim.axes]
        own = [axis for axis in self.tiled if axis in axes]
        if not {axis.symbol for axis in own} <= varies:
            value = f"tl.broadcast_to({value}, {self.shape(own)})"
        rank = len(self.tiled)
        if axes != own:
            if rank != len(own):
                value = f"tl.reshape({value}, [{', '.join(str(self.extents[a]) for a in own)}])"
            value = f"tl.permute({value}, ({', '.join(str(own.index(a)) for a in axes)}))"
            rank = len(own)
        if rank != len(dims):
            value = f"tl.reshape({value}, [{', '.join(str(d.extent) for d in dims)}])"
        return value


def _spread(rank: int, place: int) -> str:
    return f"[{', '.join(':' if i == place else 'None' for i in range(rank))}]"
