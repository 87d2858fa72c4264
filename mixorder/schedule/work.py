"""The work of one kernel: bytes as the memory sees them, and machine instructions.

Device memory and L2 move sectors of 32 bytes. How many sectors a tile of a tensor touches is read off the
index map, by evaluating it over a part of the tile: strided, transposed and gathered reads differ only there.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import sympy

from ..inductor.symbols import INDEX_FUNCTIONS, bounds
from ..ir.hardware import ACCESS, LINE, SECTOR
from ..ir.program import (
    Axis,
    AxisClass,
    Buffer,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Ref,
    Statement,
    Store,
    operands,
)
from .facts import PRICES, RELATIVE, cost_of, is_branching, is_by_row
from .layout import SAMPLE, Sizes, offsets, per_access, sizes_of


@dataclasses.dataclass(frozen=True)
class Work:
    """`dram`: bytes between device memory and L2, where each sector moves once. `l2`: bytes between L2 and
    the multiprocessors, where each tile moves its own. `instructions`, `requests` (loads and stores): of all
    threads. `lines`: the lines of the first-level cache that these touch, beyond those that what is moved
    would fill. `branches`: calls of functions that a thread computes one after the other, of all threads."""

    dram: float
    l2: float
    instructions: float = 0.0
    requests: float = 0.0
    lines: float = 0.0
    branches: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*map(operator.add, vars(self).values(), vars(other).values()))

    def scaled(self, lanes: float) -> Work:
        """The same in so many times the lanes, of which some move nothing."""
        return dataclasses.replace(
            self,
            instructions=self.instructions * lanes,
            requests=self.requests * lanes,
            branches=self.branches * lanes,
        )

    def idle(self) -> Work:
        """The same without computing."""
        return dataclasses.replace(self, instructions=0.0, branches=0.0)


@dataclasses.dataclass(frozen=True)
class Access:
    """A load or store of a tensor by a nest.

    `touched`: bytes of the tensor that the nest reads or writes.
    `dram`: those of the sectors that they lie in.
    `l2`: bytes of sectors for all tiles.
    `requests`, `instructions`, `lines`: as of `Work`.
    `tiled`: elements of an access over rows and columns.
    `transposed`: those that lie next to each other along the rows only, at least two of them in an access.
    `width`: bytes of a thread's access.
    `start`: the offset of its first element, and the rows of its predicate. Accesses with different ones are
    of different slices of a tensor, such as those of a `split`; of pieces of rows, the offset is 0.
    """

    buffer: str
    touched: float
    dram: float
    l2: float
    requests: float = 0.0
    instructions: float = 0.0
    tiled: float = 0.0
    transposed: float = 0.0
    width: int = ACCESS
    lines: float = 0.0
    start: tuple[Any, ...] = ()


def in_minority_order(accesses: Iterable[Access]) -> float:
    """The elements of tiles whose order in memory is not that of most: rows or columns next to each other."""
    accesses = list(accesses)
    transposed = sum(a.transposed for a in accesses)
    return min(transposed, sum(a.tiled for a in accesses) - transposed)


def accesses(
    program: LoopProgram,
    nest: Nest,
    statements: Iterable[Statement],
    tile: tuple[int, int],
    shifted: bool = False,
) -> list[Access]:
    """The accesses of a nest's statements, with `tile` = (rows, columns) of its loops over both. The
    workspace and the mailbox are left out. `shifted`: by the program's alignment, so that all that are over
    both start at a boundary."""
    row, col = program.tile_axes
    nest_accesses = []
    for stmt in statements:
        if isinstance(stmt, Load | Store):
            buffer = program.buffer(stmt.buffer)
            if buffer.role in (BufferRole.INPUT, BufferRole.OUTPUT):
                access = _access(program, nest, buffer, stmt, (row, col), tile, shifted)
                if shifted and {row.symbol, col.symbol} <= stmt.index.free_symbols:
                    requests = access.touched / ACCESS
                    access = dataclasses.replace(
                        access,
                        requests=requests,
                        instructions=access.instructions * requests / access.requests,
                    )
                nest_accesses.append(access)
    return nest_accesses


def full_inputs(program: LoopProgram, accesses: Iterable[Access]) -> set[str]:
    """The tensors over rows and columns that some accesses read."""
    names = {a.buffer for a in accesses if a.tiled}
    return {name for name in names if program.buffer(name).role is BufferRole.INPUT}


def computing(
    program: LoopProgram, nest: Nest, statements: Iterable[Statement], hoisted: bool = True
) -> Work:
    """The arithmetic of a nest's statements. A reduction or an accumulation is an instruction for each of its
    elements; what has 64 bits takes two. `hoisted`: what depends on few of the loops is computed in these.
    Inductor's sum that is relative to a maximum takes two exponentials, and moments of four elements are
    joined with others."""
    deps = nest.dependence()
    values = (s for s in nest.statements if isinstance(s, Load | Compute | Reduce))
    words = {s.name: max(1, s.dtype.itemsize // 4) for s in values}
    everywhere = {axis.symbol for axis in nest.axes}
    instructions, branches, reduced = 0.0, 0.0, set[tuple[Any, ...]]()
    for stmt in statements:
        if isinstance(stmt, Compute):
            wide = max(words.get(name, 1) for name in (stmt.name, *operands(stmt)))
            each = cost_of(stmt, wide, is_by_row(stmt, deps, nest))
            inside = deps[stmt.name] if hoisted or not deps[stmt.name] else everywhere
            instructions += each * _extent(program, nest, inside)
            if is_branching(stmt) and stmt.args not in reduced:
                reduced.add(stmt.args)
                branches += _extent(program, nest, deps[stmt.name])
        elif isinstance(stmt, Reduce):
            each = 1 if stmt.peak is None else 28
            instructions += each * _extent(program, nest, deps[stmt.value.name])
        elif isinstance(stmt, PartialAccumulate):
            each = 7 if stmt.compensated else 1 if stmt.peak is None else PRICES[RELATIVE]
            each = 6 if stmt.moments else each
            instructions += each * _extent(program, nest, deps[stmt.value.name])
    return Work(0, 0, instructions, branches=branches)


def _extent(program: LoopProgram, nest: Nest, symbols: Iterable[sympy.Symbol]) -> int:
    """Iterations of what depends on some symbols. What is in a loop over rows or columns runs again at each
    index of the batch, where it is the same."""
    sizes = {axis.symbol: axis.size for axis in nest.axes}
    within = set(symbols) & sizes.keys()
    if within:
        within |= {axis.symbol for axis in nest.loops if axis.kind is AxisClass.BATCH}
    return math.prod(max(1, program.hint(sizes[s])) for s in within)


def _access(
    program: LoopProgram,
    nest: Nest,
    buffer: Buffer,
    stmt: Load | Store,
    axes: tuple[Axis, Axis],
    tile: tuple[int, int],
    shifted: bool,
) -> Access:
    index, item = stmt.index, buffer.dtype.itemsize
    elements = everywhere = _extent(program, nest, index.free_symbols)
    numel = max(1, program.hint(buffer.numel))
    is_piece, cut, limits = isinstance(stmt, Load) and stmt.predicate is not None, False, _Limits()
    if isinstance(stmt, Load) and stmt.predicate is not None:
        limits, share = _limits(program, nest, stmt.predicate)
        elements = min(max(1, round(elements * share)), numel)  # each piece is read where it stands
        masked = nest.dependence()[stmt.predicate.name]
        everywhere = _extent(program, nest, index.free_symbols | masked)
        cut = axes[1].symbol in masked  # a piece may begin in the middle of an access
    sizes = sizes_of(program)
    if not {symbol for symbol, _ in sizes} & index.free_symbols:
        return Access(buffer.name, item, SECTOR, elements * SECTOR, elements, lines=elements)
    index = index.xreplace(dict(program.hints))
    touched = min(elements, numel) * item
    amplified = _spread(index, sizes, item, shifted)
    near = _sectors(index, sizes, tile, item)
    elements_each, down = per_access(index, sizes, item)
    # Where a piece lies in its own tensor tells where it begins: both are multiples of an access, or neither.
    begins = cut and offsets(index, sizes, (1, 1))[0] % elements_each != 0
    requests = everywhere / (1 if begins else elements_each)
    both = {symbol for symbol, _ in sizes} <= index.free_symbols
    # Sectors beside a row are of another index of the batch, whose programs run at the same time. Those of
    # rows that lie across memory are of the next rows, which find them in L2.
    batched = bool(index.free_symbols - {symbol for symbol, _ in sizes})
    shared = (batched or down) and elements >= _footprint(program, buffer)
    return Access(
        buffer.name,
        touched,
        touched * (1.0 if shared else amplified),
        elements * item * near.moved,
        requests,
        addressing(divisions(index)) * requests,  # once for elements that are contiguous
        everywhere if both else 0.0,
        everywhere if down and both else 0.0,
        elements_each * item,
        elements * _lines(index, sizes, tile, item, down),
        (0 if is_piece else offsets(index, sizes, (1, 1))[0], *sorted(limits.items(), key=str)),
    )


_Limits = dict[sympy.Expr, tuple[int, int]]
"""Of expressions of indices, the least and the largest value, both inclusive."""


def _limits(program: LoopProgram, nest: Nest, predicate: Ref) -> tuple[_Limits, float]:
    """In which rows a predicate holds, as far as it compares indices with numbers, and for which share of the
    nest's iterations; where it is more than that, the share of the rest is 1. Loads of parts of a row fetch
    what lies beside these as well."""
    col = program.tile_axes[1].symbol
    values = {s.name: s for s in nest.statements if isinstance(s, Compute)}
    sizes = {axis.symbol: sympy.Integer(program.hint(axis.size)) for axis in nest.axes}
    limits, share, todo = _Limits(), 1.0, [predicate.name]
    while todo:
        stmt = values.get(todo.pop())
        if stmt is not None and stmt.op in ("and_", "logical_and", "bitwise_and"):
            todo += operands(stmt)
        elif stmt is not None and stmt.op in ("lt", "ge"):
            index, *numbers = map(values.get, operands(stmt))
            number = numbers[0] if numbers else None
            if index and number and (index.op, number.op) == ("index_expr", "constant"):
                place, at = index.args[0].xreplace(dict(program.hints)), int(number.args[0])
                if col in place.free_symbols or not place.free_symbols <= sizes.keys():
                    continue
                least, most = map(int, bounds(place, sizes))
                low, high = before = limits.get(place, (least, most))
                limits[place] = low, high = (
                    (low, min(high, at - 1)) if stmt.op == "lt" else (max(low, at), high)
                )
                share *= max(0, high - low + 1) / max(1, before[1] - before[0] + 1)
    return limits, share


def _bytes_of_slices(program: LoopProgram, buffer: Buffer, slice_bytes: Sequence[float]) -> float:
    """Bytes of all slices of a tensor."""
    return max(max(slice_bytes), min(sum(slice_bytes), _footprint(program, buffer) * buffer.dtype.itemsize))


def _footprint(program: LoopProgram, buffer: Buffer) -> int:
    """Elements from a tensor's first to its last in memory."""
    pairs = zip(buffer.shape, buffer.stride, strict=True)
    return 1 + sum((program.hint(size) - 1) * program.hint(stride) for size, stride in pairs)


def total(program: LoopProgram, accesses: Iterable[Access]) -> Work:
    """The work of all accesses; of each slice of a tensor, device memory moves what the largest of them
    needs, and of all slices no more than there is."""
    accesses = list(accesses)
    slices: dict[str, dict[tuple[Any, ...], float]] = {}
    for access in accesses:
        starts = slices.setdefault(access.buffer, {})
        starts[access.start] = max(starts.get(access.start, 0.0), access.dram)
    once = {
        b: _bytes_of_slices(program, program.buffer(b), list(starts.values())) for b, starts in slices.items()
    }
    return Work(
        sum(once.values()),
        sum(access.l2 for access in accesses),
        sum(access.instructions for access in accesses),
        sum(access.requests for access in accesses),
        sum(access.lines for access in accesses),
    )


@dataclasses.dataclass(frozen=True)
class _Sectors:
    """Bytes of the sectors that a tile touches, over those of its different elements (`amplified`), and over
    those of all its iterations (`moved`)."""

    amplified: float
    moved: float


def addressing(divisions: int) -> int:
    """Instructions of an address of 64 bits and its predicate, with so many divisions by a constant."""
    return 4 + 4 * divisions


def divisions(index: sympy.Expr) -> int:
    """How many divisions an index has."""
    return sum(type(part).__name__ in INDEX_FUNCTIONS for part in sympy.preorder_traversal(index))


def _spread(index: sympy.Expr, sizes: Sizes, item: int, shifted: bool) -> float:
    """Bytes of sectors over those of elements, of a part of the space: the least of a square and of two long
    rows, which have fewer ends. Rows that are `shifted` to a boundary cost as much as a square's ends."""
    square = _sectors(index, sizes, (SAMPLE, SAMPLE), item).amplified
    if shifted:
        return square
    rows = (2, SAMPLE * SAMPLE // 2)
    return min(square, _sectors(index, sizes, rows, item, most=rows).amplified)


def _part(index: sympy.Expr, sizes: Sizes, tile: tuple[int, int], most: tuple[int, int]) -> Sequence[int]:
    """The index over a part of a tile, from its first element on. There is one iteration along an axis that
    it is without, as `_extent` has it."""
    rows, cols = (
        min(extent, size, longest) if axis in index.free_symbols else 1
        for extent, (axis, size), longest in zip(tile, sizes, most, strict=True)
    )
    return offsets(index, sizes, (rows, cols))


@functools.lru_cache(maxsize=4096)
def _sectors(
    index: sympy.Expr,
    sizes: Sizes,
    tile: tuple[int, int],
    item: int,
    most: tuple[int, int] = (SAMPLE, SAMPLE),
) -> _Sectors:
    """Read off a part of the tile."""
    places = _part(index, sizes, tile, most)
    elements = set(places)
    sectors = len({at * item // SECTOR for at in elements}) * SECTOR
    # A part of less than a sector has the others beside it.
    amplified = max(1.0, sectors / max(SECTOR, len(elements) * item))
    return _Sectors(amplified, amplified * len(elements) / len(places))


@functools.lru_cache(maxsize=4096)
def _lines(index: sympy.Expr, sizes: Sizes, tile: tuple[int, int], item: int, down: bool) -> float:
    """Lines that a tile touches beyond those that its elements would fill, over its iterations. Read off a
    part of it that is a line long."""
    places = _part(index, sizes, tile, (LINE // item, 8) if down else (8, LINE // item))
    lines = len({at * item // LINE for at in places})
    return max(0.0, lines - len(set(places)) * item / LINE) / len(places)
