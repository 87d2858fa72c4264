"""The predicted cost of a region, fused and unfused: launches, and microseconds.

The limit is the time of `torch.add(x, dy, out=dx)` for as many bytes as a region has to move, each once.
Nothing is timed here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..errors import Decline, DeclineReason
from ..ir.program import LoopProgram
from . import baseline
from .cost import Traffic
from .device import MEASURED, DeviceInfo
from .facts import Facts, RowFacts
from .fused import fused_kernels
from .kernel_time import TIMES, Kind, Times
from .plan import Plan

# Of Inductor's time, at least, that fusing has to save; and where Inductor has one kernel for sums over
# reduction groups, or results are joined and no launch is spared: predictions are less certain there
# (tuning.md).
LEAST_SAVED, SURELY_SAVED = 0.04, 0.1


@dataclasses.dataclass(frozen=True)
class Expected:
    """Microseconds of the limit, of the fused kernels, and of Inductor's for the same nodes; launches.

    `left_us`: of Inductor's where the region is left to it, without its own mix-order reduction.
    `idle_us`: of the fused kernels if they computed nothing. `outside_us`: of Inductor's loops that write
    what the fused kernels read, where Inductor's kernels for the same nodes would not store it.

    `measured`: whether the figures are of this device; otherwise they are of another one, scaled.
    """

    limit_us: float
    fused_us: float
    apart_us: float
    left_us: float
    idle_us: float
    launches: int
    launches_apart: int
    measured: bool
    outside_us: float = 0.0

    @property
    def ours_us(self) -> float:
        """Of all that runs where a region is fused."""
        return self.fused_us + self.outside_us

    @property
    def saved_us(self) -> float:
        """What fusing saves of the time that is taken where the region is left to Inductor."""
        return self.left_us - self.ours_us

    @property
    def share(self) -> float:
        """The limit's time over the kernels'."""
        return self.limit_us / self.fused_us


@dataclasses.dataclass(frozen=True)
class Case:
    """What is predicted: `lowered` is a region's loops for Inductor, `loops` those that run by a plan, with
    their facts and their traffic; and the device and the numbers that it is predicted with."""

    lowered: LoopProgram
    loops: LoopProgram
    plan: Plan
    facts: Any
    moved: Traffic
    device: DeviceInfo
    times: Times = TIMES

    def versus(
        self, inductor_kernels: Sequence[baseline.Kernel], ours_us: tuple[float, float], launches: int
    ) -> Expected:
        """The prediction for kernels that take so long, and without computing, versus Inductor's."""
        fused_us, idle_us = ours_us
        moved_mb = self.device.slower * (self.moved.read + self.moved.written) / 1e6
        unfused_us = baseline.microseconds(inductor_kernels, self.device, self.times)
        return Expected(
            self.times.limit_us + self.times.limit_us_mb * moved_mb,
            fused_us,
            unfused_us,
            unfused_us,
            idle_us,
            launches,
            sum(kernel.launches for kernel in inductor_kernels),
            measured=self.device.name == MEASURED.name,
        )


def expected(case: Case) -> Expected:
    """The prediction for a program that walks through rows."""
    fused = fused_kernels(case.loops, case.plan, case.facts, case.moved)
    idle = dataclasses.replace(fused, main=dataclasses.replace(fused.main, work=fused.main.work.idle()))
    ours_us = fused.us(case.device, case.times), idle.us(case.device, case.times)
    inductor_kernels = baseline.kernels_of(case.lowered, case.device)
    takes = case.versus(inductor_kernels, ours_us, fused.launches)
    if all(kernel.kind is not Kind.MIXED for kernel in inductor_kernels):
        return takes
    left = baseline.kernels_of(case.lowered, case.device, mixed=False)
    return dataclasses.replace(takes, left_us=baseline.microseconds(left, case.device, case.times))


def check_size(facts: Facts, min_numel: int, is_pair: bool) -> None:
    """Raise `Decline` for a space of fewer than `min_numel` elements, or 16 times as many where no
    reductions along rows and over rows share their reads."""
    least = min_numel if is_pair else 16 * min_numel
    if facts.numel < least:
        raise Decline(DeclineReason.TOO_SMALL, f"reductions of {facts.numel} elements, fewer than {least}")


def too_little(expected: Expected, over_reduction_groups: bool) -> str | None:
    """Why tiles and sums over reduction groups are left to Inductor; None if they are fused."""
    if over_reduction_groups and expected.launches_apart == 1:
        return _less(expected, SURELY_SAVED)
    return _less(expected, 0.0 if expected.launches < expected.launches_apart else LEAST_SAVED)


def veto(expected: Expected, facts: RowFacts, moved: Traffic, device: DeviceInfo) -> str | None:
    """Why reductions over rows are left to Inductor; None if they are fused. Pairs of reductions are, unless
    they were measured to take longer, whatever is predicted; sums alone have to save time by prediction."""
    launches, unfused = expected.launches, expected.launches_apart
    if facts.loads.narrow and (facts.common if facts.levels else facts.rows <= device.num_sm):
        return ": loads are narrow, along a common axis or of few rows"
    if launches >= unfused and moved.copied and not facts.levels:
        return ": tensors are copied, and no launch is spared"
    if unfused == 1 < launches:
        return ": Inductor has one kernel for all of it"
    if launches >= unfused and moved.joined:
        return _less(expected, SURELY_SAVED)
    longer = 0.5 if launches <= unfused else 0.0
    return _less(expected, -longer if facts.levels else LEAST_SAVED)


def _less(expected: Expected, least: float) -> str | None:
    """Why a region is left to Inductor that has to save such a share of Inductor's time; None if it does."""
    if expected.saved_us >= least * expected.left_us:
        return None
    return f", at least {least:.0%} less is asked for" if expected.saved_us > 0 else ""


def check_saves(expected: Expected, why_not: str | None) -> None:
    """Raise `Decline` where there is a reason to leave a region to Inductor."""
    if why_not is not None:
        raise Decline(DeclineReason.SLOWER, _both_times(expected) + why_not)


def _both_times(expected: Expected) -> str:
    ours, left = f"{expected.ours_us:.1f}", f"{expected.left_us:.1f}"
    also = " and what they need to be written" if expected.outside_us else ""
    return f"{ours} us predicted for mixorder's kernels{also}, {left} us for Inductor's"
