"""Write the main kernel of strategies whose programs share no row: persistent, blocks of columns.

A program keeps one row tile at a time, in one or several chunks of columns.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.hardware import ACCESS, WARP
from ..ir.program import SPLIT_SYMBOL, Axis, LoopProgram
from ..schedule.plan import Plan
from .prefetch import Prefetch
from .row_kernel import RowKernel
from .source import KernelSource
from .writer import TileDim


def persistent_kernel(program: LoopProgram, plan: Plan, label: str) -> KernelSource:
    """The kernel of the first nest of a merged program."""
    return _PersistentKernel(program, plan).written(label)


class _PersistentKernel(RowKernel):
    def __init__(self, program: LoopProgram, plan: Plan) -> None:
        row, last = program.tile_axes
        super().__init__(program, plan, tuple(_columns(last, plan)))
        self.spread_columns = not row.size.is_number or int(row.size) > plan.tile_rows * plan.splits
        self.keeps = self.spread_columns and plan.order.keeps
        # Triton gives a thread `ACCESS` bytes of the narrowest tensor. Where all threads lie along a row, a
        # thread then has all rows of a tile.
        moved = self.nest.accesses(program.tile_axes)
        item = min((program.buffer(s.buffer).dtype.itemsize for s in moved), default=1)
        threads = plan.launch.num_warps * WARP
        self.has_rows = plan.tile_rows > 1 and threads * ACCESS <= plan.chunk * item

    def written(self, label: str) -> KernelSource:
        self.begin_main()
        self.programs(str(SPLIT_SYMBOL))
        if self.alignment is not None:
            self.shift()
            self.shifted_columns("0", self.dims[1].extent)
        else:
            for y, *_ in self.columns:
                lanes = self.to_index_width("tl.arange(0, R0_BLOCK)[None, :]", y.symbol)
                self.index(y, f"{y.start} + " * (y.start > 0) + lanes)
        self.turn()
        return self.finish_main(label)

    def loop(self) -> None:
        x, prefetch = self.dims[0], Prefetch(self)
        prefetch.fetch(self.first_tile)
        tiles = f"{self.first_tile}, {self.tiles}, {self.step}"
        self.code.writeline(f"for tile in tl.range({tiles}, num_stages=NUM_STAGES):")
        with self.code.indent():
            self.begin_tile("tile", f"{x.symbol} < {x.extent}")
            prefetch.take()
            prefetch.fetch(f"(tile + {self.step})")
            for stmt in self.nest.body:
                if stmt not in prefetch.loads:
                    self.statement(stmt)


def _columns(last: Axis, plan: Plan) -> Iterator[TileDim]:
    """The chunks that hold a row; the last of them may have lanes beyond its end."""
    for i, start in enumerate(range(0, plan.lanes, plan.chunk)):
        masked = start + plan.chunk > last.size or plan.period > 1
        yield TileDim(last.symbol, str(last.size), "R0_BLOCK", masked, i if plan.chunks > 1 else None, start)
