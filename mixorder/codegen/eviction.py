"""Which loads let the caches evict their data first, or last."""

from __future__ import annotations

from collections.abc import Collection

import sympy

from ..ir.program import AxisClass, Load, LoopProgram, Nest


class Eviction:
    """The eviction policies of a nest's loads. `tiled`: the symbols of the tile's two dims. `keeps`: nothing
    is evicted first, by the plan's order."""

    def __init__(
        self, program: LoopProgram, nest: Nest, tiled: Collection[sympy.Symbol], keeps: bool
    ) -> None:
        self.program, self.nest, self.tiled, self.keeps = program, nest, frozenset(tiled), keeps
        self.numel = sympy.prod(a.size for a in nest.loops if a.kind is not AxisClass.SPLIT)

    def of(self, stmt: Load) -> str:
        """The argument of a load. Full tiles are streamed: evicting them first keeps others in cache.

        The others are small tensors, what a gather reads again at another place of the row, a table that many
        rows share, and what another kernel reads later.
        """
        kept = self.keeps or self.program.buffer(stmt.buffer).read_again
        return ", eviction_policy='evict_first'" if self._is_read_once(stmt) and not kept else ""

    def _is_read_once(self, stmt: Load) -> bool:
        reads = sum(isinstance(s, Load) and s.buffer == stmt.buffer for s in self.nest.statements)
        full = sympy.expand(self.program.buffer(stmt.buffer).numel - self.numel).is_nonnegative
        return len(self.tiled & stmt.index.free_symbols) == 2 and reads == 1 and bool(full)
