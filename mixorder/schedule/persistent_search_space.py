"""The plans near a given one that may take its place. From plain numbers, without timing.

A candidate may use as much of a multiprocessor as the given plan does, or as the device has. Registers
are estimated (`limits.registers_of`) and shared memory is counted, so that plans that cannot run well
are not compiled. The differing fields tell which group of a plan's fields changed: the tile, the number of
programs, the chunks of a row, or the finalisation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..ir.hardware import MAX_REGISTERS
from .facts import RowFacts
from .finalisation import final_neighbours
from .limits import MAX_STAGES, registers_of
from .persistent import layouts
from .plan import Plan, is_power_of_2, next_power_of_2, shifted
from .search_space import SearchSpace

_TILE = ("tile_rows", "num_warps", "num_stages")


@dataclasses.dataclass(frozen=True)
class PersistentSearchSpace(SearchSpace):
    """The plans near one whose programs share no row. `pinned`: the number of programs is the user's."""

    field_groups = (_TILE, ("splits",), ("chunk", "chunks", *_TILE), ("block", "warps"))

    facts: RowFacts
    pinned: bool = False

    def around(self, plan: Plan) -> Iterator[Plan]:
        yield from self._tiles(plan)
        yield from self._programs(plan)
        yield from self._layouts(plan)
        yield from final_neighbours(plan)

    def divided(self, plan: Plan) -> tuple[Plan, ...]:
        """With twice the programs: of half the rows and warps, as they are, or of half the warps."""
        tried = []
        for by, warps in ((-1, -1), (0, 0), (0, -1)):
            if (rows := shifted(plan.tile_rows, by)) and not self.pinned:
                splits = min(2 * plan.splits, self._count(rows))
                num_warps = shifted(plan.launch.num_warps, warps)
                tried.append(plan.changed(tile_rows=rows, num_warps=num_warps, splits=splits))
        return tuple(s for s in tried if s.splits > plan.splits and self.fits(s))

    def fits(self, plan: Plan) -> bool:
        rows, launch, second, start = plan.tile_rows, plan.launch, plan.second, self.start
        most = max(self._count(rows), start.splits) if rows > 0 else 0
        return (
            (plan.splits == start.splits if self.pinned else 1 <= plan.splits <= most)
            and plan.splits % plan.period == 0
            and (plan.lanes, plan.chunks) in layouts(self.facts)
            and all(map(is_power_of_2, (rows, launch.num_warps, second.block, second.warps)))
            and max(launch.num_warps, second.warps) <= self.device.max_warps
            and 1 <= launch.num_stages <= MAX_STAGES
            and (rows < 2 * self.facts.rows or rows <= start.tile_rows)
            and second.block <= max(start.lanes, start.second.block)
            and self._final_per_thread(plan) <= max(128, self._final_per_thread(start))
            and self._fits(plan)
        )

    def _fits(self, plan: Plan) -> bool:
        per_thread, first = self._per_thread(plan), self._per_thread(self.start)
        low, high = 4, 32  # elements of a thread
        registers, shared = self.device.registers, self.device.shared_memory
        limits = (MAX_REGISTERS, registers, shared, registers, shared)
        used = zip(self._use(plan), limits, self._use(self.start), strict=True)
        return min(low, first) <= per_thread <= max(high, first) and all(
            needed <= max(limit, allowed) for needed, limit, allowed in used
        )

    def _use(self, plan: Plan) -> tuple[int, ...]:
        """Registers of a thread; registers and shared memory of a program, and of all on one multiprocessor.

        A program that is alone there is counted only once: it gets all registers, and spills the rest.
        """
        launch, per_thread = plan.launch, self._per_thread(plan)
        estimated = registers_of(self.facts, per_thread, plan.chunks)
        registers = max(estimated, launch.max_registers)  # ptxas takes all that a limit allows
        of_program = registers * launch.num_warps * self.device.warp_size
        staged = plan.tile_rows * plan.lanes * self.facts.prefetched_bytes
        shared = staged * (launch.num_stages - 1)
        per_sm = 1 if self.pinned else -(-plan.splits * self.facts.batch // self.device.num_sm)
        together = per_sm if per_sm > 1 else 0
        return registers, of_program, shared, together * of_program, together * shared

    def _per_thread(self, plan: Plan) -> int:
        threads = plan.launch.num_warps * self.device.warp_size
        return max(1, plan.tile_rows * plan.lanes // threads)

    def _final_per_thread(self, plan: Plan) -> int:
        partials = next_power_of_2(plan.splits) * plan.second.block
        return partials // (plan.second.warps * self.device.warp_size)

    def _count(self, rows: int) -> int:
        """Tiles of so many rows."""
        return max(1, -(-self.facts.rows // rows))

    def _tiles(self, plan: Plan) -> Iterator[Plan]:
        """Half or twice the rows or the warps or both, or one stage more or less."""
        rows, launch = plan.tile_rows, plan.launch
        for by, warps in ((0, 1), (0, -1), (1, 1), (-1, -1), (1, 0), (-1, 0)):
            yield self._with_tile(
                plan, tile_rows=shifted(rows, by), num_warps=shifted(launch.num_warps, warps)
            )
        for stages in (launch.num_stages + 1, launch.num_stages - 1):
            yield self._with_tile(plan, num_stages=stages)

    def _with_tile(self, plan: Plan, **tile: int) -> Plan:
        """The plan with another tile, and with no more programs than are resident at once then."""
        moved = plan.changed(**tile)
        if self.pinned or min(moved.tile_rows, moved.launch.num_warps) < 1:
            return moved
        moved = moved.changed(splits=min(plan.splits, self._count(moved.tile_rows)))
        for per_sm in (4, 3, 2, 1):
            at_once = max(1, per_sm * self.device.num_sm // self.facts.batch)
            if self._fits(moved):
                break
            moved = moved.changed(splits=min(moved.splits, at_once))
        return moved

    def _layouts(self, plan: Plan) -> Iterator[Plan]:
        """Other layouts of a row. Wider chunks need more warps for accesses as wide as before."""
        warps = plan.launch.num_warps
        for lanes, chunks in layouts(self.facts):
            for num_warps in (warps, 2 * warps, warps // 2):
                yield plan.changed(num_warps=num_warps, chunk=lanes // chunks, chunks=chunks)

    def _programs(self, plan: Plan) -> Iterator[Plan]:
        batch, count = self.facts.batch, self._count(plan.tile_rows)
        for per_sm in () if self.pinned else (1, 2, 4):
            at_once = max(1, per_sm * self.device.num_sm // batch)
            yield plan.changed(splits=min(count, at_once))
