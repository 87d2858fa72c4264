"""Write the kernel of a program whose reductions all end within its tile.

A value is a tensor with a dim for each axis along which the tile has several elements, and size 1 along those
that it does not depend on. Memory is accessed in the order in which it lies (`tile_access`). A value is
brought into that order before its store, so that Triton exchanges it through shared memory and both loads and
stores are of whole sectors.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence

import sympy
import torch

from ..inductor.printing import offset_text
from ..inductor.symbols import FloorDiv, ModularIndexing, wide_symbols
from ..ir.dtypes import FLOAT8
from ..ir.program import (
    SPLIT_SYMBOL,
    Axis,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Statement,
    Store,
    behind,
    index_symbols,
    loops_of,
    operands,
)
from ..ir.reductions import ReductionKind
from ..ir.rewriting import Scope
from ..schedule.plan import Plan, Produced, in_tiles
from ..schedule.producers import ProgramGroups, program_groups, row_axes_of
from ..transform.cooperative import MAILBOX
from .exchange import word
from .kernel_text import buffers_of, filler, identity, permuted, reshaped
from .producers import FUNCTION, awaited, branches, looked_at, roles
from .registers import HELPER, WORD, along_columns
from .source import KernelSource, LaunchConfig
from .tile_access import Dim, LoadDim, TileAccesses, axes_of

_CASTS = ("to_dtype", "to_dtype_bitcast")


def tile_kernel(program: LoopProgram, plan: Plan, label: str) -> KernelSource:
    """The kernel of a tile-local program."""
    writer = TileWriter(program, program.nests[0], plan)
    writer.begin()
    if program.producer_nest is not None:
        writer.begin_groups(program.producer_nest)
    writer.whole()
    return writer.finish(f"triton_mixorder_{label}")


def copy_function(program: LoopProgram, nest: Nest, plan: Plan, name: str) -> KernelSource:
    """A function that copies a tile, whose number is its last parameter."""
    writer = TileWriter(program, nest, plan)
    writer.begin_function("program", name=name)
    if writer.wide:
        writer.code.writeline("program = program.to(tl.int64)")
    writer.number_tiles()
    writer.whole()
    return writer.finish(name)


class TileWriter(TileAccesses):
    """Writes one kernel."""

    def __init__(self, program: LoopProgram, nest: Nest, plan: Plan) -> None:
        super().__init__(program, nest, plan)
        if plan.produced and program.producer_nest is not None:
            read = buffers_of(program, program.producer_nest)
            self.buffers = [b for b in program.buffers if b in self.buffers or b in read]
        self.compared = self.turns_a_byte()
        values = (s.dtype for s in self.nest.body if isinstance(s, Compute))
        self.ops.at_once = not any(dtype.itemsize == 1 and dtype.is_floating_point for dtype in values)
        self.transposed: set[str] = set()
        self.both: dict[str, Compute] = {}  # by the name of each
        if plan.layout.column_words and plan.layout.thread_rows >= WORD:
            self.find_transposed_casts()
        self._words = False  # whether a cast has words along columns
        self._functions = ""  # what the kernel calls
        self._groups: ProgramGroups | None = None
        self._of_values = ""  # the arguments of the function that computes values of rows
        self._begun = 0  # where the text of a tile begins, or of what follows its wait
        self._before: list[str] = []  # the lines of a tile before its wait
        self._awaited: dict[str, str] = {}  # the variable of each word
        self.summed = [axis for axis in self.tiled if axis in nest.summed]

    def begin(self) -> None:
        elements = sympy.prod(axis.size for axis in self.axes)
        self.begin_kernel({*map(str, wide_symbols([elements, *self.numbers], {}))})
        first = "tl.program_id(0)"
        if self.plan.produced:
            return
        if self.plan.order.backwards:
            first = f"({offset_text(sympy.sympify(self.tiles_in_all - 1))} - {first})"
        self.code.writeline(f"program = {first}" + ".to(tl.int64)" * self.wide)
        if (band := self.plan.order.grouped) > 1:
            along, across = (axis for axis in self.axes if self.tiles(axis) > 1)
            each = band * self.tiles(across)
            self.code.writeline(f"{self.number(along)} = program // {each} * {band} + program % {band}")
            self.code.writeline(f"{self.number(across)} = program % {each} // {band}")
            return
        self.number_tiles()

    def begin_groups(self, producer_nest: Nest) -> None:
        """Begin a kernel whose programs come in groups (`codegen.producers`)."""
        sizes = [int(axis.size) for axis in self.axes]
        row_axes = row_axes_of(producer_nest, sizes)
        producers = self.plan.produced
        assert producers is not None
        groups = self._groups = program_groups(sizes, row_axes, self.plan)
        self._functions, pointers = self.row_values(producer_nest, producers)
        row, column = self.number(self.axes[0]), self.number(self.axes[row_axes])
        mailbox = self.program.buffer(MAILBOX)
        counter = f"{mailbox.pointer} + {offset_text(mailbox.numel - 1)}"
        for line in roles(groups, producers.lag, pointers, counter, row, column, self.wide):
            self.code.writeline(line)
        self.code.do_indent()
        self._begun, self._of_values = len(self.code.getvalue()), pointers

    def row_values(self, nest: Nest, produced: Produced) -> tuple[str, str]:
        """The text of a function that computes and stores values of whole rows, and its pointers."""
        row, column = nest.loops
        walk = in_tiles([int(axis.size) for axis in nest.loops], [produced.rows, produced.cols])
        writer = TileWriter(self.program, nest, Plan(walk, self.plan.launch))
        writer.separate, writer.compared, writer.reducers = frozenset({row}), self.compared, self.reducers
        writer.begin_function(writer.number(row), name=FUNCTION)
        if row.symbol in writer.wide_symbols:
            writer.code.writeline(f"{writer.number(row)} = {writer.number(row)}.to(tl.int64)")
        if writer.tiles(column) > 1:
            writer.tile_by_tile(nest, column)
        else:
            writer.whole()
        return f"{writer.code.getvalue()}\n\n", ", ".join(b.pointer for b in writer.buffers)

    def text(self) -> str:
        """The text of the kernel; of one with groups, what follows the wait of a tile is in branches."""
        functions, whole = self._functions + "".join(self.reducers.values()), self.code.getvalue()
        functions += HELPER * self._words
        if self._groups is None:
            return functions + whole
        row, after = self.number(self.axes[0]), self.lines_from(self._begun)
        lines = branches(self._groups, self._of_values, row, self.wide, self._before, after)
        return functions + whole[: self._begun] + textwrap.indent("\n".join(lines), " " * 8) + "\n"

    def finish(self, name: str) -> KernelSource:
        launch, grid = self.plan.launch, self.tiles_in_all
        config = LaunchConfig((), launch.num_warps, launch.num_stages)
        groups, producers = self._groups, self.plan.produced
        if groups is not None and producers is not None:
            grid = (groups.row_tiles + producers.lag) * groups.programs
        source = self.source(name, grid, config, exact=self.exact, registers=launch.max_registers)
        if groups is None:
            return source
        return dataclasses.replace(source, written=(*source.written, MAILBOX))

    def whole(self) -> None:
        for stmt in self.nest.statements:
            self.statement(stmt)

    def statement(self, stmt: Statement) -> None:
        with self.ops.active():
            if isinstance(stmt, Load):
                self.load(stmt)
            elif isinstance(stmt, Reduce):
                self.reduce(stmt)
            elif isinstance(stmt, Store):
                self.store(stmt, self.stored(stmt), self.deps[stmt.value.name])
            elif isinstance(stmt, PartialAccumulate):
                self.store_partial(stmt)
            else:
                assert isinstance(stmt, Compute)
                for axis in (a for a in self.axes if a.symbol in index_symbols(stmt)):
                    self.define_index(axis)
                if stmt.name in self.transposed and self._deals:
                    self.in_words(stmt.args[0].name)
                self.ops.compute(stmt)

    def load(self, stmt: Load) -> None:
        if stmt.index.has(FloorDiv, ModularIndexing):
            self.load_by_element(stmt)
            return
        dims, load_dims, address, mask = self.accessed(stmt)
        text = f"tl.load({address}{self.where(mask, stmt)})"
        if stmt.buffer == MAILBOX:
            if stmt.name not in self._awaited:
                self.wait()
            text = self._awaited[stmt.name]
        text = self.cast(stmt, text)
        text = self.joined(text, load_dims, dims)
        if axes := axes_of(dims):
            tile_axes = [axis for axis in self.tiled if axis in axes]
            text = self.moved(text, len(dims), axes, tile_axes, self.shape(tile_axes))
        self.ops.define(text, stmt.dtype, stmt.name)

    def load_by_element(self, stmt: Load) -> None:
        """A load of a small tensor, of which an axis is several dims: each element has an address of its
        own."""
        masks = []
        for axis in (a for a in self.axes if a.symbol in stmt.index.free_symbols):
            self.define_index(axis)
            if self.is_masked(axis):
                masks.append(f"({axis.symbol} < {offset_text(axis.size)})")
        where = self.where(" & ".join(masks), stmt)
        text = f"tl.load({self.pointer(stmt.buffer)} + ({offset_text(stmt.index)}){where})"
        self.ops.define(self.cast(stmt, text), stmt.dtype, stmt.name)

    def where(self, mask: str, stmt: Load) -> str:
        """The arguments of a load that reads only some elements, if it does. The others are zero, but of
        float8, which Triton makes of no other number; nothing uses them."""
        zero = ", other=0" * (self.program.buffer(stmt.buffer).dtype not in FLOAT8)
        return f", {mask}{zero}" if mask else ""

    def accessed(self, stmt: Load) -> tuple[list[Dim], list[LoadDim], str, str]:
        """The dims of a load, these as Triton deals out their elements, the address and the mask."""
        # Threads and warps are spread over the last dims. Along the first ones a thread has several elements,
        # which it reduces by itself.
        separate = self.reduced_axes | self.separate | ({self.rows} if self.rows else set())
        dims = self.dims(stmt.index, separate)
        load_dims = self.dealt(self.load_dims(dims))
        return dims, load_dims, *self.place(stmt.buffer, stmt.index, load_dims)

    def wait(self) -> None:
        """Wait for all values of rows, with the first loads of all under way at once."""
        loads = [s for s in self.nest.body if isinstance(s, Load) and s.buffer == MAILBOX]
        places = {s.name: self.accessed(s)[2:] for s in loads}
        for name, place in places.items():
            self._awaited[name] = str(self.ops.line(looked_at(*place), torch.int32))
        self._before = self.lines_from(self._begun)
        for line in awaited({self._awaited[name]: place[0] for name, place in places.items()}):
            self.code.writeline(line)
        self._begun = len(self.code.getvalue())

    def lines_from(self, place: int) -> list[str]:
        return textwrap.dedent(self.code.getvalue()[place:]).splitlines()

    def moved(
        self, value: str, rank: int, axes: Sequence[Axis], order: Sequence[Axis], shape: Sequence[int]
    ) -> str:
        """A tensor of this rank, whose elements lie along `axes`, as one of this shape, whose elements lie in
        another order of these."""
        if axes != order:
            if rank != len(axes):
                value = reshaped(value, [self.extents[axis] for axis in axes])
            value, rank = permuted(value, map(axes.index, order)), len(order)
        return value if rank == len(shape) else reshaped(value, shape)

    def reduce(self, stmt: Reduce) -> None:
        self.define_reduced(stmt, self.elements(stmt))

    def elements(self, stmt: Reduce) -> str:
        """What a reduction is of, with its identity beyond the end of an axis."""
        along = self.along(stmt)
        return self.within(self.spread(stmt.value.name, along), along, stmt.kind, stmt.dtype)

    def define_reduced(self, stmt: Reduce, value: str) -> None:
        text = self.reduced(stmt.kind, stmt.dtype, value, self.along(stmt))
        self.ops.define(text, stmt.dtype, stmt.name)

    def along(self, stmt: Reduce) -> list[Axis]:
        """The axes of the tile along which a statement reduces."""
        return [axis for axis in self.tiled if axis.symbol in stmt.axes]

    def tile_by_tile(self, nest: Nest, axis: Axis) -> None:
        """The statements of a nest in a loop over an axis: before it what does not depend on that, and behind
        it what needs sums over it."""
        sums = [s for s in nest.body if isinstance(s, Reduce) and axis.symbol in s.axes]
        later = behind(nest.body, sums)

        def place(stmt: Statement) -> int:
            if stmt in sums or not later.isdisjoint(operands(stmt)):
                return 2
            return int(axis.symbol in loops_of(stmt, self.deps))

        for stmt in (s for s in nest.body if place(s) == 0):
            self.statement(stmt)
        totals = {}
        for reduce in sums:
            axes = [a for a in self.tiled if a.symbol in {*self.deps[reduce.value.name], *reduce.axes}]
            empty = f"tl.full({self.shape(axes)}, {identity(reduce.kind, reduce.dtype)})"
            totals[reduce] = str(self.ops.line(empty, reduce.dtype))
        known, number, tiles = set(self._known), self.number(axis), self.tiles(axis)
        text = (
            f"range(0, {offset_text(tiles)})" if isinstance(tiles, sympy.Expr) else f"static_range({tiles})"
        )
        self.code.writeline(f"for {number} in tl.{text}:")
        with self.code.indent():
            if axis.symbol in self.wide_symbols:
                self.code.writeline(f"{number} = tl.full([], {number}, tl.int64)")
            for stmt in (s for s in nest.body if place(s) == 1):
                self.statement(stmt)
            for reduce, total in totals.items():
                value = self.combined(reduce.kind, total, self.elements(reduce), reduce.dtype)
                self.code.writeline(f"{total} = {value}")
        self._known = known
        for reduce, total in totals.items():
            self.define_reduced(reduce, total)
        for stmt in (s for s in nest.body if place(s) == 2 and s not in sums):
            self.statement(stmt)

    def spread(self, name: str, along: Sequence[Axis]) -> str:
        """A value with all elements of the tile along some axes."""
        value, have = str(self.ops.variables[name]), self.deps[name]
        if {axis.symbol for axis in along} <= have:
            return value
        wanted = [axis for axis in self.tiled if axis.symbol in have or axis in along]
        return f"tl.broadcast_to({value}, {self.shape(wanted)})"

    def within(self, value: str, along: Sequence[Axis], kind: ReductionKind, dtype: torch.dtype) -> str:
        """A value of the tile, with the identity of a reduction beyond the end of an axis."""
        for axis in filter(self.is_masked, along):
            self.define_index(axis)
            size = offset_text(axis.size)
            value = f"tl.where({axis.symbol} < {size}, {value}, {filler(kind, dtype)})"
        return value

    def reduced(self, kind: ReductionKind, dtype: torch.dtype, value: str, along: Sequence[Axis]) -> str:
        """A value reduced along some axes, which stay with size 1."""
        for axis in reversed(along):
            place = self.tiled.index(axis)
            value = self.reduced_along(kind, dtype, value, place, len(self.tiled))
        return value

    def find_transposed_casts(self) -> None:
        """Casts to one byte whose results are only stored: with `rows` next to each other in memory
        (`transposed`), or in both orders (`both`)."""
        if self.rows is None or self.extents[self.rows] % WORD:
            return
        users = Scope(self.program, self.nest).users
        full = frozenset(axis.symbol for axis in self.tiled)
        for cast in (s for s in self.nest.body if isinstance(s, Compute) and s.op == "to_dtype"):
            stores = [user for user in users[cast.name] if isinstance(user, Store)]
            only_stored = len(stores) == len(users[cast.name])
            if cast.dtype.itemsize != 1 or not only_stored or not full <= self.deps[cast.name]:
                continue
            if all(map(self.along_rows, stores)):
                self.transposed.add(cast.name)
            elif any(map(self.along_rows, stores)):
                self.both[cast.name] = cast

    def stored(self, stmt: Store) -> str:
        """The value of a store. Of a cast that is stored in both orders, it is another cast for the one with
        `rows` next to each other: to pick each byte out of a word by itself takes more (H200, dGELU with
        mixed-order delayed scaling, 16384x4096: 159 us, so 139)."""
        if stmt.buffer == MAILBOX:
            return word(str(self.ops.variables[stmt.value.name]))
        cast = self.both.get(stmt.value.name)
        if cast is None or not self._deals or not self.along_rows(stmt):
            return str(self.ops.variables[stmt.value.name])
        name = cast.args[0].name
        before = self.ops.variables[name]
        self.in_words(name)
        recomputed = dataclasses.replace(cast, name=f"{cast.name}.transposed")
        self.ops.compute(recomputed)
        self.ops.variables[name] = before
        return str(self.ops.variables[recomputed.name])

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
                dims = tuple(str(axis.symbol) for axis in axes_of(self.dims(stmt.index)))
                orders.setdefault(name, set()).add(dims)
        return any(len(dim_orders) > 1 for dim_orders in orders.values())

    def store_partial(self, stmt: PartialAccumulate) -> None:
        """Reduce the rows of the tile, and write the result to the tile's row of the workspace."""
        value = self.terms(stmt)
        if str(SPLIT_SYMBOL) not in self._known:
            self._known.add(str(SPLIT_SYMBOL))
            gone = self.nest.summed
            first, *rest = [axis for axis in gone if self.tiles(axis) > 1] or [gone[0]]
            number = self.number(first) if self.tiles(first) > 1 else "0"
            for axis in rest:
                number = f"({number}) * {self.tiles(axis)} + {self.number(axis)}"
            self.code.writeline(f"{SPLIT_SYMBOL} = {number}")
        self.store_total(stmt, self.reduced(stmt.kind, self.dtype(stmt), value, self.summed))

    def terms(self, stmt: PartialAccumulate) -> str:
        """What a partial is of at all elements of the tile, with its identity beyond the end of an axis."""
        value = self.spread(stmt.value.name, self.tiled)
        return self.within(value, self.summed, stmt.kind, self.dtype(stmt))

    def store_total(self, stmt: PartialAccumulate, value: str) -> None:
        """Store a partial of all elements of the tile."""
        self.store(stmt, value, frozenset(a.symbol for a in self.tiled if a not in self.summed))

    def store(self, stmt: Store | PartialAccumulate, value: str, varies: frozenset[sympy.Symbol]) -> None:
        dims = self.dims(stmt.index)
        address, mask = self.place(stmt.buffer, stmt.index, [LoadDim(dim, 1, dim.extent) for dim in dims])
        if dims:
            axes = axes_of(dims)
            tile_axes = [axis for axis in self.tiled if axis in axes]
            if not {axis.symbol for axis in tile_axes} <= varies:
                value = f"tl.broadcast_to({value}, {self.shape(tile_axes)})"
            value = self.moved(value, len(self.tiled), tile_axes, axes, [dim.extent for dim in dims])
        else:
            address = f"tl.broadcast_to({address}, {self.shape(())})"
        self.code.writeline(f"tl.store({address}, {value}{f', {mask}' * bool(mask)})")
