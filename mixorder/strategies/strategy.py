"""What a strategy is: how a merged program becomes loops, their plan, and the main kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ..codegen.source import KernelSource
from ..ir.program import LoopProgram
from ..ir.verify import Form
from ..schedule.cost import traffic
from ..schedule.device import DeviceInfo
from ..schedule.facts import Facts, facts_of
from ..schedule.plan import Plan
from ..schedule.predicted import Case, Expected, expected
from ..schedule.search_space import SearchSpace

Choose = Callable[[Any, DeviceInfo, int], Plan]
"""From facts, a device and rows per program (0: the best number); raises `Decline`."""


@dataclasses.dataclass(frozen=True)
class Strategy:
    """One way of running a merged program.

    Strategies with a lower `rank` are tried first. `applies` raises `Decline` for a merged program that
    cannot be run in this way. `transform` makes the loops for a device, which then have `form`. `place` does
    what depends on the plan: it adds buffers of its sizes. `starts` are plans that a search begins from, in
    addition to the chosen one; `search_space` has those near one. `generate` writes the kernels of loops that
    `place` returned, in the order of their launches. `predict` gives the times of loops, and of Inductor's
    kernels for the loops as lowered. `in_place`: whether an output of loops may reuse the memory of an input
    that is read before.
    """

    name: str
    rank: int
    choose: Choose
    generate: Callable[[LoopProgram, Plan, str], tuple[KernelSource, ...]]
    starts: Callable[[Any, DeviceInfo, int], Iterator[Plan]] = lambda facts, device, split_size: iter(())
    search_space: Callable[[Any, DeviceInfo, Plan, bool], SearchSpace] = lambda *args: SearchSpace(*args[:3])
    applies: Callable[[LoopProgram], None] = lambda program: None
    transform: Callable[[LoopProgram, DeviceInfo], LoopProgram] = lambda program, device: program
    form: Form = Form.MERGED
    facts: Callable[[LoopProgram], Facts] = facts_of
    place: Callable[[LoopProgram, Plan], LoopProgram] = lambda loops, plan: loops
    describe: Callable[[Plan], str] = lambda plan: ""
    in_place: Callable[[LoopProgram], bool] = lambda loops: True
    predict: Callable[[Case], Expected] = expected

    @property
    def tile_local(self) -> bool:
        """Whether it runs programs of tile-local reductions, or over reduction groups, and no others."""
        return self.form is Form.TILE_LOCAL or self.over_reduction_groups

    @property
    def over_reduction_groups(self) -> bool:
        return self.form in (Form.TWO_PASS, Form.WHOLE_GROUPS)

    def title(self, plan: Plan) -> str:
        """The strategy with what a plan determines, such as `cooperative, 8 programs to a row`."""
        return ", ".join(filter(None, (self.name, self.describe(plan))))


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A strategy, its loops of a program, their facts and their plan."""

    strategy: Strategy
    loops: LoopProgram
    facts: Facts
    schedule: Plan

    def us(self, lowered: LoopProgram, device: DeviceInfo) -> float:
        """Microseconds predicted for the kernels, of a program as lowered."""
        moved = traffic(self.loops, self.schedule.partials)
        return self.strategy.predict(
            Case(lowered, self.loops, self.schedule, self.facts, moved, device)
        ).fused_us
