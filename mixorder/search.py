"""The search for a region's nodes: of the regions that its moves lead to, the one that takes the least time.

A state is a region. Its cost is the predicted time of its kernels, and of Inductor's for what it leaves out;
the graph's estimated peak is a limit. The moves (`region/variants.py`) leave nodes out, read what was
computed, compute what was read, or add values of whole rows.

The search goes from the largest region down. A state that has a plan is compared with those of its moves that
compute less, or more of what it reads. Where no state of a level may be taken, the next level are the moves
of its smallest one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any

import torch
from torch.fx import Node

from .errors import Decline, DeclineReason
from .planning import RegionPlan, why_not
from .region import legality
from .region.key import structural_key
from .region.peak_memory import Change
from .region.producers import with_row_values
from .region.region import Region
from .region.variants import lighter, reading_masks, smaller
from .runner import Runner
from .schedule.facts import PRICES, instructions_by_node
from .schedule.predicted import check_size
from .schedule.remainder import remainder_us

HEAVY = PRICES["exp"]  # instructions: below these, nothing is computed that a load would not take as well
ROUNDS = 2  # of moves that take less memory: the MLP of `rowwise` float8 training takes two
COMPUTING = 1.05  # times what the kernels took if they computed nothing: it is worth to compute less


Cost = tuple[bool, float]
"""Whether a region does not pay, and how many microseconds longer it takes than Inductor's kernels."""


@dataclasses.dataclass
class Search:
    """It starts at `original`. `build` makes the plan of a region; `fits` says what a plan does to memory.
    Both raise `Decline`. `stored`: nodes in memory without a region. `whole`: the plan of `original`, if any.
    """

    original: Region
    build: Callable[[Hashable | None, Region], RegionPlan | Decline]
    fits: Callable[[RegionPlan], Change]
    stored: Collection[Node]
    runner: Runner
    whole: RegionPlan | None = None

    def best(self) -> tuple[RegionPlan, Change]:
        """The plan that is taken, and what it does to memory. Raises the first state's `Decline` if there is
        none."""
        level, refused, rounds = [self.original], dict[State, Decline](), 0
        while level:
            plans = list[tuple[Cost, RegionPlan]]()
            for region in level:
                try:
                    plans += self.plans(region)
                except Decline as decline:
                    refused[_state(region)] = decline.kept()
            for (_, longer_us), plan in sorted(plans, key=operator.itemgetter(0)):
                try:
                    if rounds == ROUNDS and longer_us > 0:
                        raise refused[_state(self.original)]
                    return self.fitting(plan)
                except Decline as decline:
                    refused[_state(plan.region)] = decline.kept()
            smallest = min(level, key=lambda region: len(region.nodes))
            why = refused[_state(smallest)]
            moves = self.runner.step("moves", smaller, smallest, why, self.stored)
            rounds += why.reason is DeclineReason.MEMORY
            level = [region for region in moves if rounds <= ROUNDS and _state(region) not in refused]
        raise refused[_state(self.original)]

    def fitting(self, plan: RegionPlan) -> tuple[RegionPlan, Change]:
        """A plan that fits, launched as early as it can be or as late. Raises `Decline` if it does not."""
        is_pair = bool(plan.region.inner) and not plan.strategy.tile_local
        self.runner.step("gate", check_size, plan.facts, self.runner.options.min_numel, is_pair)
        with contextlib.suppress(Decline):
            return plan, self.runner.step("memory", self.fits, plan)
        late = plan.of(dataclasses.replace(plan.region, late=True))
        return late, self.runner.step("memory", self.fits, late)

    def plans(self, region: Region) -> Iterator[tuple[Cost, RegionPlan]]:
        """The plan of a region, and those of its moves that may take less time, with their costs."""
        plan = self.plan(region)
        if region is self.original:
            self.whole = plan = self.versus_stored_masks(plan)
        yield self.priced(plan)
        if plan.strategy.over_reduction_groups:
            return
        if plan.strategy.tile_local:
            yield from ((_cost(row_plan), row_plan) for row_plan in self.with_rows(plan))
        elif plan.expected.fused_us > COMPUTING * plan.expected.idle_us:
            counted = self.runner.step("facts", instructions_by_node, plan.merged)
            heavy = frozenset(name for name, n in counted.items() if n >= HEAVY)
            for subregion in self.runner.step("moves", lighter, region, heavy):
                with contextlib.suppress(Decline):
                    yield self.priced(self.plan(subregion))

    def plan(self, region: Region) -> RegionPlan:
        """The plan of this region. It is reused if a region with the same key was planned before."""
        step = self.runner.step
        step("legality", legality.check, region)
        key = step("key", structural_key, region)
        answer = self.runner.once(key, lambda: self.build(key, region))
        if isinstance(answer, Decline):
            raise answer
        plan = answer.of(region)
        if plan.strategy.tile_local or region.nodes == self.original.nodes:
            return plan
        left_us = step("cost", remainder_us, self.original, region, plan.device)
        return _with(plan, outside_us=left_us)

    def priced(self, plan: RegionPlan) -> tuple[Cost, RegionPlan]:
        """A plan with its cost, versus Inductor's kernels for all of `original` if it has the same reductions
        and no more nodes: these compute what the plan leaves out for each element that needs it. H100, a
        QK-norm behind rotary embeddings: 100 us, predicted 103, and 50 for the subregion. Inductor stores a
        `cat` by itself: a region that reads it, or one beside a whole that takes longer than Inductor's
        kernels, has to pay for itself."""
        whole = self.whole
        if whole is None or plan is whole or not _is_subregion(plan.region, whole.region):
            return _cost(plan), plan
        versus_whole = _with(plan, apart_us=whole.expected.apart_us, left_us=whole.expected.left_us)
        if not plan.strategy.tile_local:
            left_us = self.runner.step("cost", remainder_us, whole.region, plan.region, plan.device, True)
            versus_whole = _with(versus_whole, outside_us=left_us)
        cats = {n for n in whole.region.nodes if n.target is torch.ops.aten.cat.default}
        if cats and (not cats.issubset(plan.region.nodes) or whole.expected.saved_us < 0):
            return (why_not(plan) is not None, _cost(versus_whole)[1]), plan
        return _cost(versus_whole), versus_whole

    def versus_stored_masks(self, plan: RegionPlan) -> RegionPlan:
        """The plan versus Inductor's kernels that read the masks which the region computes."""
        if (stored := self.runner.step("moves", reading_masks, plan.region)) is not None:
            with contextlib.suppress(Decline):
                takes = self.plan(stored).expected
                return _with(plan, apart_us=takes.apart_us, left_us=takes.left_us)
        return plan

    def with_rows(self, whole: RegionPlan) -> Iterator[RegionPlan]:
        """The plan of a tile's region with the values of whole rows that it needs, for which Inductor has one
        kernel more than for `whole`."""
        if (larger := self.runner.step("moves", with_row_values, whole.region)) is not None:
            with contextlib.suppress(Decline):
                left_us = self.runner.step("cost", remainder_us, larger, whole.region, whole.device)
                unfused_us = whole.expected.apart_us + left_us
                yield _with(self.plan(larger), apart_us=unfused_us, left_us=unfused_us)


State = tuple[Node, ...]


def _state(region: Region) -> State:
    """What tells a region from others: its nodes, then its results."""
    return (*region.nodes, *region.outputs)


def _is_subregion(region: Region, whole: Region) -> bool:
    """Whether a region has the same reductions as another one, and no node more."""
    same = (region.inner, region.outer) == (whole.inner, whole.outer)
    return same and set(region.nodes) <= set(whole.nodes)


def _cost(plan: RegionPlan) -> Cost:
    return why_not(plan) is not None, -plan.expected.saved_us


def _with(plan: RegionPlan, **us: Any) -> RegionPlan:
    """A plan with other predicted microseconds."""
    return dataclasses.replace(plan, expected=dataclasses.replace(plan.expected, **us))
