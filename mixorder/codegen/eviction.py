"""Which loads let the caches evict their data first, or last."""

from __future__ import annotations

import functools
from collections.abc import Collection

import sympy

from ..ir.program import AxisClass, BufferRole, Load, LoopProgram, Nest

# Rows of a batch whose bytes are no multiple of this share sectors of memory with those of other programs.
# From so many bytes of an element that are loaded, nothing is evicted first: H100, 4096 rows of 49 at 196
# indices, three tensors in bf16, 290 us with it and 198 without; at 147 indices 176 and 136; 1024 at 294 90
# and 74, two tensors in fp32 85 and 72. Two in bf16: 47 and 46, 63 and 64, 75 and 81; one tile with all rows
# 34 and 37.
SHARED_ROWS, SHARED_BYTES = 8, 6


class Eviction:
    """The eviction policies of a nest's loads. `tiled`: the symbols of the tile's two dims; `columns`: the
    extent of the last one. `several`: a program has several tiles."""

    def __init__(
        self,
        program: LoopProgram,
        nest: Nest,
        tiled: Collection[sympy.Symbol],
        columns: str,
        several: bool,
    ) -> None:
        self.program, self.nest, self.tiled = program, nest, frozenset(tiled)
        self.columns, self.several = sympy.sympify(columns), several
        self.numel = sympy.prod(a.size for a in nest.loops if a.kind is not AxisClass.SPLIT)

    def of(self, stmt: Load) -> str:
        """The argument of a load. Full tiles are streamed: evicting them first keeps others in cache.

        The others are small tensors, what a gather reads again at another place of the row, a table that many
        rows share, and what another kernel reads later.
        """
        kept = self.program.buffer(stmt.buffer).read_again or self._shares_sectors
        return ", eviction_policy='evict_first'" if self._is_read_once(stmt) and not kept else ""

    @functools.cached_property
    def _shares_sectors(self) -> bool:
        """Whether much of what is loaded lies in sectors that several programs load, in a loop over tiles."""
        batch = self.program.axis(AxisClass.BATCH)
        if batch is None or not self.several:
            return False
        shared = 0
        for stmt in (s for s in self.nest.body if isinstance(s, Load) and self._is_read_once(s)):
            buffer = self.program.buffer(stmt.buffer)
            fills = self.columns * buffer.dtype.itemsize % SHARED_ROWS == 0
            if buffer.role is BufferRole.INPUT and batch.symbol in stmt.index.free_symbols and not fills:
                shared += buffer.dtype.itemsize
        return shared >= SHARED_BYTES

    def _is_read_once(self, stmt: Load) -> bool:
        reads = sum(isinstance(s, Load) and s.buffer == stmt.buffer for s in self.nest.statements)
        full = sympy.expand(self.program.buffer(stmt.buffer).numel - self.numel).is_nonnegative
        return len(self.tiled & stmt.index.free_symbols) == 2 and reads == 1 and bool(full)
