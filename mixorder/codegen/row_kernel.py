"""Write a main kernel: programs loop over tiles of their rows, and leave a partial result of each column."""

from __future__ import annotations

from collections.abc import Sequence

from ..inductor.printing import texpr
from ..inductor.symbols import INT32_LIMIT
from ..ir.program import SPLIT_SYMBOL, LoopProgram, PartialAccumulate
from ..schedule.plan import Plan
from .programmatic_launch import released
from .source import KernelSource, LaunchConfig
from .writer import NEAR, WHOLE, TileDim, Writer


class RowKernel(Writer):
    """Writes the kernel of a program's first nest. `masked`: rows have a mask, also where a tile never ends
    beyond the last one (`ragged`). A program begins with the tile `first_tile`, of `tiles` in all; its others
    are `step` apart. Where rows do not all start at a boundary, they are every `period`-th one."""

    def __init__(
        self, program: LoopProgram, plan: Plan, columns: Sequence[TileDim], masked: bool = False
    ) -> None:
        row, self.plan = program.tile_axes[0], plan
        self.ragged = row.size % (plan.tile_rows * plan.period) != 0
        extent = texpr(row.size) if row.size.is_number else "rows"
        rows = TileDim(row.symbol, extent, "XBLOCK", masked or self.ragged)
        super().__init__(program, program.nests[0], (rows, *columns), plan.splits)
        self.accumulations = [s for s in self.nest.body if isinstance(s, PartialAccumulate)]
        self.first_tile, self.step = str(SPLIT_SYMBOL), plan.splits // plan.period
        if plan.period > 1:
            self.alignment = program.alignment
            self.first_tile += f" // {plan.period}"
            extent = f"tl.cdiv({extent}, {plan.period})"
        self.tiles = f"tl.cdiv({extent}, XBLOCK)"

    def begin_main(self) -> None:
        """Begin the kernel, which has the rows of a tile and the stages as parameters."""
        row = self.program.tile_axes[0]
        self.begin_kernel(self.wide, "XBLOCK: tl.constexpr", "NUM_STAGES: tl.constexpr")
        self.code.writeline(f"R0_BLOCK: tl.constexpr = {self.plan.chunk}")
        if not row.size.is_number:
            self.code.writeline(f"rows = {texpr(row.size)}")

    def turn(self) -> None:
        """All rows of the program's columns, and the store of its partials, or what follows from them."""
        after = self.nest.after
        self.preamble()
        for partial in self.accumulations:
            self.empty(partial)
        self.loop()
        if self.plan.launch.dependent and not after:
            self.release()
        for partial in () if after else self.accumulations:
            self.store_partial(partial)
        for stmt in after:
            self.statement(stmt)

    def preamble(self) -> None:
        for stmt in self.nest.preamble:
            self.statement(stmt)

    def loop(self) -> None:
        """The loop over the program's tiles."""
        raise NotImplementedError

    def finish_main(self, label: str) -> KernelSource:
        launch = self.plan.launch
        constants = (("XBLOCK", self.plan.tile_rows), ("NUM_STAGES", launch.num_stages))
        config = LaunchConfig(constants, launch.num_warps, launch.num_stages)
        grid = self.batch * self.plan.splits * self.plan.group
        return self.source(f"triton_mixorder_{label}", grid, config, registers=launch.max_registers)

    def release(self) -> None:
        """Let the finalisation be set up; what is stored from here on depends on it."""
        number = str(SPLIT_SYMBOL)
        after = released(f"{number}.to(tl.int32)" if number in self.wide else number)
        self.code.writeline(f"{number} = {self.to_index_width(after, number)}")

    def tile_rows(self, tile: str) -> str:
        """The rows of a tile; in 64 bits where an offset may need them."""
        width = "tl.full([], XBLOCK, tl.int64)" if str(self.dims[0].symbol) in self.wide else "XBLOCK"
        return f"{tile} * {width} + tl.arange(0, XBLOCK)[:, None]"

    def begin_tile(self, tile: str, inside: str) -> None:
        """The rows of a tile, and their mask. Of rows that are shifted, the offsets at which their columns
        begin."""
        x, alignment = self.dims[0], self.alignment
        if alignment is None:
            self.code.writeline(f"{x.symbol} = {self.tile_rows(tile)}")
        else:
            self.code.writeline(f"{x.symbol} = ({self.tile_rows(f'({tile})')}) * {alignment.period} + first")
            n = alignment.elements  # Triton sees a multiple of it (a hint is lost in a tile of one row)
            self.code.writeline(f"start = ({x.symbol} * {alignment.stride} - shift) // {n} * {n}")
        if x.masked:
            self.code.writeline(f"{x.mask} = {inside}")

    # Rows that do not start at a boundary of wide accesses.

    def shift(self) -> None:
        """The offset of this program's rows from a boundary: one, because they are `period` apart."""
        assert self.alignment is not None
        period, stride = self.alignment.period, self.alignment.stride
        first = f"{SPLIT_SYMBOL} % {period}"
        first = f"({first}).to(tl.int64)" if stride * period >= INT32_LIMIT else first
        self.code.writeline(f"first = {first}")
        self.code.writeline(f"shift = (first * {stride}) % {self.alignment.elements}")

    def shifted_columns(self, start: str, end: str) -> None:
        """Columns `start` to `end`, shifted so that lanes begin at a boundary. Masks for wide accesses:
        `whole` where all of its columns are in this range, `near` where some are."""
        assert self.alignment is not None
        y, n = self.dims[1], self.alignment.elements
        self.code.writeline(f"lane_offset = {start} + tl.arange(0, R0_BLOCK)[None, :]")
        self.code.writeline(f"{y.symbol} = {self.to_index_width('lane_offset - shift', y.symbol)}")
        self.code.writeline(f"{y.mask} = ({y.symbol} >= {start}) & ({y.symbol} < {end})")
        group = f"({start} - shift + tl.arange(0, R0_BLOCK)[None, :] // {n} * {n})"
        self.code.writeline(f"{NEAR} = {group} < {end}")
        self.code.writeline(f"{WHOLE} = ({group} >= {start}) & ({group} <= {end} - {n})")
