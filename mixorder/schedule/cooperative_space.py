"""The plans near a given cooperative one. From plain numbers, without timing.

The columns of a part and the rows of a tile determine the form of the loops, and are not varied here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from .cooperative import SPILLED_REGISTERS, registers_of
from .facts import RowFacts
from .finalisation import final_neighbours
from .plan import Plan, is_power_of_2
from .space import MOST_STAGES, Space

MAX_LAG = 4


@dataclasses.dataclass(frozen=True)
class CooperativeSpace(Space):
    """The plans near one whose programs share rows."""

    parts = (("lag",), ("num_stages",), ("block", "warps"))

    facts: RowFacts

    def around(self, plan: Plan) -> Iterator[Plan]:
        yield from (plan.changed(lag=plan.lag + by) for by in (1, -1))
        yield from (plan.changed(num_stages=plan.launch.num_stages + by) for by in (1, -1))
        yield from final_neighbours(plan)

    def fits(self, plan: Plan) -> bool:
        rows, stages = plan.tile_rows, plan.launch.num_stages
        programs = -(-plan.splits * plan.group // self.device.num_sm)
        staged = programs * rows * plan.lanes * self.facts.loads.staged_bytes
        per_thread = plan.per_thread(plan.lanes)
        registers, least = (registers_of(self.facts, rows, per_thread, lag) for lag in (plan.lag, 1))
        return (
            1 <= plan.lag <= MAX_LAG
            and 1 <= stages <= MOST_STAGES
            and (stages == 1 or staged * (stages - 1) <= self.device.shared_memory)
            and registers <= max(SPILLED_REGISTERS, least)
            and is_power_of_2(plan.second.block)
            and is_power_of_2(plan.second.warps)
            and plan.second.block <= plan.lanes
            and 1 <= plan.second.warps <= self.device.max_warps
        )
