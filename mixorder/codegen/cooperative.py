"""Write the main kernel of the cooperative strategy: `parts` programs share a row, each with some columns.

In the first phase, a program works on a row tile, stores its parts of the tile's reductions in the mailbox,
and continues with its next tiles. The tile's second phase runs `lag` tiles later, when the totals are known.

The result is correct even if the programs of a group do not run at the same time. A program that has waited
too long takes the recompute fallback: it runs the same loop once more for each part, to fill the slots that
are still empty, and then for its own part. All turns run the same code, so the bits of a sum do not depend on
the program that computes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from ..inductor.printing import triton_compute_type
from ..ir.program import (
    SPLIT_SYMBOL,
    Carry,
    Exchange,
    Load,
    LoopProgram,
    PartialAccumulate,
    Reduce,
    Statement,
    Store,
)
from ..ir.reductions import AMAX
from ..schedule.plan import Plan
from ..transform.cooperative import MAILBOX, slots_of
from .exchange import POLLS, Record, carried, word
from .exchange_phases import floating, record_groups, without_effect
from .programmatic_launch import PROGRAM
from .row_kernel import RowKernel
from .source import KernelSource
from .writer import TileDim, filler

MINE = "mine"  # whether a turn of the kernel is for the program's own part

# What full tiles are carried in without a cast.
_CARRIED_RAW = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16", torch.float32: "tl.float32"}


def cooperative_kernel(program: LoopProgram, plan: Plan, label: str) -> KernelSource:
    """The kernel of the first nest of a program that `transform.cooperative` has cut into phases."""
    return _CooperativeKernel(program, plan).written(label)


@dataclasses.dataclass(frozen=True)
class _CarriedValue:
    """A carried value: its name in the kernel, and as what it stays in registers. `raw`: as it was loaded."""

    name: str
    dtype: torch.dtype
    triton_dtype: str
    shape: str
    raw: bool = False


class _CooperativeKernel(RowKernel):
    """Loads that are carried are also kept without a cast. Column vectors and accumulators have one row: a
    thread has all rows of a tile. In a kernel with exchanges, results are stored only in turns for the
    program's own part."""

    def __init__(self, program: LoopProgram, plan: Plan) -> None:
        last = program.tile_axes[1]
        full = plan.group * plan.lanes == last.size and plan.period == 1
        columns = TileDim(last.symbol, str(last.size), "R0_BLOCK", not full)
        super().__init__(program, plan, [columns], masked=True)
        body = self.nest.body
        end = next((i for i, s in enumerate(body) if isinstance(s, Exchange)), len(body))
        self.first, self.second = body[:end], body[end + 1 :]
        groups = record_groups([s for s in body if isinstance(s, Reduce)], plan.group)
        self.exchanged = [r for group in groups for r in group]
        self.records = [(Record(group[0].kind, len(group), plan.group), group) for group in groups]
        loads = {s.name: s for s in body if isinstance(s, Load)}
        names = [s.value.name for s in body if isinstance(s, Carry)]
        self.carried_values = {n: self.carried_value(f"held{i}", loads[n]) for i, n in enumerate(names)}
        # Accumulations that add zero where there is no row, if there are such places at all.
        self.idle = without_effect(self.nest, self.dims[0].symbol)
        if not self.ragged and not self.exchanged:
            self.idle = set(self.accumulations)
        self.floating = floating(self.nest, columns.symbol)

    def written(self, label: str) -> KernelSource:
        group, code = self.plan.group, self.code
        self.begin_main()
        code.writeline(f"{'own' if self.exchanged else 'part'} = {PROGRAM} % {group}")
        code.writeline(f"{SPLIT_SYMBOL} = {self.to_index_width(PROGRAM, SPLIT_SYMBOL)} // {group}")
        if self.alignment is None:
            code.writeline(f"begin, tiles = {self.first_tile}, {self.tiles}")
        else:
            self.shift()
            code.writeline(f"begin = {self.first_tile}")
            code.writeline(f"tiles = {self.tiles}")
        if self.exchanged:
            self.turns()
        else:
            self.turn()
        return self.finish_main(label)

    def turns(self) -> None:
        """One turn for the program's own part. If a wait timed out, the recompute fallback: one turn for each
        other part; then its own part again. Warps may have read different slots: any of them tells."""
        code, recomputed = self.code, self.plan.group - 1
        code.writeline("turn = tl.full([], 0, tl.int32)")
        code.writeline("turns = tl.full([], 1, tl.int32)")
        code.writeline("while turn < turns:")
        with code.indent():
            code.writeline(f"{MINE} = (turn == 0) | (turn == {recomputed + 1})")
            code.writeline(f"part = tl.where({MINE}, own, (own + turn) % {self.plan.group})")
            self.turn()
            missed = "tl.max(missed1 + tl.zeros([R0_BLOCK], tl.int32), 0)"
            code.writeline(f"turns = tl.where((turn == 0) & ({missed} > 0), {recomputed + 2}, turns)")
            code.writeline("turn += 1")

    # Indices.

    def preamble(self) -> None:
        """The columns of the part, the mask of the lanes that have one, and what depends on no row."""
        cols, y = self.plan.walk[-1].part, self.dims[1]
        if self.alignment is not None:
            self.code.writeline(f"end = tl.minimum(part * {cols} + {cols}, {y.extent})")
            self.shifted_columns(f"part * {cols}", "end")
        else:
            lanes = "tl.arange(0, R0_BLOCK)[None, :]"
            self.code.writeline(f"{y.symbol} = part * {cols} + {self.to_index_width(lanes, y.symbol)}")
            inside = f"{y.symbol} < {y.extent}"
            if cols != self.plan.lanes:
                inside = f"({inside}) & ({lanes} < {cols})"
            if y.masked:
                self.code.writeline(f"{y.mask} = {inside}")
        super().preamble()
        if self.floating:
            self.anchor()

    def anchor(self) -> None:
        """A load that is always masked off, in the layout of the tiles. A reduction that depends on no load
        over columns would otherwise have the layout of its mailbox store, with a row per thread."""
        moves = (s for s in self.nest.body if isinstance(s, Load | Store))
        pointer = self.pointer(max(moves, key=lambda s: len(self.varies(s))).buffer)
        self.code.writeline(f"anchor = tl.load({pointer} + {self.dims[1].symbol}, {PROGRAM} < 0, other=0)")

    def rows(self, late: bool) -> None:
        """The rows of the tile that a phase works on in this iteration."""
        x, tile = self.dims[0], self.tile_of() if late else "tile"
        before = f"({x.symbol} >= 0) & " if late else ""
        tile = f"({tile})" if self.alignment is None else tile
        self.begin_tile(tile, f"{before}({x.symbol} < {x.extent})")

    def tile_of(self, later: int = 0) -> str:
        """Triton text: the tile that the second phase works on in this iteration, or so many later."""
        late = (self.plan.lag - later) * self.step
        return f"tile - {late}" if late else "tile"

    def record_at(self, group: Sequence[Reduce], row: int, tile: str) -> str:
        """Triton text: the address of the record of a row of a tile, clamped to the existing tiles."""
        tile = f"tl.maximum(tl.minimum({tile}, tiles - 1), 0)"
        row_of = f"({self.to_index_width(tile, MAILBOX)} * XBLOCK + {row})"
        if self.alignment is not None:
            row_of = f"({row_of} * {self.alignment.period} + first)"
        return f"{self.pointer(MAILBOX)} + {self.slots(row_of, group[0])}"

    def slots(self, row: str, reduce: Reduce) -> str:
        """Triton text: the first slot of a reduction of a row."""
        place = f"{row} * {len(self.exchanged)} + {self.exchanged.index(reduce)}"
        return f"({place}) * {slots_of(self.plan.group)}"

    # The loop.

    def loop(self) -> None:
        lag, code = self.plan.lag, self.code
        for carry in self.carried_values.values():
            for i in range(1, lag + 1):
                code.writeline(f"{carry.name}_{i} = tl.zeros([{carry.shape}], {carry.triton_dtype})")
        if self.exchanged:
            code.writeline("missed1 = tl.full([], 0, tl.int32)")
        for group in range(len(self.records)):
            self.peek(group, "begin")
        turns = f"tiles + {lag * self.step}" if self.exchanged else "tiles"
        code.writeline(f"for tile in tl.range(begin, {turns}, {self.step}, num_stages=NUM_STAGES):")
        with code.indent():
            # A phase's loads are outside every branch, so that Triton prefetches them.
            if any(isinstance(s, Load) for s in self.second):
                self.rows(late=True)
                self.loads(self.second)
            self.rows(late=False)
            self.loads(self.first)
            self.run(self.first)
            for reduce in self.exchanged:
                self.publish(reduce)
            if self.exchanged:
                self.wait()
                self.rows(late=True)
                # Masks, no branch: H200, RMSNorm 16384x16384 bf16: 76% of the limit with a branch, 91% so.
                self.run(self.second)
            for value, carry in self.carried_values.items():
                for i in range(lag, 1, -1):
                    moved = carried(f"{carry.name}_{i - 1}", carry.dtype.itemsize * 8, carry.triton_dtype)
                    code.writeline(f"{carry.name}_{i} = {moved}")
                code.writeline(f"{carry.name}_1 = {self.newest(value, carry)}")

    def loads(self, phase: Sequence[Statement]) -> None:
        for stmt in phase:
            if isinstance(stmt, Load):
                self.statement(stmt)

    def run(self, phase: Sequence[Statement]) -> None:
        for stmt in phase:
            if isinstance(stmt, Carry):
                self.carry(stmt)
            elif not isinstance(stmt, Load):
                self.statement(stmt)

    def publish(self, reduce: Reduce) -> None:
        x, value = self.dims[0].symbol, word(str(self.ops.variables[reduce.name]))
        at = f"{self.slots(str(x), reduce)} + part"
        inside = f"{x} < tiles * {self.plan.tile_rows * self.plan.period}"
        self.code.writeline(f"tl.store({self.pointer(MAILBOX)} + ({at}), {value}, ({inside}))")

    def wait(self) -> None:
        """Wait for the totals that the second phase needs, and issue the reads for its next tile."""
        code, tile, rows = self.code, self.tile_of(), range(self.plan.tile_rows)
        code.writeline(f"ready1 = ({tile} >= 0) & ({tile} < tiles)")
        code.writeline(f"polls = tl.where({MINE} & ready1 & (missed1 == 0), {POLLS}, 0)")
        for g, (record, group) in enumerate(self.records):
            for row in rows:
                total = f"total1_{g}_{row}"
                awaited = record.total(self.record_at(group, row, tile), _seen(g, row), "polls")
                code.writeline(f"{total} = {awaited}")
                code.writeline(f"missed1 = missed1 | (ready1 & ({total}[0] == 0)).to(tl.int32)")
            for i, reduce in enumerate(group):
                values = [f"total1_{g}_{row}[{i + 1}]" for row in rows]
                self.ops.define(_column(values), reduce.dtype, reduce.name)
            self.peek(g, self.tile_of(later=1))

    def peek(self, g: int, tile: str) -> None:
        """Issue the reads of a record of each row of a tile."""
        record, group = self.records[g]
        for row in range(self.plan.tile_rows):
            self.code.writeline(f"{_seen(g, row)} = {record.peek(self.record_at(group, row, tile))}")

    # Values that are carried from the first phase to the second.

    def carried_value(self, name: str, value: Load) -> _CarriedValue:
        varies, stored = self.deps[value.name], self.program.buffer(value.buffer).dtype
        shape = self.shape(varies)
        if len(varies) == 2 and stored in _CARRIED_RAW:  # few values per row gain nothing
            return _CarriedValue(name, stored, _CARRIED_RAW[stored], shape, raw=True)
        dtype = torch.int8 if value.dtype == torch.bool else value.dtype
        if len(varies) < 2 and not dtype.is_floating_point and dtype.itemsize < 4:
            dtype = torch.int32  # a tile has too few rows to fill a register with their elements
        return _CarriedValue(name, dtype, triton_compute_type(dtype), shape)

    def newest(self, value: str, carried_value: _CarriedValue) -> str:
        """Triton text: a value of this iteration, as it is carried."""
        if carried_value.raw:
            return f"{carried_value.name}_raw"
        variable = self.ops.variables[value]
        cast = "" if carried_value.dtype == variable.dtype else f".to({carried_value.triton_dtype})"
        return f"{variable}{cast}"

    def carry(self, stmt: Carry) -> None:
        carried_value = self.carried_values[stmt.value.name]
        text = f"{carried_value.name}_{self.plan.lag}"
        if stmt.dtype == torch.bool:
            text = f"({text} != 0)"
        elif carried_value.dtype != stmt.dtype:
            text += f".to({triton_compute_type(stmt.dtype)})"
        self.ops.define(text, stmt.dtype, stmt.name)

    # Statements that it writes in another way.

    def reduce(self, stmt: Reduce) -> None:
        value = self.ops.variables[stmt.value.name]
        if stmt.name in self.floating:
            anchored = f"tl.where(anchor == 0, {value}, {filler(stmt.kind, stmt.dtype)})"
            self.ops.variables[stmt.value.name] = anchored
        super().reduce(stmt)
        self.ops.variables[stmt.value.name] = value

    def stored_where(self, mask: str) -> str:
        if not self.exchanged:
            return mask
        return f"{mask} & {MINE}" if mask else MINE

    def loaded(self, stmt: Load, text: str) -> str:
        carry = self.carried_values.get(stmt.name)
        if carry is None or not carry.raw:
            return text
        name = f"{carry.name}_raw"
        self.code.writeline(f"{name} = {text}")
        return name

    def masked_dims(self, stmt: PartialAccumulate) -> tuple[TileDim, ...]:
        return () if stmt in self.idle else self.reduced_dims(stmt)

    def folds(self, stmt: PartialAccumulate) -> bool:
        return True

    def totals(self, stmt: PartialAccumulate) -> Iterator[str]:
        yield " - ".join(self.accumulators(stmt))

    def add_relative(self, stmt: PartialAccumulate, value: str) -> None:
        """Add the exponentials of a tile's rows, relative to the maximum that the tile moves."""
        dtype, (acc,), before = self.dtype(stmt), self.accumulators(stmt), self.peak(stmt)
        value = str(self.ops.define(value, dtype))
        highest = self.combined(AMAX, before, self.reduced_along(AMAX, dtype, value, 0, 2), dtype)
        highest = str(self.ops.define(highest, dtype))
        base = self.ops.define(f"tl.where({highest} == float('-inf'), 0.0, {highest})", dtype)
        scale, terms = (self.exponential(f"({exponent} - {base})", dtype) for exponent in (before, value))
        total = self.reduced_along(stmt.kind, dtype, str(terms), 0, 2)
        self.code.writeline(f"{acc} = {acc} * {scale} + {total}")


def _seen(group: int, row: int) -> str:
    return f"seen1_{group}_{row}"


def _column(values: list[str]) -> str:
    """Scalars, one for each row of a tile, as a column."""
    if len(values) == 1:
        return f"tl.full([1, 1], {values[0]}, tl.float32)"
    text = values[-1]
    for row in reversed(range(len(values) - 1)):
        text = f"tl.where(tl.arange(0, XBLOCK)[:, None] == {row}, {values[row]}, {text})"
    return text
