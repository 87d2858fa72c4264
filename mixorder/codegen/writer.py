"""Write statements of the loop IR as Triton, over a two-dimensional tile.

A nest's axes are laid out over the tile, (row, column) for a main kernel and (split, column) for a
finalisation. What a statement becomes follows from the axes that it depends on.

For widths that are far from a power of two, a tile's columns may be in several chunks, each of a power of
two. What depends on the columns is then written once per chunk, and a reduction first combines the chunks
lane by lane.
"""

from __future__ import annotations

import dataclasses
import math
from collections import ChainMap
from collections.abc import Iterator, MutableMapping, Sequence
from typing import NamedTuple

import sympy
import torch

from ..inductor.printing import CSEVariable, texpr, triton_compute_type
from ..inductor.symbols import wide_symbols
from ..ir.program import (
    SPLIT_SYMBOL,
    AxisClass,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    RowAlignment,
    Statement,
    Store,
)
from ..ir.reductions import AMAX, ReductionKind
from .kernel_text import KernelText, filler, identity

# Names in kernels whose rows are shifted: the offset of an access, and masks that hold for a whole access.
SHIFTED = "start + lane_offset"
NEAR, WHOLE = "near", "whole"
LOG2_E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class TileDim:
    """One dim of the tile: its loop symbol, its extent as Triton text, and its block's constexpr.

    `masked`: some lane of a tile may lie beyond the extent. `chunk`: the number of this chunk, if the columns
    have several; `start`: the column of its first lane.
    """

    symbol: sympy.Symbol
    extent: str
    block: str
    masked: bool
    chunk: int | None = None
    start: int = 0

    @property
    def suffix(self) -> str:
        return "" if self.chunk is None else f"_{self.chunk}"

    @property
    def name(self) -> str:
        """What the symbol is called in the kernel."""
        return f"{self.symbol}{self.suffix}"

    @property
    def mask(self) -> str:
        return f"{self.symbol}mask{self.suffix}"


class _Chunk(NamedTuple):
    """One chunk of the columns: its dim, the values that vary over it, and its symbol's name."""

    dim: TileDim
    variables: MutableMapping[str, CSEVariable]
    names: dict[sympy.Symbol, sympy.Symbol]


class Writer(KernelText):
    """Writes one kernel; statements are placed by the caller, in the nest's order.

    `spread_columns`: column vectors are loaded as full tiles, for a loop over several. `keeps`: caches keep
    what is loaded. `columns`: the chunks of the last dim, of which `dims` has the one that is being written.
    `has_rows`: each thread has all rows of a tile, if there are several. `alignment`: where the rows start,
    if they are shifted.
    """

    spread_columns = keeps = has_rows = False
    alignment: RowAlignment | None = None

    def __init__(self, program: LoopProgram, nest: Nest, dims: tuple[TileDim, ...], num_splits: int) -> None:
        super().__init__(program, nest, nest.loops)
        self.dims = dims[:2]
        self.tiled = frozenset(d.symbol for d in dims)
        self.deps = {name: deps & self.tiled for name, deps in self.deps.items()}
        batch = nest.axis(AxisClass.BATCH)
        self.batch_symbol = None if batch is None else batch.symbol
        self.batch = sympy.S.One if batch is None else batch.size
        self.columns = tuple(map(self._chunk, dims[1:]))
        self.wide = self._wide({SPLIT_SYMBOL: sympy.Integer(num_splits)})

    def _wide(self, splits: dict[sympy.Symbol, sympy.Expr]) -> frozenset[str]:
        """The names of what the kernel has in 64 bits: of the symbols of its loops, and of its sizes."""
        loops = {axis.symbol: axis.size for axis in self.nest.loops}
        slots = {sympy.Symbol(b.name): b.numel for b in self.program.role(BufferRole.MAILBOX)}
        wide = wide_symbols([*self.indices, *slots], loops | splits | slots)
        return frozenset(map(str, wide | wide_symbols([*loops.values(), *self.numbers], {})))

    def to_index_width(self, text: str, name: object) -> str:
        """The text of an integer, in 64 bits if the symbol of a loop that it is for has as many."""
        return f"({text}).to(tl.int64)" if str(name) in self.wide else text

    def programs(self, name: str, number: str = "tl.program_id(0)") -> None:
        """Number the programs: by their index on the batch axis, if there is one, then as `name`."""
        if self.batch_symbol is None:
            self.code.writeline(f"{name} = {self.to_index_width(number, name)}")
            return
        self.code.writeline(f"program = {number}")
        batch = texpr(self.batch)
        if not self.batch.is_number:
            self.code.writeline(f"batch = {batch}")
            batch = "batch"
        self.code.writeline(
            f"{self.batch_symbol} = {self.to_index_width(f'(program % {batch})', self.batch_symbol)}"
        )
        self.code.writeline(f"{name} = {self.to_index_width(f'program // {batch}', name)}")

    def index(self, dim: TileDim, text: str) -> None:
        self.code.writeline(f"{dim.name} = {text}")
        if dim.masked:
            self.code.writeline(f"{dim.mask} = {dim.name} < {dim.extent}")

    def chunks(self) -> Iterator[None]:
        """Iterate over the chunks of the columns; statements are then written for the current chunk."""
        before = self.dims, self.ops.variables, self.ops.names
        for dim, values, names in self.columns:
            self.dims, self.ops.variables, self.ops.names = (self.dims[0], dim), values, names
            yield
        self.dims, self.ops.variables, self.ops.names = before

    def _chunk(self, dim: TileDim) -> _Chunk:
        if dim.chunk is None:
            return _Chunk(dim, self.ops.variables, {})
        name = sympy.Symbol(dim.name, integer=True, nonnegative=True)
        return _Chunk(dim, ChainMap({}, self.ops.variables), {dim.symbol: name})

    def statement(self, stmt: Statement) -> None:
        with self.ops.active():
            if isinstance(stmt, Reduce):
                self.reduce(stmt)
            elif isinstance(stmt, Load) and self.program.buffer(stmt.buffer).role is BufferRole.ACCUMULATOR:
                self.accumulated(stmt)
            elif self.dims[1].symbol in self.varies(stmt):
                for _ in self.chunks():
                    self.for_one_chunk(stmt)
            else:
                self.for_one_chunk(stmt)

    def for_one_chunk(self, stmt: Statement) -> None:
        if isinstance(stmt, Load):
            self.load(stmt)
        elif isinstance(stmt, Compute):
            self.ops.compute(stmt)
        elif isinstance(stmt, PartialAccumulate):
            self.accumulate(stmt)
        elif isinstance(stmt, Store):
            value = self.ops.variables[stmt.value.name]
            self.store(stmt.buffer, stmt.index, str(value), self.varies(stmt))

    def varies(self, stmt: Statement) -> frozenset[sympy.Symbol]:
        """The tile's symbols that a value, an element stored or an accumulator depends on."""
        if isinstance(stmt, PartialAccumulate):
            return self.tiled
        if isinstance(stmt, Store):
            return self.symbols(stmt.index) | self.deps[stmt.value.name]
        return self.deps[stmt.name]  # type: ignore[union-attr]

    def load(self, stmt: Load) -> None:
        symbols, varies = self.symbols(stmt.index), self.deps[stmt.name]
        shifted = self.is_shifted(stmt.index)
        mask = self.mask(varies, NEAR if shifted else None)
        if stmt.predicate is not None:
            predicate = self.predicate(stmt.predicate.name)
            mask = f"{mask} & {predicate}" if mask else predicate
        masked = f", {mask}, other=0" if mask else ""
        evict = ", eviction_policy='evict_first'" if self.is_evicted_first(stmt) else ""
        pointer = f"{self.pointer(stmt.buffer)} + ({SHIFTED if shifted else self.ops.offset(stmt.index)})"
        if self.spread_columns and stmt in self.nest.preamble and symbols:
            # A [1, R0_BLOCK] load has a register layout of its own, to which Triton would convert every tile
            # of the loop. H200, LayerNorm 1000000x256 bf16: 41% of the limit with that, 90% so.
            pointer = f"tl.broadcast_to({pointer}, [{self.shape(self.tiled)}])"
        elif stmt.predicate is not None and (not symbols or varies - symbols):
            pointer = f"tl.broadcast_to({pointer}, [{self.shape(varies)}])"
        text = self.loaded(stmt, f"tl.load({pointer}{masked}{evict})")
        self.ops.define(self.cast(stmt, text), stmt.dtype, stmt.name)

    def is_evicted_first(self, stmt: Load) -> bool:
        """Whether caches let the data of a load go first, so that they keep others. Full tiles are streamed.
        The others are small tensors, what a gather rereads at another place of the row, a table that many
        rows share, and what another kernel reads later."""
        buffer = self.program.buffer(stmt.buffer)
        reads = sum(isinstance(s, Load) and s.buffer == stmt.buffer for s in self.nest.statements)
        numel = sympy.prod(axis.size for axis in self.nest.axes)
        full = sympy.expand(buffer.numel - numel).is_nonnegative
        read_once = len(self.symbols(stmt.index)) == 2 and reads == 1 and bool(full)
        return read_once and not (self.keeps or buffer.reread)

    def loaded(self, stmt: Load, text: str) -> str:
        """The text by which the kernel uses a load; a subclass may assign it to a name first."""
        return text

    def predicate(self, name: str) -> str:
        """A bool value as part of a mask, which has both dims of the tile: a constant is broadcast."""
        value = str(self.ops.variables[name])
        return value if self.deps[name] else f"(tl.full([1, 1], True, tl.int1) & {value})"

    def shape(self, symbols: frozenset[sympy.Symbol]) -> str:
        return ", ".join(d.block if d.symbol in symbols else "1" for d in self.dims)

    def reduce(self, stmt: Reduce) -> None:
        dim = next(i for i, d in enumerate(self.dims) if d.symbol in stmt.axes)
        name, kind, dtype = stmt.value.name, stmt.kind, stmt.dtype
        values = [self.masked_value(name, kind, dtype, (self.dims[dim],)) for _ in self.chunks()]
        value = self.joined(kind, values, dtype)
        self.ops.define(self.reduced_along(kind, dtype, value, dim, 2), dtype, stmt.name)

    def joined(self, kind: ReductionKind, values: Sequence[str], dtype: torch.dtype) -> str:
        """Combine the chunks' tiles lane by lane, so that threads exchange their parts of a row only once."""
        value, *chunks = values
        for chunk in chunks:
            value = str(self.ops.define(self.combined(kind, value, chunk, dtype), dtype))
        return value

    def accumulate(self, stmt: PartialAccumulate) -> None:
        kind, dtype = stmt.kind if stmt.peak is None else AMAX, self.dtype(stmt)
        value = self.masked_value(stmt.value.name, kind, dtype, self.masked_dims(stmt))
        if stmt.peak is not None:
            self.add_relative(stmt, value)
        else:
            self.add(stmt, self.reduced_along(kind, dtype, value, 0, 2) if self.folds(stmt) else value)

    def masked_dims(self, stmt: PartialAccumulate) -> tuple[TileDim, ...]:
        """The dims beyond whose extents a value may change what is accumulated."""
        return self.reduced_dims(stmt)

    def folds(self, stmt: PartialAccumulate) -> bool:
        """Whether a tile's rows are added up before they are accumulated: where each thread has all rows, and
        an addition to the accumulator takes several instructions."""
        return self.has_rows and stmt.compensated and self.dims[0] in self.reduced_dims(stmt)

    def add(self, stmt: PartialAccumulate, value: str) -> None:
        dtype = self.dtype(stmt)
        acc, *error = self.accumulators(stmt)
        if not error:
            self.code.writeline(f"{acc} = {self.combined(stmt.kind, acc, value, dtype)}")
            return
        term = self.ops.define(f"{value} - {error[0]}", dtype)
        total = self.ops.define(f"{acc} + {term}", dtype)
        # Once the sum is infinite or NaN there is no error to carry: inf - inf would turn inf into NaN.
        finite = f"tl.abs({total}) < float('inf')"
        self.code.writeline(f"{error[0]} = tl.where({finite}, ({total} - {acc}) - {term}, 0.0)")
        self.code.writeline(f"{acc} = {total}")

    def add_relative(self, stmt: PartialAccumulate, value: str) -> None:
        """Add an exponential relative to the maximum, whose accumulators do not have the value yet. One
        exponential scales what is less: the sum before, or the new term. Lanes without an element have minus
        infinity, and add nothing."""
        dtype, (acc,) = self.dtype(stmt), self.accumulators(stmt)
        value = self.ops.define(value, dtype)
        more = self.ops.define(f"{value} - {self.peak(stmt)}", dtype)
        less = self.exponential(f"-tl.abs({more})", dtype)
        less = self.ops.define(f"tl.where({value} == float('-inf'), 0.0, {less})", dtype)
        self.code.writeline(f"{acc} = tl.where({more} > 0, {acc} * {less} + 1.0, {acc} + {less})")

    def exponential(self, text: str, dtype: torch.dtype) -> CSEVariable:
        """An exponential of a difference that is not positive. Where the rounding error of the product is
        large, the result is small."""
        return self.ops.print("exp2", (self.ops.define(f"{text} * {LOG2_E}", dtype),), {}, dtype)

    def peak(self, stmt: PartialAccumulate) -> str:
        """The accumulators of the maximum that a sum is relative to."""
        return f"{stmt.peak}_acc{self.dims[1].suffix}"

    def reduced_dims(self, stmt: PartialAccumulate) -> tuple[TileDim, ...]:
        """The tile dims that a partial does not keep: rows, and a common axis."""
        return tuple(d for d in self.dims if d.symbol not in stmt.index.free_symbols)

    def totals(self, stmt: PartialAccumulate) -> Iterator[str]:
        """The text of what a program has accumulated: for each chunk, if the partial has columns."""
        if self.dims[1].symbol in self.symbols(stmt.index):
            for _ in self.chunks():
                value = " - ".join(self.accumulators(stmt))
                value = value if stmt.peak is None else self.relative(stmt, value)
                yield self.over_tile(stmt, value, stmt.kind)
            return
        values = [" - ".join(self.accumulators(stmt)) for _ in self.chunks()]
        yield self.over_tile(stmt, self.joined(stmt.kind, values, self.dtype(stmt)), stmt.kind)

    def relative(self, stmt: PartialAccumulate, value: str) -> str:
        """The sums of a tile's rows, relative to the maximum of these rows."""
        peak = self.peak(stmt)
        factor = self.exponential(f"({peak} - {self.over_tile(stmt, peak, AMAX)})", self.dtype(stmt))
        return f"tl.where({peak} == float('-inf'), 0.0, {value} * {factor})"

    def over_tile(self, stmt: PartialAccumulate, value: str, kind: ReductionKind) -> str:
        """A tile, reduced along the dims that a partial does not keep."""
        for dim in self.reduced_dims(stmt):
            value = self.reduced_along(kind, self.dtype(stmt), value, self.dims.index(dim), 2)
        return value

    def accumulated(self, stmt: Load) -> None:
        """Define the total of a partial in its reader's dtype."""
        partial = next(
            s for s in self.nest.body if isinstance(s, PartialAccumulate) and s.buffer == stmt.buffer
        )
        for value in self.totals(partial):
            if stmt.dtype != self.dtype(partial):
                value = f"({value}).to({triton_compute_type(stmt.dtype)})"
            self.ops.define(value, stmt.dtype, stmt.name)

    def store_partial(self, stmt: PartialAccumulate) -> None:
        with self.ops.active():
            for value in self.totals(stmt):
                self.store(stmt.buffer, stmt.index, value, self.symbols(stmt.index))

    def empty(self, stmt: PartialAccumulate) -> None:
        """Begin a partial's accumulators with the identity of its reduction."""
        start = identity(stmt.kind, self.dtype(stmt))
        for _ in self.chunks():
            shape = f"1, {self.dims[1].block}" if self.folds(stmt) else self.shape(self.tiled)
            for name in self.accumulators(stmt):
                self.code.writeline(f"{name} = tl.full([{shape}], {start})")

    def accumulators(self, stmt: PartialAccumulate) -> list[str]:
        """Names of a partial's tiles: the sum and, if it is compensated, its excess from rounding."""
        chunk = self.dims[1].suffix
        return [f"{stmt.buffer}_acc{chunk}"] + [f"{stmt.buffer}_error{chunk}"] * stmt.compensated

    def masked_value(
        self, name: str, kind: ReductionKind, dtype: torch.dtype, dims: tuple[TileDim, ...]
    ) -> str:
        """The value over the whole tile, with the reduction's identity in lanes beyond the extents of `dims`.

        The identity replaces the value, not the loads that it is computed from: a prologue may turn a zero
        fill into another number.
        """
        value = str(self.ops.variables[name])
        if self.deps[name] != self.tiled:
            value = f"tl.broadcast_to({value}, [{self.shape(self.tiled)}])"
        if mask := " & ".join(d.mask for d in dims if d.masked):
            value = f"tl.where({mask}, {value}, {filler(kind, dtype)})"
        return value

    def store(self, buffer: str, index: sympy.Expr, value: str, symbols: frozenset[sympy.Symbol]) -> None:
        """Store a value that varies over `symbols`; an index lacks those whose extent is 1."""
        pointer = self.pointer(buffer)
        if self.is_shifted(index):
            for columns in (WHOLE, f"{self.dims[1].mask} & ~{WHOLE}"):
                mask = self.stored_where(self.mask(symbols, columns))
                self.code.writeline(f"tl.store({pointer} + ({SHIFTED}), {value}, {mask})")
            return
        mask = self.stored_where(self.mask(symbols))
        masked = f", {mask}" if mask else ""
        pointer = f"{pointer} + ({self.ops.offset(index)})"
        if not symbols or symbols - self.symbols(index):
            pointer = f"tl.broadcast_to({pointer}, [{self.shape(symbols)}])"
        self.code.writeline(f"tl.store({pointer}, {value}{masked})")

    def stored_where(self, mask: str) -> str:
        """The mask of a store; a subclass may restrict it."""
        return mask

    def symbols(self, index: sympy.Expr) -> frozenset[sympy.Symbol]:
        return frozenset(index.free_symbols) & self.tiled

    def mask(self, symbols: frozenset[sympy.Symbol], columns: str | None = None) -> str:
        """The mask of what varies over `symbols`; `columns` replaces the last dim's own mask."""
        masks = {d.symbol: d.mask for d in self.dims if d.masked and d.symbol in symbols}
        if columns is not None:
            masks[self.dims[1].symbol] = columns
        return " & ".join(masks.values())

    def is_shifted(self, index: sympy.Expr) -> bool:
        """Whether an access is to a full tile in a kernel with shifted rows."""
        return self.alignment is not None and self.symbols(index) == self.tiled
