"""Which part of a region is fused, and by which strategy; one answer for all regions with the same key."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any

import torch

from .codegen.source import KernelSource
from .errors import Decline, DeclineReason, GainsNothing, MixorderError
from .ir.program import LoopProgram
from .record import RegionRecord, describe
from .region import legality
from .region.key import structural_key
from .region.layouts import is_copied_as_stated, is_free, is_read_as_stated
from .region.nodes import operands, unviewed
from .region.partition import (
    lighter,
    partition,
    unrounded,
    with_stored_masks,
    without_culprit,
    without_gathers,
    without_last_steps,
)
from .region.producers import with_row_values
from .region.region import Region
from .rewrite.alone import alone
from .runner import Runner
from .schedule import by_time, cost
from .schedule.device import DeviceInfo
from .schedule.facts import PRICES, Facts, RowFacts, instructions_by_node
from .schedule.fused import fused_kernels
from .schedule.kernel_time import TIMES
from .schedule.outside import outside_us
from .schedule.plan import Plan
from .schedule.predicted import (
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
        title = self.strategy.title(self.schedule)
        return describe(
            self.region,
            title,
            (self.lowered, loops),
            self.schedule,
            kernels,
            self.traffic,
            self.expected,
            self.tuning,
        )


TOO_WIDE = (DeclineReason.ROW_TOO_WIDE, DeclineReason.TOO_MANY_LIVE_TILES)  # a smaller region may have a plan

Build = Callable[[Hashable | None, Region], RegionPlan | Decline]
"""Makes the plan of a region; returns a `Decline` if no strategy has one, and raises every other one."""


def plans_of(region: Region, build: Build, runner: Runner) -> list[RegionPlan]:
    """The plan of a region, and those of smaller ones that compute less; the fastest first, by prediction, of
    those that pay."""
    whole = _possible(region, build, runner)
    if (stored := runner.step("partition", with_stored_masks, region)) is not None:
        with contextlib.suppress(Decline):
            whole = _beside(whole, _possible(stored, build, runner))
    if whole.strategy.over_slabs:
        return [whole]
    if whole.strategy.blocked:
        return _of_tile(whole, build, runner)
    if not _is_computing(whole):
        return [whole]
    counted = runner.step("facts", instructions_by_node, whole.merged)
    heavy = frozenset(name for name, n in counted.items() if n >= HEAVY)
    plans = [whole]
    for part in runner.step("partition", lighter, whole.region, heavy):
        try:
            one = _best_part(part, build, runner)
            one = runner.step("cost", _with_outside, one, whole.region)
            plans.append(_beside_all(one, whole))
        except Decline:
            continue
    us = {id(one): one.expected.ours_us * (ROUNDED if _reads_rounded(one, whole) else 1) for one in plans}
    return sorted(plans, key=lambda one: (_why_not(one) is not None, us[id(one)]))


# How much longer a plan may take if it reads no table that was rounded to half precision.
ROUNDED = 1.1


def _reads_rounded(plan: RegionPlan, whole: RegionPlan) -> bool:
    """Whether a plan of a part of `whole` reads what Inductor's kernels have before it is rounded."""
    return any(n in whole.region.nodes and unrounded(n) is not n for n in plan.region.inputs)


def _beside_all(plan: RegionPlan, whole: RegionPlan) -> RegionPlan:
    """The plan of a part of `whole` beside Inductor's kernels for all of it: these compute what the part
    reads for each element that needs it. H100, a QK-norm behind rotary embeddings: 100 us, predicted 103, and
    50 for the part. Only the pieces of a `cat` are computed where they are alone: a part that reads them is
    for itself, and one that does not is where the whole takes longer than Inductor's kernels."""
    nodes = set(whole.region.nodes)
    cats = [n for n in nodes if n.target is torch.ops.aten.cat.default]
    alone = {*cats, *(unviewed(a) for n in cats for a in operands(n))} & nodes
    if cats and (not alone <= set(plan.region.nodes) or whole.expected.saved_us < 0):
        return plan
    return _beside(plan, whole)


def _beside(plan: RegionPlan, other: RegionPlan) -> RegionPlan:
    """A plan beside Inductor's kernels for another one's region."""
    apart_us, left_us = other.expected.apart_us, other.expected.left_us
    takes = dataclasses.replace(plan.expected, apart_us=apart_us, left_us=left_us)
    return dataclasses.replace(plan, expected=takes)


def _why_not(plan: RegionPlan) -> str | None:
    """Why a plan's region is left to Inductor; None if it is fused."""
    if plan.strategy.blocked:
        return too_little(plan.expected)
    assert isinstance(plan.facts, RowFacts)
    return veto(plan.expected, plan.facts, plan.traffic, plan.device)


def _of_tile(whole: RegionPlan, build: Build, runner: Runner) -> list[RegionPlan]:
    """The plan of a tile's region; where it needs values of whole rows, before it the plan that computes
    these as well, if that is faster."""
    if (larger := runner.step("partition", with_row_values, whole.region)) is not None:
        with contextlib.suppress(Decline):
            plan = _with_rows(larger, whole, build, runner)
            if plan.expected.saved_us > whole.expected.saved_us:
                return [plan, whole]
    return [whole]


def _with_rows(larger: Region, whole: RegionPlan, build: Build, runner: Runner) -> RegionPlan:
    """The plan of a tile's region with the values of whole rows, for which Inductor has one kernel more than
    for `whole`. Raises `Decline` where rows are too wide."""
    answer = _remembered(larger, build, runner)
    if isinstance(answer, Decline):
        raise answer
    left_us = outside_us(larger, whole.region, whole.device)
    apart_us = whole.expected.apart_us + left_us
    takes = dataclasses.replace(answer.expected, apart_us=apart_us, left_us=apart_us)
    return dataclasses.replace(answer, expected=takes)


HEAVY = PRICES["exp"]  # instructions: below these, nothing is computed that a load would not take as well


def _is_computing(plan: RegionPlan) -> bool:
    """Whether computing takes a part of a plan's predicted time that matters."""
    return plan.expected.fused_us > 1.05 * plan.expected.idle_us


def _with_outside(plan: RegionPlan, whole: Region) -> RegionPlan:
    """The plan of a part of `whole`, with the predicted time of what the part leaves to Inductor."""
    if plan.strategy.blocked or plan.region.nodes == whole.nodes:
        return plan
    left_us = outside_us(whole, plan.region, plan.device)
    return dataclasses.replace(plan, expected=dataclasses.replace(plan.expected, outside_us=left_us))


def _possible(region: Region, build: Build, runner: Runner) -> RegionPlan:
    """The plan of a region, or of the region without operators that cannot be lowered, then without
    gathers."""
    try:
        return _best_part(region, build, runner)
    except Decline as decline:
        if (smaller := runner.step("partition", without_culprit, region, decline)) is not None:
            return runner.step("cost", _with_outside, _possible(smaller, build, runner), region)
        if (plain := runner.step("partition", without_gathers, region)) is None:
            raise
    return runner.step("cost", _with_outside, _best_part(plain, build, runner), region)


def _best_part(region: Region, build: Build, runner: Runner) -> RegionPlan:
    """The plan of a region or, if no strategy has one, of its part that saves the most time."""
    refusal: Decline | None = None
    for parts in _smaller(region, runner):
        plans = []
        for part in parts:
            answer = _remembered(part, build, runner)
            if isinstance(answer, Decline):
                refusal = answer
            else:
                plans.append(runner.step("cost", _with_outside, answer, region))
        if plans:
            return max(plans, key=lambda plan: plan.expected.saved_us)
    assert refusal is not None
    raise refusal


def _smaller(region: Region, runner: Runner) -> Iterator[list[Region]]:
    """The region, the one without last steps, the parts that it can be reduced to, those of the smallest of
    these, and so on."""
    parts = [region]
    while parts:
        yield parts
        smallest = min(parts, key=lambda part: len(part.nodes))
        if (part := runner.step("partition", without_last_steps, smallest)) is not None:
            yield [part]
        parts = runner.step("partition", partition, smallest)


def _remembered(region: Region, build: Build, runner: Runner) -> RegionPlan | Decline:
    """The plan of this region. It is reused if a region with the same key was planned before."""
    runner.step("legality", legality.check, region)
    key = runner.step("key", structural_key, region)
    answer = runner.once(key, lambda: build(key, region))
    return answer.of(region) if isinstance(answer, RegionPlan) else answer


def by_first_strategy(
    merged: LoopProgram, device: DeviceInfo, strategies: Sequence[Strategy], runner: Runner
) -> Chosen | Decline:
    """The first strategy that accepts a merged program, with its loops, their facts and their schedule.
    Returns a `Decline` if a row of it is too wide for all, and raises every other one."""
    step, refusals = runner.step, list[Decline]()
    for strategy in strategies:
        if (strategy.blocked, strategy.over_slabs) != (merged.blocked, merged.over_slabs):
            continue
        try:
            step("applies", strategy.applies, merged)
            loops = step("transform", strategy.transform, merged, device)
            facts = step("facts", strategy.facts, loops)
            schedule = step("schedule", strategy.choose, facts, device, runner.options.split_size)
            if not runner.options.split_size:
                schedule = step("schedule", improved, strategy, loops, facts, schedule, device)
            return Chosen(strategy, step("place", strategy.place, loops, schedule), facts, schedule)
        except Decline as refusal:
            refusals.append(refusal.kept())
    if not refusals:
        raise Decline(DeclineReason.AXIS_CLASS, "no strategy can run this program")
    told = [one for one in refusals if not isinstance(one, GainsNothing)]
    while told and told[0].reason not in TOO_WIDE:
        told = told[1:]
    if not told:
        raise refusals[0]
    return Decline(told[0].reason, "; ".join(dict.fromkeys(one.detail for one in told)))


def improved(
    strategy: Strategy, loops: LoopProgram, facts: Facts, schedule: Plan, device: DeviceInfo
) -> Plan:
    """A schedule that is predicted to be faster than the one chosen by rules, or that one."""
    if not isinstance(facts, RowFacts):
        return schedule

    workspace = functools.cache(functools.partial(cost.workspace_bytes, loops))

    def us(tried: Plan) -> float:
        moved = cost.Traffic(0, 0, workspace(tried.partials), 0)
        return fused_kernels(loops, tried, facts, moved).us(device, TIMES)

    return by_time.improved(strategy.space(facts, device, schedule, False), facts, us)


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
    parts = {n: part for n, part in region.parts.items() if n not in nodes}
    return dataclasses.replace(region, made_contiguous=nodes, parts=parts)


def check_time(plan: RegionPlan, min_numel: int) -> None:
    """Raise `Decline` where Inductor's kernels are faster: as timed or, where they are not, as predicted;
    there, never with a `min_numel` of 0."""
    if plan.tuning is None or plan.tuning.beside is None:
        check_saves(plan.expected, _why_not(plan) if min_numel else None)
    elif plan.tuning.not_fused:
        ours, others = plan.tuning.beside.fused_us, plan.tuning.beside.inductor_us
        detail = f"{ours:.1f} us measured for mixorder's kernels, {others:.1f} us for Inductor's"
        raise Decline(DeclineReason.SLOWER, detail)


def tuned(plan: RegionPlan, label: str, strategies: Sequence[Strategy], runner: Runner) -> RegionPlan:
    """The plan with the fastest schedule by timing, now or earlier; unchanged if there is none."""
    options = runner.options
    try:
        if plan.strategy.blocked or not runner.step("tune", tuner.wanted, options):
            return plan
        device = legality.device_of(plan.region)
        # With a `min_numel` of 0 a region is fused whatever the times are.
        by_itself = runner.step("alone", alone, plan.region, plan.merged.hint) if options.min_numel else None
        problem = tuner.Problem(
            plan.region.name,
            label,
            plan.merged,
            plan,
            strategies,
            device,
            plan.device,
            options.split_size,
            by_itself,
            tuner.times(options),
        )
        found = runner.step("tune", tuner.tune, problem)
        if found is None:
            return plan
        workspace = runner.step("cost", cost.workspace_bytes, found.loops, found.schedule.partials)
    except MixorderError as error:
        runner.warn(error)
        return plan
    runner.show("tuned.txt", f"{found.tuning}\n{found.schedule}")
    traffic = dataclasses.replace(plan.traffic, workspace=workspace)
    takes = found.strategy.predict(
        plan.lowered, found.loops, found.schedule, found.facts, traffic, plan.device
    )
    # It was measured to take no longer than the schedule of the prediction before.
    fused_us = min(takes.fused_us, plan.expected.fused_us)
    takes = dataclasses.replace(
        plan.expected, fused_us=fused_us, idle_us=takes.idle_us, launches=takes.launches
    )
    return dataclasses.replace(plan, **vars(found), traffic=traffic, expected=takes)
