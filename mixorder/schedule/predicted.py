"""The predicted cost of a region, fused and apart: launches, and microseconds.

The limit is the time of `torch.add(x, dy, out=dx)` for as many bytes as a region has to move, each once.
Nothing is timed here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..errors import Decline, DeclineReason
from ..ir.program import LoopProgram
from . import baseline
from .cost import Traffic
from .device import H200, DeviceInfo
from .facts import Facts, RowFacts
from .fused import fused_kernels
from .kernel_time import TIMES, Times
from .plan import Plan

# H200, torch 2.11, 2026-11-20: the limit's time against its bytes, by least squares over the 42 norms of
# tools/data/h200.json whose rows start at boundaries (mean error 1%, largest 4%).
LIMIT_US, LIMIT_US_PER_MB = 5.54, 0.2282
# Of Inductor's time, at least, that fusing has to save where it spares no launches (docs/lab/tuning.md).
LEAST_SAVED = 0.04
# The same where the prediction is off by more. Narrow loads of sums over few rows, which one program adds up:
# H100, 51 subgraphs fused for less: 3 of 33 sums over more rows took longer than Inductor's kernels, and 28
# up to 60% less; 64 rows of 3,145,728 columns took 5,404 us, by Inductor 2,216, and 3 of 10 at each index 5
# us more, 5 less. And copies, where no launches are spared: of sums, as Inductor adds up a copy itself (H200
# and H100, 20 of them: 15 were slower, by 9 to 34%, and none was faster by more than 1.4 us; with a reduction
# along rows, 327 -> 149 us and 183 -> 153), and of what is joined behind the kernels (H100, two RMSNorms of
# parts of 16384x4096: 168 us in Inductor's kernels, 213 fused). And what Inductor has in one kernel (H200, a
# learned temperature of a softmax, 16384x2048, predicted 82 -> 71 us in bf16, 157 -> 130 in fp32: 70 -> 72,
# 127 -> 132).
UNSURE_SAVED = 0.3
# Microseconds of kernels that mostly wait, and how much longer those of a reduction along rows with one over
# rows may be by prediction. Both ways launch two kernels, and a kernel of so few programs takes as long
# whatever it computes. H200 and H100, 64 rows, 25 norms whose predictions are up to 18% longer than
# Inductor's: 23 take less time, and two 1% more.
SHORT_US, SHORT_SLACK = 10.0, 0.2
# Of `mixorder_min_numel`, for what is no pair. H200: all 38 pairs of 4,352 to 49,152 elements took as long as
# Inductor's kernels or less, but one (6.7 us, 6.4); casts by blocks of 16,384 took 9.2 to 10.8 us, Inductor's
# kernels 6.8 to 8.6, and a sum alone of 24,576 took 6.4 and 5.0.
UNPAIRED = 16


@dataclasses.dataclass(frozen=True)
class Expected:
    """Microseconds of the limit, of the fused kernels, and of Inductor's for the same nodes; launches.

    `idle_us`: of the fused kernels if they computed nothing. `outside_us`: of Inductor's loops that write
    what the fused kernels read, where Inductor's kernels for the same nodes would not store it.

    `measured`: whether the figures are of this device; otherwise they are the H200's, scaled by bandwidth.
    """

    limit_us: float
    fused_us: float
    apart_us: float
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
        """What fusing saves."""
        return self.apart_us - self.ours_us

    @property
    def share(self) -> float:
        """The limit's time over the kernels'."""
        return self.limit_us / self.fused_us


def expected(
    lowered: LoopProgram,
    loops: LoopProgram,
    plan: Plan,
    facts: RowFacts,
    moved: Traffic,
    device: DeviceInfo,
    times: Times = TIMES,
) -> Expected:
    """The prediction for a region: `lowered` has two nests over rows, `loops` those that run."""
    fused = fused_kernels(loops, plan, facts, moved)
    idle = dataclasses.replace(fused, main=dataclasses.replace(fused.main, work=fused.main.work.idle()))
    ours_us = fused.us(device, times), idle.us(device, times)
    return beside(baseline.kernels_of(lowered, device), ours_us, fused.launches, moved, device, times)


def beside(
    others: Sequence[baseline.Kernel],
    ours_us: tuple[float, float],
    launches: int,
    moved: Traffic,
    device: DeviceInfo,
    times: Times,
) -> Expected:
    """The prediction for kernels that take so long, and without computing, beside Inductor's."""
    fused_us, idle_us = ours_us
    return Expected(
        LIMIT_US + LIMIT_US_PER_MB * device.slower * (moved.read + moved.written) / 1e6,
        fused_us,
        baseline.microseconds(others, device, times),
        idle_us,
        launches,
        sum(kernel.launches for kernel in others),
        measured=device.name == H200.name,
    )


def check_size(facts: Facts, min_numel: int, is_pair: bool) -> None:
    """Raise `Decline` for a space of fewer than `min_numel` elements, or `UNPAIRED` times as many where no
    reductions along rows and over rows share their reads."""
    least = min_numel if is_pair else UNPAIRED * min_numel
    if facts.numel < least:
        raise Decline(DeclineReason.TOO_SMALL, f"reductions of {facts.numel} elements, fewer than {least}")


def least_saved(expected: Expected, facts: Facts, moved: Traffic, device: DeviceInfo) -> float:
    """The share of Inductor's time, at least, that fusing has to save; below 0, what it may cost."""
    if expected.ours_us < SHORT_US and facts.levels and facts.batch == 1 and facts.rows <= device.num_sm:
        return -SHORT_SLACK
    few = not facts.levels and facts.rows <= device.num_sm
    narrow = isinstance(facts, RowFacts) and facts.loads.narrow and (facts.common or few)
    copies = moved.joined or (moved.copied and not facts.levels)
    single = expected.launches_apart == 1 < expected.launches  # that reads each tensor once, too
    if narrow or single or (copies and expected.launches >= expected.launches_apart):
        return UNSURE_SAVED
    return LEAST_SAVED if not facts.levels else of_launches(expected)


def of_launches(expected: Expected) -> float:
    """The same where nothing is known but the kernels: nothing if fusing spares launches."""
    return 0.0 if expected.launches < expected.launches_apart else LEAST_SAVED


def saves(expected: Expected, least: float) -> bool:
    """Whether fusing is predicted to save such a share of Inductor's time."""
    return expected.saved_us >= least * expected.apart_us


def check_saves(expected: Expected, min_numel: int, least: float) -> None:
    """Raise `Decline` where the prediction says that fusing does not pay; never with a `min_numel` of 0."""
    if min_numel and not saves(expected, least):
        also = f", at least {least:.0%} less is asked for" if expected.saved_us > 0 else ""
        raise Decline(DeclineReason.SLOWER, _both_times(expected) + also)


def _both_times(expected: Expected) -> str:
    ours, others = f"{expected.ours_us:.1f}", f"{expected.apart_us:.1f}"
    also = " and what they need to be written" if expected.outside_us else ""
    return f"{ours} us predicted for mixorder's kernels{also}, {others} us for Inductor's"
