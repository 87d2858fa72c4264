"""The schedules near a given one that may take its place. From plain numbers, without timing.

A candidate may use as much of a multiprocessor as the given schedule does, or as the device has. Registers
are estimated (`limits.registers_of`) and shared memory is counted, so that schedules that cannot run well
are not compiled. The differing fields tell which part of a schedule changed: the tile, the number of
programs, the chunks of a row, or the finalisation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from ..ir.hardware import MAX_REGISTERS, MAX_WARPS, WARP
from .device import DeviceInfo
from .facts import Facts
from .finalisation import final_neighbours
from .limits import registers_of
from .persistent import even, layouts
from .schedule import Schedule, Tile, is_power_of_2, next_power_of_2, shifted
from .space import MOST_STAGES, combined_from, differing

PER_THREAD = (4, 32)  # elements of a tile per thread, at least and at most
FINAL_PER_THREAD = 128  # partials that a thread of the finalisation holds
PROGRAMS_PER_SM = (1, 2, 4)
MORE_PER_SM = (4, 8)
PARTS = (("tile",), ("num_splits",), ("r0_block", "chunks", "tile"), ("final_block", "final_warps"))


@dataclasses.dataclass(frozen=True)
class PersistentSpace:
    """The schedules that may take the place of `start`. `pinned`: the number of programs is the user's."""

    facts: Facts
    device: DeviceInfo
    start: Schedule
    pinned: bool = False

    def near(self, schedule: Schedule) -> tuple[Schedule, ...]:
        """The other legal schedules that differ from one in one of `PARTS`, each once."""
        found = dict.fromkeys(
            [
                *self._tiles(schedule),
                *self._programs(schedule),
                *self._layouts(schedule),
                *final_neighbours(schedule),
            ]
        )
        return tuple(s for s in found if s != schedule and self.legal(s))

    def combined(self, times: Mapping[Schedule, float], around: Schedule) -> Schedule:
        return combined_from(self, PARTS, times, around)

    def legal(self, schedule: Schedule) -> bool:
        """Whether the kernels are correct and fit the device."""
        varied = {name for part in PARTS for name in part}
        if not differing(schedule, self.start) <= varied:
            return False
        if schedule.num_splits % schedule.period:
            return False
        if (schedule.r0_block, schedule.chunks) not in layouts(self.facts):
            return False
        return self._in_range(schedule) and self._fits(schedule)

    def _in_range(self, schedule: Schedule) -> bool:
        tile = schedule.tile
        powers = (tile.xblock, tile.num_warps, schedule.final_block, schedule.final_warps)
        if not all(map(is_power_of_2, powers)) or not 1 <= tile.num_stages <= MOST_STAGES:
            return False
        if self.pinned:
            splits_are_right = schedule.num_splits == self.start.num_splits
        else:
            splits_are_right = 1 <= schedule.num_splits <= max(self._count(tile), self.start.num_splits)
        return (
            splits_are_right
            and max(tile.num_warps, schedule.final_warps) * self.device.warp_size <= MAX_WARPS * WARP
            and (tile.xblock < 2 * self.facts.rows or tile.xblock <= self.start.tile.xblock)
            and schedule.final_block <= max(self.start.r0_block, self.start.final_block)
        )

    def _fits(self, schedule: Schedule) -> bool:
        per_thread, first = self._per_thread(schedule), self._per_thread(self.start)
        low, high = PER_THREAD
        if not min(low, first) <= per_thread <= max(high, first):
            return False
        final = max(FINAL_PER_THREAD, self._final_per_thread(self.start))
        if self._final_per_thread(schedule) > final:
            return False
        registers, shared = self.device.registers, self.device.shared_memory
        limits = (MAX_REGISTERS, registers, shared, registers, shared)
        return all(
            used <= max(limit, allowed)
            for used, limit, allowed in zip(self._use(schedule), limits, self._use(self.start), strict=True)
        )

    def _use(self, schedule: Schedule) -> tuple[int, ...]:
        """Registers of a thread; registers and shared memory of a program, and of all on one multiprocessor.

        A program that is alone there is counted only once: it gets all registers, and spills the rest.
        """
        tile, per_thread = schedule.tile, self._per_thread(schedule)
        estimated = registers_of(self.facts, per_thread, schedule.chunks)
        registers = max(estimated, schedule.max_registers)  # ptxas takes all that a limit allows
        of_program = registers * tile.num_warps * self.device.warp_size
        staged = tile.xblock * schedule.r0_block * max(self.facts.load_bytes, self.facts.staged_bytes)
        shared = staged * (tile.num_stages - 1)
        per_sm = 1 if self.pinned else -(-schedule.num_splits * self.facts.batch // self.device.num_sm)
        together = per_sm if per_sm > 1 else 0
        return registers, of_program, shared, together * of_program, together * shared

    def _per_thread(self, schedule: Schedule) -> int:
        threads = schedule.tile.num_warps * self.device.warp_size
        return max(1, schedule.tile.xblock * schedule.r0_block // threads)

    def _final_per_thread(self, schedule: Schedule) -> int:
        partials = next_power_of_2(schedule.num_splits) * schedule.final_block
        return partials // (schedule.final_warps * self.device.warp_size)

    def _count(self, tile: Tile) -> int:
        return max(1, -(-self.facts.rows // tile.xblock))

    def _tiles(self, schedule: Schedule) -> Iterator[Schedule]:
        """Half or twice the rows or the warps or both, or one stage more or less."""
        tile = schedule.tile
        for rows, warps in ((0, 1), (0, -1), (1, 1), (-1, -1), (1, 0), (-1, 0)):
            yield self._with_tile(
                schedule,
                dataclasses.replace(
                    tile, xblock=shifted(tile.xblock, rows), num_warps=shifted(tile.num_warps, warps)
                ),
            )
        for stages in (tile.num_stages + 1, tile.num_stages - 1):
            yield self._with_tile(schedule, dataclasses.replace(tile, num_stages=stages))

    def _with_tile(self, schedule: Schedule, tile: Tile) -> Schedule:
        """The schedule with another tile, and with no more programs than are resident at once then."""
        moved = dataclasses.replace(schedule, tile=tile)
        if self.pinned or min(tile.xblock, tile.num_warps) < 1:
            return moved
        moved = dataclasses.replace(moved, num_splits=min(schedule.num_splits, self._count(tile)))
        for per_sm in (4, 3, 2, 1):
            at_once = max(1, per_sm * self.device.num_sm // self.facts.batch)
            if self._fits(moved):
                break
            moved = dataclasses.replace(moved, num_splits=min(moved.num_splits, at_once))
        return moved

    def _layouts(self, schedule: Schedule) -> Iterator[Schedule]:
        """Other layouts of a row. Wider chunks need more warps for accesses as wide as before."""
        warps = schedule.tile.num_warps
        for lanes, chunks in layouts(self.facts):
            for num_warps in (warps, 2 * warps, warps // 2):
                tile = dataclasses.replace(schedule.tile, num_warps=num_warps)
                yield dataclasses.replace(schedule, tile=tile, r0_block=lanes, chunks=chunks)

    def _programs(self, schedule: Schedule) -> Iterator[Schedule]:
        batch, count = self.facts.batch, self._count(schedule.tile)
        for per_sm in () if self.pinned else PROGRAMS_PER_SM:
            at_once = max(1, per_sm * self.device.num_sm // batch)
            yield dataclasses.replace(schedule, num_splits=even(count, min(count, at_once)))
        # Some indices of the batch have one more. H200, 4096 rows of 49 at 147 indices, bf16: 3 programs each
        # 219 us, 4 155, 8 140.
        for per_sm in MORE_PER_SM if batch > 1 and not self.pinned else ():
            yield dataclasses.replace(
                schedule, num_splits=min(count, -(-per_sm * self.device.num_sm // batch))
            )
