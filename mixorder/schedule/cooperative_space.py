"""The schedules near a given cooperative one. From plain numbers, without timing.

The columns of a part and the rows of a tile determine the form of the loops, and are not varied here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..ir.hardware import MAX_WARPS
from .cooperative import SPILLED_REGISTERS, registers_of
from .device import DeviceInfo
from .facts import Facts
from .finalisation import final_neighbours
from .schedule import Schedule, is_power_of_2
from .space import MOST_STAGES, combined_from, differing

MAX_DEPTH = 4
PARTS = (("depth",), ("tile",), ("final_block", "final_warps"))


@dataclasses.dataclass(frozen=True)
class CooperativeSpace:
    """The schedules that may take the place of `start`."""

    facts: Facts
    device: DeviceInfo
    start: Schedule

    def near(self, schedule: Schedule) -> tuple[Schedule, ...]:
        """The other legal schedules that differ from one in one of `PARTS`, each once."""
        tile = schedule.tile
        found = [dataclasses.replace(schedule, depth=schedule.depth + by) for by in (1, -1)]
        for by in (1, -1):
            stages = dataclasses.replace(tile, num_stages=tile.num_stages + by)
            found.append(dataclasses.replace(schedule, tile=stages))
        found += final_neighbours(schedule)
        return tuple(s for s in dict.fromkeys(found) if s != schedule and self.legal(s))

    def combined(self, times: Mapping[Schedule, float], around: Schedule) -> Schedule:
        return combined_from(self, PARTS, times, around)

    def legal(self, schedule: Schedule) -> bool:
        """Whether the kernels are correct and fit the device."""
        tile, first = schedule.tile, self.start.tile
        if not differing(schedule, self.start) <= {name for part in PARTS for name in part}:
            return False
        if (tile.xblock, tile.num_warps) != (first.xblock, first.num_warps):
            return False
        programs = -(-schedule.num_splits * schedule.parts // self.device.num_sm)
        staged = programs * tile.xblock * schedule.r0_block * self.facts.staged_bytes
        registers = registers_of(self.facts, tile, schedule.r0_block, schedule.depth)
        return (
            1 <= schedule.depth <= MAX_DEPTH
            and 1 <= tile.num_stages <= MOST_STAGES
            and (tile.num_stages == 1 or staged * (tile.num_stages - 1) <= self.device.shared_memory)
            and registers <= max(SPILLED_REGISTERS, registers_of(self.facts, first, self.start.r0_block, 1))
            and is_power_of_2(schedule.final_block)
            and is_power_of_2(schedule.final_warps)
            and schedule.final_block <= schedule.r0_block
            and 1 <= schedule.final_warps <= MAX_WARPS
        )
