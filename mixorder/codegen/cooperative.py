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
from .source import KernelSource
from .writer import TileDim, Writer, filler, of_rows

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


class _CooperativeKernel:
    def __init__(self, program: LoopProgram, plan: Plan) -> None:
        self.program, self.plan, self.nest = program, plan, program.nests[0]
        row, last = program.tile_axes
        self.alignment = program.alignment if plan.period > 1 else None
        self.step = plan.splits // plan.period
        self.ragged = row.size % (plan.tile_rows * plan.period) != 0
        x = of_rows(row, masked=True)
        full = plan.group * plan.lanes == last.size and self.alignment is None
        y = TileDim(last.symbol, str(last.size), "R0_BLOCK", not full)
        self.x, self.y = x, y
        self.writer = _CooperativeWriter(program, self.nest, (x, y), plan.splits)
        self.code = self.writer.code
        body = self.nest.body
        end = next((i for i, s in enumerate(body) if isinstance(s, Exchange)), len(body))
        self.first, self.second = body[:end], body[end + 1 :]
        self.groups = record_groups([s for s in body if isinstance(s, Reduce)], plan.group)
        self.exchanged = [r for group in self.groups for r in group]
        self.accumulators = [s for s in self.nest.body if isinstance(s, PartialAccumulate)]
        self.writer.carried_values = self._carried_values()
        if not self.ragged and not self.exchanged:
            self.writer.idle = set(self.accumulators)

    def written(self, label: str) -> KernelSource:
        plan, writer, code = self.plan, self.writer, self.code
        writer.begin_main(plan)
        member = "own" if self.exchanged else "part"
        code.writeline(f"{member} = {PROGRAM} % {plan.group}")
        code.writeline(f"{SPLIT_SYMBOL} = {writer.to_index_width(PROGRAM, SPLIT_SYMBOL)} // {plan.group}")
        if self.alignment is None:
            code.writeline(f"begin, tiles = {SPLIT_SYMBOL}, tl.cdiv({self.x.extent}, XBLOCK)")
        else:
            writer.shift(self.alignment)
            code.writeline(f"begin = {SPLIT_SYMBOL} // {plan.period}")
            code.writeline(f"tiles = tl.cdiv(tl.cdiv({self.x.extent}, {plan.period}), XBLOCK)")
        if self.exchanged:
            self.turns()
        else:
            self.turn()
        return writer.finish_main(label, plan)

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

    def turn(self) -> None:
        """All rows of a part, and the store of its partials."""
        writer = self.writer
        self.columns()
        for stmt in self.nest.preamble:
            writer.statement(stmt)
        if writer.floating:
            self.anchor()
        for acc in self.accumulators:
            writer.empty(acc)
        self.main_loop()
        if self.plan.launch.dependent:
            self.writer.release()
        for acc in self.accumulators:
            writer.store_partial(acc)

    # Indices.

    def columns(self) -> None:
        """The columns of the part, and the mask of the lanes that have one."""
        cols, y = self.plan.walk[-1].part, self.y
        if self.alignment is not None:
            self.code.writeline(f"end = tl.minimum(part * {cols} + {cols}, {y.extent})")
            self.writer.shifted_columns(f"part * {cols}", "end")
            return
        lanes = self.writer.to_index_width("tl.arange(0, R0_BLOCK)[None, :]", y.symbol)
        self.code.writeline(f"{y.symbol} = part * {cols} + {lanes}")
        if y.masked:
            inside = f"{y.symbol} < {y.extent}"
            if cols != self.plan.lanes:
                inside = f"({inside}) & (tl.arange(0, R0_BLOCK)[None, :] < {cols})"
            self.code.writeline(f"{y.mask} = {inside}")

    def anchor(self) -> None:
        """A load that is always masked off, in the layout of the tiles. A reduction that depends on no load
        over columns would otherwise have the layout of its mailbox store, with a row per thread."""
        moves = (s for s in self.nest.body if isinstance(s, Load | Store))
        pointer = self.writer.pointer(max(moves, key=lambda s: len(self.writer.varies(s))).buffer)
        self.code.writeline(f"anchor = tl.load({pointer} + {self.y.symbol}, {PROGRAM} < 0, other=0)")

    def rows(self, late: bool) -> None:
        """The rows of the tile that a phase works on in this iteration."""
        tile = self.tile_of() if late else "tile"
        x = self.x
        if self.alignment is None:
            self.code.writeline(f"{x.symbol} = {self.writer.tile_rows(f'({tile})')}")
        else:
            self.writer.shifted_rows(tile)
        before = f"({x.symbol} >= 0) & " if late else ""
        self.code.writeline(f"{x.mask} = {before}({x.symbol} < {x.extent})")

    def tile_of(self, later: int = 0) -> str:
        """Triton text: the tile that the second phase works on in this iteration, or so many later."""
        late = (self.plan.lag - later) * self.step
        return f"tile - {late}" if late else "tile"

    def record(self, group: int, row: int, tile: str) -> str:
        """Triton text: the address of the record of a row of a tile, clamped to the existing tiles."""
        tile = f"tl.maximum(tl.minimum({tile}, tiles - 1), 0)"
        row_of = f"({self.writer.to_index_width(tile, MAILBOX)} * XBLOCK + {row})"
        if self.alignment is not None:
            row_of = f"({row_of} * {self.alignment.period} + first)"
        slots = slots_of(self.plan.group)
        first = self.exchanged.index(self.groups[group][0])
        return f"{self.writer.pointer(MAILBOX)} + ({row_of} * {len(self.exchanged)} + {first}) * {slots}"

    # The loop.

    def main_loop(self) -> None:
        lag, code, carried_values = self.plan.lag, self.code, self.writer.carried_values
        for carry in carried_values.values():
            for i in range(1, lag + 1):
                code.writeline(f"{carry.name}_{i} = tl.zeros([{carry.shape}], {carry.triton_dtype})")
        if self.exchanged:
            code.writeline("missed1 = tl.full([], 0, tl.int32)")
        for group in range(len(self.groups)):
            for row in range(self.plan.tile_rows):
                code.writeline(f"{_seen(group, row)} = " + self.peek(group, row, "begin"))
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
                self.totals()
                self.rows(late=True)
                # Masks, no branch: H200, RMSNorm 16384x16384 bf16: 76% of the limit with a branch, 91% so.
                self.run(self.second)
            for value, carry in carried_values.items():
                for i in range(lag, 1, -1):
                    moved = carried(f"{carry.name}_{i - 1}", carry.dtype.itemsize * 8, carry.triton_dtype)
                    code.writeline(f"{carry.name}_{i} = {moved}")
                code.writeline(f"{carry.name}_1 = {self.newest(value, carry)}")

    def loads(self, phase: Sequence[Statement]) -> None:
        for stmt in phase:
            if isinstance(stmt, Load):
                self.writer.statement(stmt)

    def run(self, phase: Sequence[Statement]) -> None:
        for stmt in phase:
            if isinstance(stmt, Carry):
                self.carry(stmt)
            elif not isinstance(stmt, Load):
                self.writer.statement(stmt)

    def publish(self, reduce: Reduce) -> None:
        value = word(str(self.writer.ops.variables[reduce.name]))
        slots = slots_of(self.plan.group)
        at = f"({self.x.symbol} * {len(self.exchanged)} + {self.exchanged.index(reduce)}) * {slots} + part"
        inside = f"{self.x.symbol} < tiles * {self.plan.tile_rows * self.plan.period}"
        self.code.writeline(f"tl.store({self.writer.pointer(MAILBOX)} + ({at}), {value}, ({inside}))")

    def totals(self) -> None:
        """Wait for the totals that the second phase needs, and issue the reads for its next tile."""
        code, tile, rows = self.code, self.tile_of(), range(self.plan.tile_rows)
        code.writeline(f"ready1 = ({tile} >= 0) & ({tile} < tiles)")
        code.writeline(f"polls = tl.where({MINE} & ready1 & (missed1 == 0), {POLLS}, 0)")
        for g, group in enumerate(self.groups):
            record = Record(group[0].kind, len(group), self.plan.group)
            for row in rows:
                total = f"total1_{g}_{row}"
                awaited = record.total(self.record(g, row, tile), _seen(g, row), "polls")
                code.writeline(f"{total} = {awaited}")
                code.writeline(f"missed1 = missed1 | (ready1 & ({total}[0] == 0)).to(tl.int32)")
            for i, reduce in enumerate(group):
                values = [f"total1_{g}_{row}[{i + 1}]" for row in rows]
                self.writer.ops.define(_column(values), reduce.dtype, reduce.name)
            for row in rows:
                code.writeline(f"{_seen(g, row)} = " + self.peek(g, row, self.tile_of(later=1)))

    def peek(self, g: int, row: int, tile: str) -> str:
        group = self.groups[g]
        return Record(group[0].kind, len(group), self.plan.group).peek(self.record(g, row, tile))

    # Values that are carried from the first phase to the second.

    def _carried_values(self) -> dict[str, _CarriedValue]:
        """The values that are carried, by their names."""
        names = [s.value.name for s in self.nest.body if isinstance(s, Carry)]
        loads = {s.name: s for s in self.nest.body if isinstance(s, Load)}
        return {name: self.carried_value(f"held{i}", loads[name]) for i, name in enumerate(names)}

    def carried_value(self, name: str, value: Load) -> _CarriedValue:
        varies = self.writer.deps[value.name]
        if len(varies) == 2:  # few values per row gain nothing
            stored_dtype = self.program.buffer(value.buffer).dtype
            if stored_dtype in _CARRIED_RAW:
                return _CarriedValue(
                    name, stored_dtype, _CARRIED_RAW[stored_dtype], self.writer.shape(varies), raw=True
                )
        dtype = torch.int8 if value.dtype == torch.bool else value.dtype
        if len(varies) < 2 and not dtype.is_floating_point and dtype.itemsize < 4:
            dtype = torch.int32  # a tile has too few rows to fill a register with their elements
        return _CarriedValue(name, dtype, triton_compute_type(dtype), self.writer.shape(varies))

    def newest(self, value: str, carried_value: _CarriedValue) -> str:
        """Triton text: a value of this iteration, as it is carried."""
        if carried_value.raw:
            return f"{carried_value.name}_raw"
        variable = self.writer.ops.variables[value]
        return (
            str(variable)
            if carried_value.dtype == variable.dtype
            else f"{variable}.to({carried_value.triton_dtype})"
        )

    def carry(self, stmt: Carry) -> None:
        carried_value = self.writer.carried_values[stmt.value.name]
        text = f"{carried_value.name}_{self.plan.lag}"
        if stmt.dtype == torch.bool:
            text = f"({text} != 0)"
        elif carried_value.dtype != stmt.dtype:
            text += f".to({triton_compute_type(stmt.dtype)})"
        self.writer.ops.define(text, stmt.dtype, stmt.name)


class _CooperativeWriter(Writer):
    """Loads that are carried are also kept without a cast. Column vectors and accumulators have one row: a
    thread has all rows of a tile. In a kernel with exchanges, results are stored only in turns for the
    program's own part."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.carried_values: dict[str, _CarriedValue] = {}  # by the names of the values
        # Accumulations that add zero where there is no row, if there are such places at all.
        self.idle = without_effect(self.nest, self.dims[0].symbol)
        self.floating = floating(self.nest, self.dims[1].symbol)

    def reduce(self, stmt: Reduce) -> None:
        value = self.ops.variables[stmt.value.name]
        if stmt.name in self.floating:
            anchored = f"tl.where(anchor == 0, {value}, {filler(stmt.kind, stmt.dtype)})"
            self.ops.variables[stmt.value.name] = anchored
        super().reduce(stmt)
        self.ops.variables[stmt.value.name] = value

    def stored_where(self, mask: str) -> str:
        if not any(isinstance(s, Exchange) for s in self.nest.body):
            return mask
        return f"{mask} & {MINE}" if mask else MINE

    def loaded(self, stmt: Load, text: str) -> str:
        if stmt.name not in self.carried_values or not self.carried_values[stmt.name].raw:
            return text
        name = f"{self.carried_values[stmt.name].name}_raw"
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
