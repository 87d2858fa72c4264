"""Prefetch per-row values for the next iteration of the loop, where Triton would not.

Triton prefetches what asynchronous copies can move, four bytes at least. Statistics in 16 bits would be
loaded only when they are needed. With one program per multiprocessor, nothing hides that latency.
"""

from __future__ import annotations

import sympy

from ..ir.hardware import ASYNC_BYTES
from ..ir.program import Load
from .row_kernel import RowKernel


class Prefetch:
    """The loads of a main kernel's loop that are issued one iteration before their values are used."""

    def __init__(self, writer: RowKernel) -> None:
        self.writer, self.rows = writer, writer.dims[0]
        self.loads = tuple(s for s in writer.nest.body if isinstance(s, Load) and self.is_late(s))

    def is_late(self, load: Load) -> bool:
        item = self.writer.program.buffer(load.buffer).dtype.itemsize
        narrow = item < ASYNC_BYTES and load.predicate is None
        return narrow and self.writer.varies(load) == {self.rows.symbol} and self.writer.alignment is None

    def fetch(self, tile: str) -> None:
        """Load the values of a tile, which may be beyond the last one."""
        if not self.loads:
            return
        writer, rows = self.writer, self.rows
        name = f"{rows.symbol}_ahead"
        writer.code.writeline(f"{name} = {writer.tile_rows(tile)}")
        names = {rows.symbol: sympy.Symbol(name, integer=True, nonnegative=True)}
        for i, load in enumerate(self.loads):
            pointer = f"{writer.pointer(load.buffer)} + ({writer.ops.offset(load.index.xreplace(names))})"
            writer.code.writeline(f"ahead{i} = tl.load({pointer}, {name} < {rows.extent}, other=0)")

    def take(self) -> None:
        """Define the values of this iteration as those that were fetched last."""
        for i, load in enumerate(self.loads):
            self.writer.ops.define(self.writer.cast(load, f"ahead{i}"), load.dtype, load.name)
