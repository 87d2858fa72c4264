"""The loop IR: what one region computes, as loop nests over named axes.

A `LoopProgram` is an immutable value. Statements are in static single assignment form and keep the name of
the FX node that they come from, so that a line of the IR, a dump and the graph can be matched by eye. Index
expressions are flat element offsets, as sympy expressions over the axes' symbols.

This module holds data and its printed form only: no transforms, no torch graph, no device.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from .dtypes import short_dtype
from .reductions import ReductionKind

NUM_SPLITS = sympy.Symbol("num_splits", integer=True, positive=True)
"""Number of groups of programs that the rows are divided among; the schedule sets it."""
SPLIT_SYMBOL = sympy.Symbol("s", integer=True, nonnegative=True)
PACKED = 8
"""Elements at most that are packed into a byte."""


class AxisClass(enum.Enum):
    """Which reductions run over an axis of the iteration space. `SPLIT` exists only after the outer split."""

    ROW = "row"  # the outer reduction only
    COLUMN = "column"  # the inner reduction only
    BATCH = "batch"  # neither
    COMMON = "common"  # both
    SPLIT = "split"  # the groups of programs that the rows are divided among


@dataclasses.dataclass(frozen=True)
class Axis:
    """One loop: `symbol` runs over `range(size)`."""

    symbol: sympy.Symbol
    size: sympy.Expr
    kind: AxisClass

    def __str__(self) -> str:
        return f"{self.symbol} in {self.kind.value}({self.size})"


class BufferRole(enum.Enum):
    INPUT = "in"
    OUTPUT = "out"
    WORKSPACE = "ws"
    MAILBOX = "mailbox"  # through which programs that share a row exchange partial reductions
    ACCUMULATOR = "acc"  # never in memory: a program that has all rows keeps its totals in registers


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A tensor in device memory: `shape` and `stride` in elements, as the graph states them.

    `over`: the input whose memory an output reuses, after the input's last read. `offset`: elements of its
    storage before its first one. `kept_fp32`: its elements are float32, where the graph states half
    precision; its readers round them. `fill`: the value of every element before the launch; None if it does
    not matter. `reread`: a later kernel reads it as well. `added_up`: all that the graph does with it is a
    reduction of all its elements.
    """

    name: str
    role: BufferRole
    dtype: torch.dtype
    shape: tuple[sympy.Expr, ...]
    stride: tuple[sympy.Expr, ...]
    over: str | None = None
    offset: sympy.Expr = sympy.S.Zero
    kept_fp32: bool = False
    fill: int | None = None
    reread: bool = False
    added_up: bool = False

    @property
    def pointer(self) -> str:
        """The name of its kernel parameter."""
        return f"{self.name}_ptr"

    @property
    def numel(self) -> sympy.Expr:
        return sympy.prod(self.shape)

    @property
    def max_offset(self) -> sympy.Expr:
        """The largest element offset that an index into the buffer can have."""
        return sum(((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True)), sympy.S.Zero)

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        over = "" if self.over is None else f" over {self.over}"
        kept_fp32 = " kept_fp32" if self.kept_fp32 else ""
        return f"{self.name}: {short_dtype(self.dtype)}[{shape}]{over}{kept_fp32}"


@dataclasses.dataclass(frozen=True)
class Load:
    """`name = buffer[index]`, in the buffer's dtype, upcast to the compute dtype `dtype`.

    Where the bool value `predicate` is false, nothing is read and the index may be out of range. From an
    accumulator it is the total, after the loop over rows.
    """

    name: str
    buffer: str
    index: sympy.Expr
    dtype: torch.dtype
    predicate: Ref | None = None

    def __str__(self) -> str:
        condition = "" if self.predicate is None else f" if {self.predicate}"
        return f"%{self.name}: {short_dtype(self.dtype)} = load {self.buffer}[{self.index}]{condition}"


@dataclasses.dataclass(frozen=True)
class Compute:
    """`name = op(*args, **kwargs)`: one op of Inductor's pointwise op set; `Ref`s in `args` name values."""

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        args = [_show(a) for a in self.args] + [f"{k}={_show(v)}" for k, v in self.kwargs]
        return f"%{self.name}: {short_dtype(self.dtype)} = {self.op}({', '.join(args)})"


@dataclasses.dataclass(frozen=True)
class Reduce:
    """`name = kind over axes of value`: closes the loops over `axes`; the result does not depend on them.

    `dtype`: of the value, the accumulator and the result. `stored`: the dtype that the graph states for the
    result; the next statement casts to it. `peak`: the maximum of the same elements; the sum is then of the
    exponentials of the differences to it.
    """

    name: str
    kind: ReductionKind
    value: Ref
    axes: tuple[sympy.Symbol, ...]
    dtype: torch.dtype
    stored: torch.dtype
    peak: Ref | None = None

    def __str__(self) -> str:
        axes = ", ".join(map(str, self.axes))
        value = str(self.value) if self.peak is None else f"exp({self.value} - {self.peak})"
        return f"%{self.name}: {short_dtype(self.dtype)} = {self.kind.name}[{axes}]({value})"


@dataclasses.dataclass(frozen=True)
class PartialAccumulate:
    """`buffer[index] = kind(buffer[index], value)`: pointwise, one accumulator per split and column.

    `compensated`: a sum that carries the rounding error of each addition into the next (Kahan 1965). `peak`:
    the buffer of the maximum of the same values; the sum is then of the exponentials of the differences to
    it, and is scaled where the maximum grows (Milakov and Gimelshein 2018). It comes before the maximum.
    `moments`: unless 0, it has three results, so many elements apart: how many values there are, their mean,
    and the sum of the squares of their differences to it.
    """

    buffer: str
    index: sympy.Expr
    kind: ReductionKind
    value: Ref
    compensated: bool = False
    peak: str | None = None
    moments: int = 0

    def __str__(self) -> str:
        how = " compensated" if self.compensated else " moments" if self.moments else ""
        value = str(self.value) if self.peak is None else f"exp({self.value} - {self.peak})"
        return f"partial_accumulate{how} {self.buffer}[{self.index}] {self.kind.combine}= {value}"


@dataclasses.dataclass(frozen=True)
class Store:
    """`buffer[index] = value`, cast to the buffer's dtype."""

    buffer: str
    index: sympy.Expr
    value: Ref

    def __str__(self) -> str:
        return f"store {self.buffer}[{self.index}] = {self.value}"


@dataclasses.dataclass(frozen=True)
class Carry:
    """`name = value`, as it was for the same row tile before its exchange."""

    name: str
    value: Ref
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"%{self.name}: {short_dtype(self.dtype)} = carry {self.value}"


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The end of a cooperative kernel's first phase: reductions of a part, in `values`, become the row's."""

    buffer: str
    values: tuple[Ref, ...]

    def __str__(self) -> str:
        return f"exchange {', '.join(map(str, self.values))} through {self.buffer}"


@dataclasses.dataclass(frozen=True)
class Ref:
    """A use of a value by its name."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


Statement = Load | Compute | Reduce | PartialAccumulate | Store | Carry | Exchange
Value = Load | Compute | Reduce | Carry


def operands(stmt: Statement) -> Iterator[str]:
    """Names of the values that a statement uses."""
    for field in vars(stmt).values():
        for value in field if isinstance(field, tuple) else (field,):
            if isinstance(value, Ref):
                yield value.name


@dataclasses.dataclass(frozen=True)
class Nest:
    """Statements under a list of loops, outermost first. A `Reduce` closes loops; later uses reopen them.

    `preamble` runs once per program, before the loops over rows: column loads and values that depend on no
    other loads. `after` runs once per program, after these loops.
    """

    loops: tuple[Axis, ...]
    body: tuple[Statement, ...]
    preamble: tuple[Statement, ...] = ()
    after: tuple[Statement, ...] = ()

    @property
    def statements(self) -> tuple[Statement, ...]:
        return (*self.preamble, *self.body, *self.after)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The loops over elements: all but that over the programs that leave partial results."""
        return tuple(axis for axis in self.loops if axis.kind is not AxisClass.SPLIT)

    @property
    def reduced(self) -> frozenset[sympy.Symbol]:
        """The loops that a `Reduce` runs over."""
        return frozenset(symbol for s in self.body if isinstance(s, Reduce) for symbol in s.axes)

    @property
    def summed(self) -> tuple[Axis, ...]:
        """The axes that partial results add up; none if there are no such results."""
        partials = [s for s in self.body if isinstance(s, PartialAccumulate)]
        kept = {symbol for s in partials for symbol in s.index.free_symbols}
        return tuple(axis for axis in self.axes if partials and axis.symbol not in kept)

    def accesses(self, axes: Sequence[Axis] | None = None) -> list[Load | Store]:
        """The loads and stores of the body that are over some axes, or over all that it has."""
        every = {axis.symbol for axis in (self.axes if axes is None else axes)}
        return [s for s in self.body if isinstance(s, Load | Store) and every <= s.index.free_symbols]

    def axis(self, kind: AxisClass) -> Axis | None:
        """The first axis of a class, or None."""
        return next((axis for axis in self.loops if axis.kind is kind), None)

    @property
    def over_splits(self) -> bool:
        """Whether one of the loops runs over the groups of programs that the rows are divided among."""
        return self.axis(AxisClass.SPLIT) is not None

    def dependence(self) -> Mapping[str, frozenset[sympy.Symbol]]:
        """The loop symbols that each value depends on."""
        return self._dependence

    @functools.cached_property
    def _dependence(self) -> Mapping[str, frozenset[sympy.Symbol]]:
        symbols = {axis.symbol for axis in self.loops}
        deps: dict[str, frozenset[sympy.Symbol]] = {}
        for stmt in self.statements:
            if isinstance(stmt, Value):
                used: frozenset[sympy.Symbol] = frozenset().union(
                    *(deps[n] for n in operands(stmt)), index_symbols(stmt) & symbols
                )
                deps[stmt.name] = used - frozenset(stmt.axes if isinstance(stmt, Reduce) else ())
        return deps

    def reductions_above(self) -> dict[str, int]:
        """How many dependent reductions precede each value (a `Reduce` counts for its users). A sum and the
        maximum that it is relative to are computed together."""
        above: dict[str, int] = {}
        reduced: set[str] = set()
        for stmt in self.statements:
            if isinstance(stmt, Value):
                used = [stmt.value.name] if isinstance(stmt, Reduce) else operands(stmt)
                above[stmt.name] = max((above[n] + (n in reduced) for n in used), default=0)
            if isinstance(stmt, Reduce):
                reduced.add(stmt.name)
        return above

    def __str__(self) -> str:
        return "\n".join(_nest_lines(self))


@dataclasses.dataclass(frozen=True)
class RowAlignment:
    """Where rows start relative to the boundaries of wide memory accesses, if not all start alike.

    Rows are `stride` elements apart; a wide access has `elements` elements.
    """

    stride: int
    elements: int

    @property
    def period(self) -> int:
        """Rows this many apart start at the same distance from a boundary."""
        return self.elements // math.gcd(self.stride, self.elements)

    @property
    def slack(self) -> int:
        """Lanes beyond its columns that a row needs where rows do not all start at a boundary."""
        return self.elements - 1


ALIKE = RowAlignment(1, 1)  # all rows start at a boundary


@dataclasses.dataclass(frozen=True)
class LoopProgram:
    """One region: its buffers, and its nests in execution order.

    `hints` give each symbolic size a likely value: for choosing a schedule, never for correctness.
    `alignment`: where the rows of a merged program start; None if all start alike. `tile_local`: all
    reductions end within blocks of the one nest's axes, of which a program has whole ones.
    `over_reduction_groups`: it is `tile_local`, but its reductions are over reduction groups, of which no
    program has a whole one. `producer_nest`: of a tile-local program, what other programs of its kernel
    compute for whole rows, and its tiles wait for (`transform.producers`).
    """

    buffers: tuple[Buffer, ...]
    nests: tuple[Nest, ...]
    hints: tuple[tuple[sympy.Symbol, int], ...] = ()
    alignment: RowAlignment | None = None
    tile_local: bool = False
    over_reduction_groups: bool = False
    producer_nest: Nest | None = None

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, f.name) for f in dataclasses.fields(self)))

    def __hash__(self) -> int:
        return self._hash  # of hundreds of expressions, and asked for each plan

    @property
    def sizes(self) -> tuple[sympy.Symbol, ...]:
        """The symbolic sizes that the nests need, in a fixed order."""
        if not self.hints:
            return ()
        return tuple(sorted({s for nest in self.nests for s in self.sizes_of(nest)}, key=str))

    def sizes_of(self, nest: Nest) -> tuple[sympy.Symbol, ...]:
        """The symbolic sizes that one nest needs: in its extents, its indices, and as values."""
        symbols = {s for axis in nest.loops for s in axis.size.free_symbols}
        symbols.update(*map(index_symbols, nest.statements))
        return tuple(sorted(symbols & dict(self.hints).keys(), key=str))

    def hint(self, expr: sympy.Expr) -> int:
        return int(sympy.sympify(expr).xreplace(dict(self.hints)) if self.hints else expr)

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    def memory(self, name: str) -> Buffer:
        """A buffer, or the input whose memory it reuses."""
        return self.buffer(self.buffer(name).over or name)

    def role(self, role: BufferRole) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.role is role)

    def axis(self, kind: AxisClass) -> Axis | None:
        """The one axis of a class, or None. Raises ValueError if the nests have several."""
        axes = {axis for nest in self.nests for axis in nest.loops if axis.kind is kind}
        if len(axes) > 1:
            raise ValueError(f"{len(axes)} {kind.value} axes, at most one expected")
        return next(iter(axes), None)

    @property
    def tile_axes(self) -> tuple[Axis, Axis]:
        """The axes of the main kernel's tile: rows, and the axis that the inner reduction runs over."""
        row = self.axis(AxisClass.ROW)
        last = self.axis(AxisClass.COLUMN) or self.axis(AxisClass.COMMON)
        assert row is not None and last is not None
        return row, last

    def __str__(self) -> str:
        producer_nest = () if self.producer_nest is None else (self.producer_nest,)
        return "\n".join(map(str, (*self.buffers, *producer_nest, *self.nests)))


def closure(body: Iterable[Statement], roots: Iterable[Statement]) -> tuple[Statement, ...]:
    """The statements of `body`, in order, that `roots` need, followed by the roots."""
    roots = tuple(roots)
    return (*live((s for s in body if isinstance(s, Value)), roots), *roots)


def behind(body: Iterable[Statement], roots: Collection[Statement]) -> set[str]:
    """The names of some values, and of those that are computed from one."""
    names: set[str] = set()
    for stmt in body:
        if isinstance(stmt, Value) and (stmt in roots or not names.isdisjoint(operands(stmt))):
            names.add(stmt.name)
    return names


def flat(axes: Sequence[Axis]) -> sympy.Expr:
    """The place of an element along some axes, outermost first."""
    place, stride = sympy.S.Zero, sympy.S.One
    for axis in reversed(axes):
        place, stride = place + stride * axis.symbol, stride * axis.size
    return place


def workspace(name: str, dtype: torch.dtype, axes: Sequence[Axis]) -> tuple[Buffer, sympy.Expr]:
    """A buffer with an element for each index of some axes, outermost first, and the index into it."""
    sizes = tuple(axis.size for axis in axes)
    strides = tuple(sympy.prod(sizes[i + 1 :], sympy.S.One) for i in range(len(sizes)))
    return Buffer(name, BufferRole.WORKSPACE, dtype, sizes, strides), flat(axes)


def live(body: Iterable[Statement], roots: Iterable[Statement] = ()) -> tuple[Statement, ...]:
    """The statements of a body that are no values, and the values that these and the roots use, in order."""
    needed = {name for root in roots for name in operands(root)}
    kept: list[Statement] = []
    for stmt in reversed(tuple(body)):
        if not isinstance(stmt, Value) or stmt.name in needed:
            needed.update(operands(stmt))
            kept.append(stmt)
    return tuple(reversed(kept))


def index_symbols(stmt: Statement) -> set[sympy.Symbol]:
    """The symbols in a statement's own index expressions."""
    if isinstance(stmt, Reduce | Carry | Exchange):
        return set()
    exprs = stmt.args if isinstance(stmt, Compute) else (stmt.index,)
    return set().union(*(symbols_of(expr) for expr in exprs if isinstance(expr, sympy.Expr)))


@functools.lru_cache(maxsize=1 << 14)
def symbols_of(expr: sympy.Expr) -> frozenset[sympy.Symbol]:
    """An expression's symbols, which sympy collects anew each time."""
    return frozenset(expr.free_symbols)


@functools.lru_cache(maxsize=1 << 14)
def stride_along(index: sympy.Expr, loop: sympy.Symbol) -> sympy.Expr:
    """What an index grows by from one iteration of a loop to the next."""
    return index.coeff(loop)


def is_full(stmt: Load | Store, axes: Iterable[Axis], reduced: Collection[sympy.Symbol]) -> bool:
    """Whether an access has an element for each point of some loops, or for a few that are packed into it."""
    missing = [axis for axis in axes if axis.symbol not in stmt.index.free_symbols]
    packed = sympy.prod(axis.size for axis in missing)
    return all(axis.symbol in reduced for axis in missing) and bool(packed <= PACKED)


def _show(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return short_dtype(value)
    return str(value)


def loops_of(stmt: Statement, deps: Mapping[str, frozenset[sympy.Symbol]]) -> frozenset[sympy.Symbol]:
    """The loop symbols that a statement depends on. `deps`: those of each value (`Nest.dependence`)."""
    if isinstance(stmt, Value):
        return deps[stmt.name]
    if isinstance(stmt, Exchange):
        return frozenset().union(*(deps[ref.name] for ref in stmt.values))
    return frozenset(stmt.index.free_symbols) | deps[stmt.value.name]


def depth_of(stmt: Statement, loops: tuple[Axis, ...], deps: Mapping[str, frozenset[sympy.Symbol]]) -> int:
    """How many of `loops`, from the outermost, enclose a statement."""
    symbols = loops_of(stmt, deps)
    return max((i + 1 for i, axis in enumerate(loops) if axis.symbol in symbols), default=0)


def _nest_lines(nest: Nest) -> list[str]:
    """Print each statement under the loops that enclose it.

    A reduction closes its loops, and the next statement that needs them opens them again. A load or
    computation that could stand further out is printed inside the loops that are open.
    """
    deps = nest.dependence()
    lines = [f"once: {stmt}" for stmt in nest.preamble]
    opened = 0
    for stmt in nest.body:
        depth = depth_of(stmt, nest.loops, deps)
        if isinstance(stmt, Load | Compute):
            depth = max(depth, opened)
        for level in range(min(opened, depth), depth):
            lines.append("  " * level + f"for {nest.loops[level]}:")
        opened = depth
        lines.append("  " * depth + str(stmt))
    return lines + [f"after: {stmt}" for stmt in nest.after]
