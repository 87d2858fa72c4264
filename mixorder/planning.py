"""Which part of a region is fused, and by which strategy; one answer for all regions with the same key."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

from .codegen.source import KernelSource
from .errors import Decline, DeclineReason, GainsNothing, MixorderError
from .ir.program import LoopProgram
from .record import Planning, RegionRecord, extent_of, reductions_of, tensor_of
from .region import legality
from .region.layouts import is_copied_as_stated, is_free, is_read_as_stated
from .region.provenance import provenance_of
from .region.region import Region
from .rewrite.standalone import standalone
from .runner import Runner
from .schedule import by_time, cost
from .schedule.device import DeviceInfo
from .schedule.facts import Facts, RowFacts
from .schedule.fused import fused_kernels
from .schedule.kernel_time import TIMES
from .schedule.plan import Plan
from .schedule.predicted import (
    Case,
    Expected,
    check_saves,
    too_little,
    veto,
)
from .strategies import STRATEGIES, Strategy
from .strategies.strategy import Chosen
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
class RegionPlan(Chosen):
    """How a region is run, and its traffic. All but `region` is the same for all regions with the same key.

    `copied`: the buffers of the nodes that are made contiguous. `lowered`: the loops before any rewrite;
    `merged`: after the rewrites that all strategies share.
    """

    key: Hashable | None
    region: Region
    copied: tuple[str, ...]
    lowered: LoopProgram
    merged: LoopProgram
    traffic: cost.Traffic
    device: DeviceInfo
    expected: Expected
    tuning: Tuning | None = None

    def of(self, region: Region) -> RegionPlan:
        """The plan for another region with the same key."""
        if self.copied:
            region = with_contiguous(region, self.copied)
        return dataclasses.replace(self, region=region)

    def record(self, loops: LoopProgram, kernels: Sequence[KernelSource]) -> RegionRecord:
        """The region's record, with the loops and kernels that are launched."""
        region = self.region
        return RegionRecord(
            region.name,
            extent_of(region.space),
            reductions_of(region.inner),
            reductions_of(region.outer),
            self.strategy.title(self.schedule),
            self.schedule,
            tuple(kernels),
            self.traffic,
            self.expected,
            provenance_of(region.named_after),
            tuple(map(tensor_of, region.inputs)),
            tuple(map(tensor_of, region.outputs)),
            loops,
            Planning(self.lowered, self.tuning),
        )


TOO_WIDE = (DeclineReason.ROW_TOO_WIDE, DeclineReason.TOO_MANY_LIVE_TILES)  # a smaller region may have a plan


def why_not(plan: RegionPlan) -> str | None:
    """Why a plan's region is left to Inductor; None if it is fused."""
    if plan.strategy.tile_local:
        return too_little(plan.expected, plan.strategy.over_reduction_groups)
    assert isinstance(plan.facts, RowFacts)
    return veto(plan.expected, plan.facts, plan.traffic, plan.device)


def by_first_strategy(
    merged: LoopProgram, device: DeviceInfo, strategies: Sequence[Strategy], runner: Runner
) -> Chosen | Decline:
    """The first strategy that accepts a merged program, or of those over reduction groups the one that is
    predicted to be fastest, with its loops, their facts and their schedule. Returns a `Decline` if a row of
    it is too wide for all, and raises every other one."""
    step, refusals, choices = runner.step, list[Decline](), list[Chosen]()
    for strategy in strategies:
        if (strategy.tile_local, strategy.over_reduction_groups) != (
            merged.tile_local,
            merged.over_reduction_groups,
        ):
            continue
        try:
            step("applies", strategy.applies, merged)
            loops = step("transform", strategy.transform, merged, device)
            facts = step("facts", strategy.facts, loops)
            schedule = step("schedule", strategy.choose, facts, device, runner.options.split_size)
            if not runner.options.split_size:
                schedule = step("schedule", improved, strategy, loops, facts, schedule, device)
            choice = Chosen(strategy, step("place", strategy.place, loops, schedule), facts, schedule)
            if not strategy.over_reduction_groups:
                return choice
            choices.append(choice)
        except Decline as refusal:
            refusals.append(refusal.kept())
    if choices:
        return min(choices, key=lambda choice: choice.us(merged, device))
    if not refusals:
        raise Decline(DeclineReason.AXIS_CLASS, "no strategy can run this program")
    told = [decline for decline in refusals if not isinstance(decline, GainsNothing)]
    while told and told[0].reason not in TOO_WIDE:
        told = told[1:]
    if not told:
        raise next((decline for decline in refusals if not isinstance(decline, GainsNothing)), refusals[0])
    return Decline(told[0].reason, "; ".join(dict.fromkeys(decline.detail for decline in told)))


def improved(
    strategy: Strategy, loops: LoopProgram, facts: Facts, schedule: Plan, device: DeviceInfo
) -> Plan:
    """A schedule that is predicted to be faster than the one chosen by rules, or that one."""
    if not isinstance(facts, RowFacts):
        return schedule

    workspace = functools.cache(functools.partial(cost.workspace_bytes, loops))

    def us(tried: Plan, exposed: bool = False) -> float:
        moved = cost.Traffic(0, 0, workspace(tried.partials), 0)
        return fused_kernels(loops, tried, facts, moved).us(device, TIMES, exposed)

    space = strategy.search_space(facts, device, schedule, False)
    return by_time.improved(space, facts, us, functools.partial(us, exposed=True))


def check_layout(
    region: Region, merged: LoopProgram, across: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the buffers in `across`, those that are copied if they are contiguous for the region, and those that
    Inductor would store contiguously as well for its own kernels. Raises `Decline` if most of the bytes would
    be copied before the region, or behind it as the graph states."""
    nodes = {name: region.buffers[name] for name in across}
    cost.check_layout(merged, [b for b, n in nodes.items() if n in region.inputs or is_copied_as_stated(n)])
    copied = tuple(b for b, n in nodes.items() if n in region.inputs or is_read_as_stated(n))
    return copied, tuple(b for b, n in nodes.items() if is_free(n))


def with_contiguous(region: Region, buffers: Collection[str]) -> Region:
    """The region with these of its buffers contiguous."""
    nodes = frozenset(region.buffers[name] for name in buffers)
    cat_slices = {n: cat_slice for n, cat_slice in region.cat_slices.items() if n not in nodes}
    return dataclasses.replace(region, made_contiguous=nodes, cat_slices=cat_slices)


def check_time(plan: RegionPlan, min_numel: int) -> None:
    """Raise `Decline` where Inductor's kernels are faster: as timed or, where they are not, as predicted;
    there, never with a `min_numel` of 0."""
    if plan.tuning is None or plan.tuning.beside is None:
        check_saves(plan.expected, why_not(plan) if min_numel else None)
    elif plan.tuning.not_fused:
        fused_us, inductor_us = plan.tuning.beside.fused_us, plan.tuning.beside.inductor_us
        detail = f"{fused_us:.1f} us measured for mixorder's kernels, {inductor_us:.1f} us for Inductor's"
        raise Decline(DeclineReason.SLOWER, detail)


def tuned(plan: RegionPlan, label: str, strategies: Sequence[Strategy], runner: Runner) -> RegionPlan:
    """The plan with the fastest schedule by timing, now or earlier; unchanged if there is none."""
    options = runner.options
    try:
        if plan.strategy.tile_local or not runner.step("tune", tuner.wanted, options):
            return plan
        device = legality.device_of(plan.region)
        # With a `min_numel` of 0 a region is fused whatever the times are.
        standalone_region = (
            runner.step("standalone", standalone, plan.region, plan.merged.hint)
            if options.min_numel
            else None
        )
        problem = tuner.Problem(
            plan.region.name,
            label,
            plan.merged,
            plan,
            strategies,
            device,
            plan.device,
            options.split_size,
            standalone_region,
            tuner.times(options),
        )
        fastest = runner.step("tune", tuner.tune, problem)
        if fastest is None:
            return plan
        workspace = runner.step("cost", cost.workspace_bytes, fastest.loops, fastest.schedule.partials)
    except MixorderError as error:
        runner.warn(error)
        return plan
    runner.show("tuned.txt", f"{fastest.tuning}\n{fastest.schedule}")
    traffic = dataclasses.replace(plan.traffic, workspace=workspace)
    case = Case(plan.lowered, fastest.loops, fastest.schedule, fastest.facts, traffic, plan.device)
    takes = fastest.strategy.predict(case)
    # It was measured to take no longer than the schedule of the prediction before.
    fused_us = min(takes.fused_us, plan.expected.fused_us)
    takes = dataclasses.replace(
        plan.expected, fused_us=fused_us, idle_us=takes.idle_us, launches=takes.launches
    )
    return dataclasses.replace(plan, **vars(fastest), traffic=traffic, expected=takes)
