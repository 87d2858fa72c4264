"""The search for the fastest schedule, given something that times candidates.

Rounds of coordinate descent: time the neighbours of the best schedule so far, go to the fastest, and stop
when a round gains little. This module uses no device and no clock: the caller passes the measurement in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from ..schedule.plan import Plan
from ..schedule.search_space import SearchSpace

MOST = 28  # candidates timed for one region
MARGIN = 1.015  # the gain over the heuristic's schedule that a winner needs: more than noise
DUELS = 2  # comparisons with the heuristic's schedule, all of which need that gain
SHORT_US = 20.0  # shorter kernels are not tuned
FINAL_REPS = 60  # samples of the two that are compared at the end


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A schedule of one variant of the region's loops."""

    variant: str
    schedule: Plan


@dataclasses.dataclass(frozen=True)
class VersusInductor:
    """Microseconds of a candidate, and of Inductor's kernels for the same nodes, timed in turns."""

    fused_us: float
    inductor_us: float


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The gain from tuning one region: microseconds of the heuristic's schedule and of the chosen one, main
    kernel and finalisation together; how many candidates were timed, and in how many seconds.

    `beside`: the chosen one's and those of Inductor's kernels for the same nodes, timed in turns; None if
    Inductor's could not be timed.
    """

    heuristic_us: float
    best_us: float
    candidates: int
    seconds: float
    beside: VersusInductor | None = None
    from_cache: bool = False

    @property
    def not_fused(self) -> bool:
        """Whether Inductor's kernels are faster."""
        return self.beside is not None and self.beside.inductor_us < self.beside.fused_us

    def __str__(self) -> str:
        gain = f"tuned: {self.heuristic_us:.1f} -> {self.best_us:.1f} us"
        if self.beside is not None:
            inductor = f"Inductor {self.beside.inductor_us:.1f} us"
            gain = f"not fused: {self.beside.fused_us:.1f} us, {inductor}" if self.not_fused else gain
            gain += "" if self.not_fused else f", {inductor}"
        origin = ", taken from the cache" if self.from_cache else ""
        return f"{gain}, {self.candidates} candidates in {self.seconds:.1f} s{origin}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The chosen candidate, the times of the heuristic's and of this one, and how many were timed."""

    best: Candidate
    heuristic_us: float
    best_us: float
    candidates: int


Measure = Callable[[Sequence[Candidate], int], Mapping[Candidate, float]]
"""Takes candidates and a number of samples; returns microseconds of those that can run, timed in turns."""
MeasureVersus = Callable[[Candidate, int], VersusInductor]
"""Takes a candidate and a number of samples; times it and Inductor's kernels in turns."""


def search(spaces: Mapping[str, SearchSpace], measure: Measure, most: int = MOST) -> Outcome:
    """The fastest candidate of the spaces, by variant; the first space's start is the heuristic's.

    A candidate replaces the start only if it is faster by `MARGIN` each time that both are timed again, so
    that noise alone changes nothing. A start of less than `SHORT_US` is never replaced. RuntimeError if the
    start cannot be timed.
    """
    starts = [Candidate(variant, space.start) for variant, space in spaces.items()]
    best = first = starts[0]
    batch = [*starts, *_near(spaces, first)][:most]
    seen: set[Candidate] = set()
    first_us = 0.0
    while len(batch) > 1 or not seen:
        times = measure(batch, 15)
        if best not in times:
            raise RuntimeError(f"the schedule to compare with cannot be timed: {best}")
        first_us = first_us or times[first]
        seen.update(batch)
        if first_us < SHORT_US:
            break
        fastest = min(times, key=times.__getitem__)
        if times[best] < 1.01 * times[fastest]:  # the last round
            break
        new = [_combined(spaces, times, best, fastest), *_near(spaces, fastest)]
        best = fastest
        new = [c for c in dict.fromkeys(new) if c not in seen]
        batch = [best, *new[: max(0, most - len(seen))]]
    if best == first:
        return Outcome(first, first_us, first_us, len(seen))
    duels = [_duel(measure, first, best) for _ in range(DUELS)]
    if any(duel[0] < MARGIN * duel[1] for duel in duels):
        best = first
    # The reported gain is the smallest one.
    first_us, best_us = min(duels, key=lambda duel: duel[0] / duel[1])
    return Outcome(best, first_us, first_us if best == first else best_us, len(seen))


def versus_inductor(measure: MeasureVersus, best: Candidate) -> VersusInductor:
    """The times of the fastest candidate and of Inductor's kernels. Inductor's have to be faster each time
    that both are timed; of several results this is the one that says most for fusing."""
    duels: list[VersusInductor] = []
    while len(duels) < DUELS and (not duels or duels[-1].inductor_us < duels[-1].fused_us):
        duels.append(measure(best, FINAL_REPS))
    return min(duels, key=lambda duel: duel.fused_us / duel.inductor_us)


def _duel(measure: Measure, first: Candidate, second: Candidate) -> tuple[float, float]:
    """Microseconds of both, measured in turns; infinity if `second` can no longer be timed."""
    times = measure([first, second], FINAL_REPS)
    if first not in times:
        raise RuntimeError(f"the schedule to compare with cannot be timed: {first}")
    return times[first], times.get(second, math.inf)


def _near(spaces: Mapping[str, SearchSpace], candidate: Candidate) -> list[Candidate]:
    space = spaces[candidate.variant]
    return [Candidate(candidate.variant, s) for s in space.near(candidate.schedule)]


def _combined(
    spaces: Mapping[str, SearchSpace], times: Mapping[Candidate, float], center: Candidate, fastest: Candidate
) -> Candidate:
    """The round's center with every change that was faster; the fastest itself if it is another variant."""
    if center.variant != fastest.variant:
        return fastest
    schedule_times = {c.schedule: us for c, us in times.items() if c.variant == center.variant}
    return Candidate(center.variant, spaces[center.variant].combined(schedule_times, center.schedule))
