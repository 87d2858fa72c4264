"""The schedules near a given cooperative one. From plain numbers, without timing.

The columns of a part and the rows of a tile determine the form of the loops, and are not varied here.
"""

from __future__ import annotations

import dataclasses

from .cooperative import SPILLED_REGISTERS, registers_of
from .finalisation import final_neighbours
from .plan import Plan, is_power_of_2
from .space import MOST_STAGES, Space

MAX_LAG = 4


@dataclasses.dataclass(frozen=True)
class CooperativeSpace(Space):
    """The plans near one whose programs share rows."""

    parts = (("lag",), ("num_stages",), ("block", "warps"))

    def near(self, schedule: Plan) -> tuple[Plan, ...]:
        """The other legal schedules that differ from one in one of `parts`, each once."""
        found = [schedule.changed(lag=schedule.lag + by) for by in (1, -1)]
        found += [schedule.changed(num_stages=schedule.launch.num_stages + by) for by in (1, -1)]
        found += final_neighbours(schedule)
        return tuple(s for s in dict.fromkeys(found) if s != schedule and self.legal(s))

    def legal(self, schedule: Plan) -> bool:
        """Whether the kernels are correct and fit the device."""
        if not self.is_varied(schedule):
            return False
        rows, stages = schedule.tile_rows, schedule.launch.num_stages
        programs = -(-schedule.splits * schedule.group // self.device.num_sm)
        staged = programs * rows * schedule.lanes * self.facts.staged_bytes
        per_thread = schedule.per_thread(schedule.lanes)
        registers, least = (registers_of(self.facts, rows, per_thread, lag) for lag in (schedule.lag, 1))
        return (
            1 <= schedule.lag <= MAX_LAG
            and 1 <= stages <= MOST_STAGES
            and (stages == 1 or staged * (stages - 1) <= self.device.shared_memory)
            and registers <= max(SPILLED_REGISTERS, least)
            and is_power_of_2(schedule.second.block)
            and is_power_of_2(schedule.second.warps)
            and schedule.second.block <= schedule.lanes
            and 1 <= schedule.second.warps <= self.device.max_warps
        )
