"""The facts of a program from which a plan is chosen: plain numbers, read off its main nest once.

Registers are the scarce resource. Per element of its tile, a program keeps every value that is live across a
reduction over the row, the accumulators, and the column vectors hoisted out of the loop. A value that is used
only between two reductions takes few registers.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import sympy

from ..ir.hardware import ACCESS, ASYNC_BYTES, SECTOR
from ..ir.program import (
    ALIKE,
    AxisClass,
    Buffer,
    BufferRole,
    Carry,
    Compute,
    Exchange,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    RowAlignment,
    Statement,
    Store,
    operands,
)
from .layout import along_rows, offsets, per_access, sizes_of

REGISTER_OVERHEAD = 24  # registers per thread that do not grow with the tile
# Functions that reduce their argument, once for all of the same one, with a loop for large ones: a thread has
# its elements one after the other.
BRANCHING = frozenset({"sin", "cos", "tan"})
NARROW = 4  # bytes of a thread's access, up to which prefetching does not pay (`no_prefetch.py`)
TABLE = 8  # elements of the space for each of a table, at least: it is read again and again
ALIGNMENT = 16  # columns: the widest loads need rows and parts that start at a multiple. Not fitted to others


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of every program. Symbolic sizes are hints."""

    rows: int
    cols: int

    load_bytes: int = 0
    """Bytes of an element that stream in from full-size tensors."""

    instructions: int = 0
    """Machine instructions that compute with an element."""

    batch: int = 1
    """Indices of the batch axis, each of which has so many rows and columns. A program has one of them."""

    item_bytes: int = 2
    """Of an element of the narrowest full tensor."""

    levels: int = 1
    """The longest chain of dependent reductions."""

    @property
    def numel(self) -> int:
        return self.rows * self.cols * self.batch

    @property
    def per_access(self) -> int:
        """Elements of the widest memory access of the narrowest full tensor."""
        return ACCESS // self.item_bytes


@dataclasses.dataclass(frozen=True)
class TiledFacts(Facts):
    """Of a program whose tiles have an extent along each axis."""

    sizes: tuple[int, ...] = ()
    """Of its axes, outermost first."""


@dataclasses.dataclass(frozen=True)
class HeldWords:
    """Words of 32 bits that a program holds for an element, from one reduction to the next."""

    words: int = 0
    """All of them, with accumulators and column vectors."""

    of_columns: int = 0
    """Those of accumulators and column vectors, for each column."""


@dataclasses.dataclass(frozen=True)
class Loads:
    """The loads of a tile: bytes are those of an element."""

    staged_bytes: int = 0
    """Of all tile loads, including what a gather rereads and what many rows share."""

    repeated_bytes: int = 0
    """The same without what a piece does not read."""

    shared_bytes: int = 0
    """Those that lie in sectors which programs of another index of the batch read as well."""

    widest_bytes: int = 0
    """Of the widest full tensor."""

    mixed: bool = False
    """Whether tiles are loaded of several widths."""

    narrow: bool = False
    """Whether a thread loads at most 4 bytes of some at once."""

    cached_table: bool = False
    """Whether a table of a few kilobytes, which caches have, would be prefetched."""


@dataclasses.dataclass(frozen=True)
class Lying:
    """How full tensors lie in memory."""

    along_rows: bool = False
    """Whether most bytes lie next to each other along the rows only."""

    minority_along_rows: bool = False
    """Whether the smaller part of the bytes does."""

    sector_rows: int = 1
    """Rows that fill a sector of memory in each tensor that lies so, read or written; 1 if none does."""

    mixed_layouts: bool = False
    """Whether some that are read lie so, and others do not."""


@dataclasses.dataclass(frozen=True)
class ExchangeFacts:
    """What programs that share a row exchange."""

    values: int = 0
    """Reductions of a row."""

    carried_bytes: int = 0
    """Bytes of an element that wait for a total."""

    row_words: int = 0
    """Words of a row that wait for a total."""

    at_once: float = 0.0
    """Words of an element that are live at once, at most, in the order of the statements: what is loaded,
    and what a phase computes."""

    rows_at_once: float = 0.0
    """The same of a row."""


@dataclasses.dataclass(frozen=True)
class Final:
    """The finalisation."""

    numbered: bool = True
    """Whether every address that it loads from depends on its program's number."""

    finishable: bool = True
    """Whether it reads little beside partial results, so that a main kernel that has all rows may do its work
    as well."""


@dataclasses.dataclass(frozen=True)
class RowFacts(Facts):
    """The facts of a program that walks through rows."""

    common: bool = False
    """Whether the reductions over rows are over the columns as well."""

    held: HeldWords = HeldWords()
    alignment: RowAlignment = ALIKE
    loads: Loads = Loads()
    lies: Lying = Lying()
    exchange: ExchangeFacts = ExchangeFacts()
    final: Final = Final()

    @property
    def prefetched_bytes(self) -> int:
        """Shared memory for an element of a tile that is prefetched."""
        return max(self.load_bytes, self.loads.staged_bytes)


def streamed(program: LoopProgram, accesses: Iterable[Load | Store]) -> dict[str, int]:
    """The `load_bytes` and `item_bytes` of `Facts`, by the loads among the accesses of full tensors."""
    buffers = {s.buffer for s in accesses if isinstance(s, Load)}
    items = [program.buffer(name).dtype.itemsize for name in buffers]
    return {"load_bytes": sum(items), "item_bytes": min(items, default=2)}


def facts_of(program: LoopProgram) -> RowFacts:
    """The facts of a merged program, or of one that a strategy has transformed."""
    return _Reader(program).facts()


class _Reader:
    """Scans of one program that several facts need."""

    def __init__(self, program: LoopProgram) -> None:
        self.program = program
        self.main: Nest = program.nests[0]
        self.deps = self.main.dependence()
        self.row, self.col = program.tile_axes
        batch = program.axis(AxisClass.BATCH)
        # A graph may have been traced with no rows.
        self.batch = 1 if batch is None else max(1, program.hint(batch.size))
        self.rows = max(1, program.hint(self.row.size))
        self.space = self.rows * int(self.col.size) * self.batch
        self.tiles = [
            s for s in self.main.body if isinstance(s, Load) and self.col.symbol in s.index.free_symbols
        ]

    def facts(self) -> RowFacts:
        load_bytes, item_bytes, widest_bytes = self.streamed()
        held = held_words(self.main, {self.row.symbol, self.col.symbol})
        return RowFacts(
            self.rows,
            int(self.col.size),
            load_bytes,
            instructions(self.program),
            self.batch,
            item_bytes,
            self.levels(),
            common=self.col.kind is AxisClass.COMMON,
            held=HeldWords(held + self.column_words, self.column_words),
            alignment=self.program.alignment or ALIKE,
            loads=self.loads(widest_bytes),
            lies=self.lies(),
            exchange=self.exchange(),
            final=Final(self.numbered(), self.finishable()),
        )

    def loads(self, widest_bytes: int) -> Loads:
        return Loads(
            staged_bytes=sum(map(self.item, self.staged)),
            repeated_bytes=math.ceil(sum(map(self.repeated, self.staged))),
            shared_bytes=self.shared_bytes(),
            widest_bytes=widest_bytes,
            mixed=self.is_mixed,
            # Rows that are shifted to a boundary have wide accesses.
            narrow=self.program.alignment is None and any(map(self.is_narrow, self.whole)),
            cached_table=any(map(self.is_cached_table, self.whole)),
        )

    def lies(self) -> Lying:
        return Lying(
            along_rows=self.down > self.down_not,
            minority_along_rows=self.down_not >= self.down > 0,
            sector_rows=max((SECTOR // self.item(s) for s in self.full[True]), default=1),
            mixed_layouts=all(any(isinstance(s, Load) for s in self.full[down]) for down in (False, True)),
        )

    def exchange(self) -> ExchangeFacts:
        values = sum(len(s.values) for s in self.main.body if isinstance(s, Exchange))
        return ExchangeFacts(values, *self.carried(), self.at_once(True), self.at_once(False))

    @functools.cached_property
    def whole(self) -> list[Load]:
        """The loads over both rows and columns."""
        return [load for load in self.tiles if self.row.symbol in load.index.free_symbols]

    @functools.cached_property
    def full(self) -> dict[bool, list[Load | Store]]:
        """Loads and stores of tensors that have all elements of the space, by whether they lie along rows."""
        both = {self.row.symbol, self.col.symbol}
        accesses: dict[bool, list[Load | Store]] = {False: [], True: []}
        for s in self.main.body:
            if (
                isinstance(s, Load | Store)
                and both <= s.index.free_symbols
                and self.size(s.buffer) >= self.space
            ):
                accesses[along_rows(self.program, s)].append(s)
        return accesses

    @functools.cached_property
    def is_mixed(self) -> bool:
        return len(set(map(self.item, self.tiles))) > 1

    @functools.cached_property
    def staged(self) -> list[Load]:
        """The tile loads that Triton prefetches; single elements of 2 bytes are not among them."""
        return [s for s in self.tiles if s not in self.whole or self.width(s) >= ASYNC_BYTES]

    def repeated(self, load: Load) -> float:
        """Bytes that a load moves for each element: a piece of a tensor that is read in pieces only moves its
        share."""
        loads = [s for s in self.tiles if s.buffer == load.buffer]
        share = self.size(load.buffer) / self.space
        in_pieces = all(s.predicate is not None for s in loads) and TABLE * share >= 1
        return self.item(load) * (min(1.0, share / len(loads)) if in_pieces else 1.0)

    def shared_bytes(self) -> int:
        """Bytes of an element of tensors that are read once, in rows of a batch that fill no whole parts of
        8 bytes of a sector."""
        batch = self.program.axis(AxisClass.BATCH)
        if batch is None:
            return 0
        reads = collections.Counter(s.buffer for s in self.main.statements if isinstance(s, Load))
        full = (s for s in (*self.full[False], *self.full[True]) if isinstance(s, Load))
        once = (s for s in full if reads[s.buffer] == 1)
        inputs = (s for s in once if self.program.buffer(s.buffer).role is BufferRole.INPUT)
        items = (self.item(s) for s in inputs if batch.symbol in s.index.free_symbols)
        return sum(item for item in items if int(self.col.size) * item % 8)

    def is_cached_table(self, load: Load) -> bool:
        """Whether all programs prefetch the same few bytes, past the first-level cache: few parts of L2 have
        all of them, and all multiprocessors wait for these."""
        small = self.bytes(load.buffer) <= min(8192, self.space * self.item(load) // TABLE)
        return small and self.width(load) == ACCESS

    def is_narrow(self, load: Load) -> bool:
        """Whether a step waits for a load, or copies it element by element."""
        return self.width(load) <= NARROW and load not in self.small_operands

    @functools.cached_property
    def small_operands(self) -> list[Load]:
        """Pieces of few of the bytes whose accesses are too narrow to be prefetched: caches have most."""
        pieces = [s for s in self.whole if s.predicate is not None and self.width(s) < ASYNC_BYTES]
        narrow, every = ({s.buffer for s in loads} for loads in (pieces, self.whole))
        few = 5 * sum(map(self.bytes, narrow)) <= sum(map(self.bytes, every))
        wide = self.program.hint(self.col.size) >= 1024
        return pieces if few and wide and not self.is_mixed else []

    def width(self, load: Load) -> int:
        """Bytes of a thread's access."""
        index = load.index.xreplace(dict(self.program.hints))
        return per_access(index, sizes_of(self.program), self.item(load))[0] * self.item(load)

    @functools.cached_property
    def down(self) -> int:
        """Bytes of the tensors that lie along the rows."""
        return sum(map(self.bytes, self.transposed))

    @functools.cached_property
    def down_not(self) -> int:
        return sum(map(self.bytes, {load.buffer for load in self.whole} - self.transposed))

    @functools.cached_property
    def transposed(self) -> set[str]:
        return {load.buffer for load in self.whole if along_rows(self.program, load)}

    def bytes(self, buffer: str) -> int:
        return self.size(buffer) * self.program.buffer(buffer).dtype.itemsize

    def item(self, stmt: Load | Store) -> int:
        return self.program.buffer(stmt.buffer).dtype.itemsize

    def size(self, buffer: str) -> int:
        return self.program.hint(self.program.buffer(buffer).numel)

    def streamed(self) -> tuple[int, int, int]:
        """Bytes per element that stream in, and the element sizes of the narrowest and the widest tensor that
        do."""
        size = self.space
        itemsize = {s.buffer: self.item(s) for s in self.tiles}
        full = {b: self.slices(b, self.size(b) // size) for b in itemsize if self.size(b) >= size}
        # The pieces of a concatenated tensor; a table that many rows share has no predicate.
        pieces = {s.buffer for s in self.tiles if s.predicate is not None} - full.keys()
        in_pieces = sum(self.size(b) * itemsize[b] for b in pieces)
        sizes = [itemsize[b] for b in full.keys() | pieces] or [4]
        whole = sum(itemsize[b] * slices for b, slices in full.items())
        return whole + math.ceil(in_pieces / size), min(sizes), max(sizes)

    def slices(self, buffer: str, most: int) -> int:
        """Slices of a tensor that are read, such as those of a `split`: they start at different places. All
        of them together have `most` elements for each of the space."""
        hints, sizes = dict(self.program.hints), sizes_of(self.program)
        loads = [s for s in self.tiles if s.buffer == buffer and s.predicate is None]
        starts = {offsets(s.index.xreplace(hints), sizes, (1, 1))[0] for s in loads}
        return max(1, min(most, len(starts)))

    @functools.cached_property
    def last_use(self) -> dict[str, int]:
        return {name: i for i, stmt in enumerate(self.main.body) for name in operands(stmt)}

    @functools.cached_property
    def column_words(self) -> int:
        hoisted = [s for s in self.main.preamble if isinstance(s, Load | Compute)]
        vectors = [s for s in hoisted if self.deps[s.name] and s.name in self.last_use]
        partials = [s for s in self.main.body if isinstance(s, PartialAccumulate)]
        return sum(map(words_of, vectors)) + sum(
            (1 + s.compensated) * words_of(self.program.buffer(s.buffer)) for s in partials
        )

    def levels(self) -> int:
        above = self.main.reductions_above()
        return max((1 + above[s.name] for s in self.main.body if isinstance(s, Reduce)), default=0)

    def carried(self) -> tuple[int, int]:
        """Bytes of an element and words of a row."""
        loads = [s for s in self.main.statements if isinstance(s, Load) and s.name in self.waiting]
        full = [s for s in loads if s in self.tiles]
        return sum(map(self.item, full)), sum(words_of(s) for s in loads if s not in full)

    @functools.cached_property
    def waiting(self) -> set[str]:
        """The values that are carried to the second phase."""
        return {s.value.name for s in self.main.body if isinstance(s, Carry)}

    def at_once(self, over_columns: bool) -> float:
        """The most words of an element, or of a row, that are live at once. All loads stand in front of the
        phases; what is carried is live to the end."""
        change = [0.0] * (len(self.main.body) + 1)
        for made, s in enumerate(self.main.body):
            if not isinstance(s, Load | Compute | Reduce) or s.name not in self.last_use:
                continue
            axes, last = self.deps[s.name], self.last_use[s.name]
            words: float = words_of(s)
            if self.row.symbol not in axes or (self.col.symbol in axes) != over_columns:
                continue
            if isinstance(s, Load):
                made = 0
                if s.name in self.waiting:
                    last, words = -1, self.item(s) / 4 if over_columns else words
            change[made] += words
            change[last] -= words
        return max(itertools.accumulate(change))

    @property
    def final_loads(self) -> list[Load]:
        return [s for nest in self.program.nests[1:] for s in nest.statements if isinstance(s, Load)]

    def numbered(self) -> bool:
        axes = (self.program.axis(AxisClass.COLUMN), self.program.axis(AxisClass.BATCH))
        numbers: set[sympy.Symbol] = {axis.symbol for axis in axes if axis is not None}
        return all(numbers & s.index.free_symbols for s in self.final_loads)

    def finishable(self) -> bool:
        inputs = [
            s for s in self.final_loads if self.program.buffer(s.buffer).role is not BufferRole.WORKSPACE
        ]
        return len(inputs) <= 4


def held_words(nest: Nest, axes: Set[sympy.Symbol]) -> int:
    """The most words of an element of these axes that are live across a reduction, or while a function that
    branches has computed some of a thread's elements: then its results are live, too."""
    deps, last_use = nest.dependence(), {name: i for i, s in enumerate(nest.body) for name in operands(s)}
    lives = [
        (made, last_use.get(s.name, 0), words_of(s))
        for made, s in enumerate(nest.body)
        if isinstance(s, Load | Compute) and axes <= deps[s.name]
    ]
    across = [(i, i) for i, s in enumerate(nest.body) if isinstance(s, Reduce)]
    across += [(i, i + 1) for i, s in enumerate(nest.body) if is_branching(s)]
    return max(
        (sum(w for made, last, w in lives if made < end and last > at) for at, end in across), default=0
    )


def words_of(value: Load | Compute | Reduce | Buffer) -> int:
    """32-bit registers for one element."""
    return max(1, value.dtype.itemsize // 4)


RELATIVE = "relative_sum"  # an addition to a sum of exponentials that is relative to a maximum
BY_ROW = "truediv by a row's value"  # its reciprocal is computed once: machine code for sm_90, triton 3.7.1
UNMEASURED = {
    RELATIVE: 16,
    BY_ROW: 4,
    "unpacked_bfloat16": 0,  # a part of the load
}
PRICES: dict[str, int] = (
    json.loads(Path(__file__).with_name("operators.json").read_text())["prices"] | UNMEASURED
)
"""Machine instructions of an op on one element, where they are more than a few, or the time of so many. A key
is an op, of float32 or of any dtype, or an op and the dtype of its result. `tools/lab/operators.py` measures
them."""


def instructions(program: LoopProgram) -> int:
    """Machine instructions that the main loop computes per element of a tile, without loads and stores."""
    relative = [s for s in program.nests[0].body if isinstance(s, PartialAccumulate) and s.peak is not None]
    return sum(_costs_per_element(program).values()) + PRICES[RELATIVE] * len(relative)


def instructions_by_node(program: LoopProgram) -> dict[str, int]:
    """The same by the node of the graph that each op comes from."""
    costs: collections.Counter[str] = collections.Counter()
    for name, cost in _costs_per_element(program).items():
        costs[name.partition(".")[0]] += cost
    return dict(costs)


def cost_of(stmt: Compute, words: int = 1, by_row: bool = False) -> int:
    """Machine instructions of an op on one element: the price for its dtype, or the op's for each of so many
    words of 32 bits. `by_row`: see `is_by_row`."""
    op = BY_ROW if by_row else stmt.op.removeprefix("libdevice_")
    price = PRICES.get(f"{op} {str(stmt.dtype).removeprefix('torch.')}")
    return words * PRICES.get(op, 1) if price is None else price


def is_branching(stmt: Statement) -> bool:
    """Whether a statement is a function that a thread computes for one element after the other."""
    return isinstance(stmt, Compute) and stmt.op.removeprefix("libdevice_") in BRANCHING


def is_by_row(stmt: Compute, deps: Mapping[str, frozenset[sympy.Symbol]], nest: Nest) -> bool:
    """Whether an op divides all elements along the innermost axis by the same float32."""
    is_quotient = stmt.op == "truediv" and stmt.dtype.itemsize == 4
    return is_quotient and nest.loops[-1].symbol in deps[stmt.name] - deps[stmt.args[1].name]


def _costs_per_element(program: LoopProgram) -> dict[str, int]:
    """Of each op of the main loop that is computed for every element of a tile, by its name."""
    main = program.nests[0]
    deps, (row, last) = main.dependence(), program.tile_axes
    ops = (s for s in main.body if isinstance(s, Compute) and {row.symbol, last.symbol} <= deps[s.name])
    return {s.name: cost_of(s, by_row=is_by_row(s, deps, main)) for s in ops}
