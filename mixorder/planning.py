"""Which part of a region is fused, and by which strategy; one answer for all regions with the same key."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from .codegen.source import KernelSource
from .errors import Decline, MixorderError, TooWide
from .ir.program import BufferRole, LoopProgram
from .record import RegionRecord, describe
from .region import legality
from .region.key import structural_key
from .region.nodes import leaves_the_graph
from .region.partition import partition, without_culprit, without_gathers
from .region.region import Region
from .runner import Runner
from .schedule import cost
from .schedule.device import DeviceInfo
from .schedule.facts import Facts
from .schedule.predicted import expected
from .schedule.schedule import Schedule
from .strategies import STRATEGIES, Strategy
from .tune import tuner
from .tune.search import Tuning


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a compile plans with, in addition to the user's options. `device`: None for the graph's, which
    torch describes. `strategies`: in the order to try them."""

    device: DeviceInfo | None = None
    strategies: tuple[Strategy, ...] = STRATEGIES


# Not a context variable: autograd compiles a GPU's backward on a thread of its own.
_in_force = [Setting()]


@contextlib.contextmanager
def planning_with(**changes: Any) -> Iterator[None]:
    """Change fields of the `Setting` in force, for compiles on any thread, while the context is open."""
    setting = dataclasses.replace(_in_force[-1], **changes)
    _in_force.append(setting)
    try:
        yield
    finally:
        _in_force.remove(setting)


def setting_in_force() -> Setting:
    return _in_force[-1]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a region is run, and its traffic. All but `region` is the same for all regions with the same key.

    `copied`: the buffers of the nodes that are made contiguous. `lowered`: the loops before any rewrite;
    `merged`: after the rewrites that all strategies share; `loops`: as the strategy runs them.
    """

    key: Hashable | None
    region: Region
    copied: tuple[str, ...]
    lowered: LoopProgram
    merged: LoopProgram
    strategy: Strategy
    loops: LoopProgram
    facts: Facts
    schedule: Schedule
    traffic: cost.Traffic
    device: DeviceInfo
    tuning: Tuning | None = None

    def of(self, region: Region) -> Plan:
        """The plan for another region with the same key."""
        if self.copied:
            nodes = frozenset(region.buffers[name] for name in self.copied)
            region = dataclasses.replace(region, made_contiguous=nodes)
        return dataclasses.replace(self, region=region)

    def record(self, loops: LoopProgram, kernels: Sequence[KernelSource]) -> RegionRecord:
        """The region's record, with the loops and kernels that are launched."""
        accumulators = len(loops.role(BufferRole.WORKSPACE))
        copies = sum(node in self.region.made_contiguous for node in self.region.inputs)
        stretch = self.strategy.stretch(accumulators)
        takes = expected(
            self.lowered, loops, self.schedule, self.facts, self.traffic, self.device, stretch, copies
        )
        title = self.strategy.title(self.schedule)
        return describe(
            self.region,
            title,
            (self.lowered, loops),
            self.schedule,
            kernels,
            self.traffic,
            takes,
            self.tuning,
        )


Build = Callable[[Hashable | None, Region], Plan | TooWide]
"""Makes the plan of a region; returns `TooWide` if it needs too many registers, raises other `Decline`s."""


def plan(region: Region, build: Build, runner: Runner) -> Plan:
    """The plan of a region, or of the region without what prevents a plan: operators that cannot be lowered,
    results that are used too early, then gathers."""
    try:
        return _best_part(region, build, runner)
    except Decline as decline:
        if (smaller := runner.step("partition", without_culprit, region, decline)) is not None:
            return plan(smaller, build, runner)
        if (plain := runner.step("partition", without_gathers, region)) is None:
            raise
    return _best_part(plain, build, runner)


def _best_part(region: Region, build: Build, runner: Runner) -> Plan:
    """The plan of a region or, if it needs too many registers, of its part that saves the most bytes."""
    tried = [region]
    while True:
        answers = [(part, _remembered(part, build, runner)) for part in tried]
        plans = [answer for _, answer in answers if isinstance(answer, Plan)]
        if plans:
            # What a part writes for the rest of the region is also read. The whole region moves neither.
            return max(plans, key=lambda plan: plan.traffic.saved - 2 * _written_between(plan, region))
        refusals = [(refusal, part) for part, refusal in answers if isinstance(refusal, TooWide)]
        _, narrowest = min(refusals, key=lambda one: one[0].words)
        tried = runner.step("partition", partition, narrowest)
        if not tried:
            raise refusals[-1][0]


def _remembered(region: Region, build: Build, runner: Runner) -> Plan | TooWide:
    """The plan of this region. It is reused if a region with the same key was planned before."""
    runner.step("legality", legality.check, region)
    key = runner.step("key", structural_key, region)
    answer = runner.once(key, lambda: build(key, region))
    return answer.of(region) if isinstance(answer, Plan) else answer


def by_first_strategy(
    merged: LoopProgram, device: DeviceInfo, strategies: Sequence[Strategy], runner: Runner
) -> tuple[Strategy, LoopProgram, Facts, Schedule] | TooWide:
    """The first strategy that accepts a merged program, with its loops, their facts and their schedule. If
    all decline, returns the first `TooWide`; if there is none, raises the first `Decline`."""
    step, refusals = runner.step, list[Decline]()
    for strategy in strategies:
        try:
            step("applies", strategy.applies, merged)
            loops = step("transform", strategy.transform, merged)
            facts = step("facts", strategy.facts, loops)
            schedule = step("schedule", strategy.choose, facts, device, runner.options.split_size)
            return strategy, step("place", strategy.place, loops, schedule), facts, schedule
        except Decline as refusal:
            refusals.append(refusal)
    too_wide = [one for one in refusals if isinstance(one, TooWide)]
    if not too_wide:
        raise refusals[0]
    return too_wide[0]


def _written_between(plan: Plan, whole: Region) -> int:
    """Bytes that a part of a region writes and the whole region does not."""
    outputs = zip(plan.loops.role(BufferRole.OUTPUT), plan.region.outputs, strict=True)
    return cost.size(plan.loops, [buffer.name for buffer, node in outputs if node not in whole.outputs])


def check_layout(
    region: Region, merged: LoopProgram, across: Sequence[str]
) -> tuple[Region, tuple[str, ...]]:
    """The region with contiguous copies of the buffers in `across`, and the names of those that have to be
    copied for that. Raises `Decline` if these are most of the bytes."""
    nodes = {name: region.buffers[name] for name in across}
    copied = tuple(b for b, n in nodes.items() if n in region.inputs or leaves_the_graph(n))
    cost.check_layout(merged, copied)
    return dataclasses.replace(region, made_contiguous=frozenset(nodes.values())), copied


def tuned(plan: Plan, label: str, strategies: Sequence[Strategy], runner: Runner) -> Plan:
    """The plan with the fastest schedule by timing; unchanged if tuning is off or fails."""
    options = runner.options
    try:
        if not runner.step("tune", tuner.wanted, options):
            return plan
        device = legality.device_of(plan.region)
        start = tuner.Start(plan.strategy, plan.loops, plan.facts, plan.schedule)
        problem = tuner.Problem(
            plan.region.name, label, plan.merged, start, strategies, device, plan.device, options.split_size
        )
        found = runner.step("tune", tuner.tune, problem)
        if found is None:
            return plan
        workspace = runner.step("cost", cost.workspace_bytes, found.loops, found.schedule.num_splits)
    except MixorderError as error:
        runner.warn(error)
        return plan
    runner.show("tuned.txt", f"{found.tuning}\n{found.schedule}")
    return dataclasses.replace(
        plan,
        strategy=found.strategy,
        loops=found.loops,
        facts=found.facts,
        schedule=found.schedule,
        traffic=dataclasses.replace(plan.traffic, workspace=workspace),
        tuning=found.tuning,
    )
