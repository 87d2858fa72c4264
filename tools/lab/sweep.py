"""The schedules that `tools/tune.py` tries for a region, and their times on this GPU.

They are what the rules choose, and what tuning has near it. Tuning's own bench (`mixorder/tune/measure.py`)
compiles and times them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from mixorder.errors import Decline
from mixorder.ir.program import LoopProgram
from mixorder.planning import improved
from mixorder.schedule.device import DeviceInfo, device_info
from mixorder.schedule.facts import Facts, RowFacts
from mixorder.schedule.plan import Plan
from mixorder.strategies import STRATEGIES, Strategy
from mixorder.tune.measure import Bench, Compiled
from mixorder.tune.search import Candidate

from .stopwatch import LIMIT_BYTES, stopwatch
from .targets import Target

SHARE_FROM = 8192  # columns; for narrower rows no cooperative kernel was faster
IN_TURNS = 24  # candidates that take turns


@dataclasses.dataclass(frozen=True)
class Row:
    """A schedule as it was measured; `us` of all launches, None where it did not run."""

    strategy: str
    schedule: Plan
    registers: int | None
    spills: int | None
    shared: int | None
    us: float | None


@dataclasses.dataclass(frozen=True)
class Measured:
    """A target's schedules, what is chosen first, and the time of its limit."""

    name: str
    dtype: str
    limit_us: float
    rows: tuple[Row, ...]


@dataclasses.dataclass(frozen=True)
class Way:
    """A strategy, and the loops that it runs."""

    strategy: Strategy
    loops: LoopProgram


def candidates(program: LoopProgram, device: DeviceInfo, most: int) -> dict[Candidate, Way]:
    """What is chosen first, then at most so many schedules of each strategy, each once; those that the rules
    would not choose come last."""
    chosen: dict[Candidate, Way] = {}
    refused: dict[Candidate, Way] = {}
    for strategy in STRATEGIES:
        with contextlib.suppress(Decline):
            strategy.applies(program)
            loops = strategy.transform(program, device)
            facts = strategy.facts(loops)
            if isinstance(facts, RowFacts) and facts.exchange.values and facts.cols <= SHARE_FROM:
                continue
            plans = schedules(strategy, loops, facts, device, most)
            ways = {Candidate(strategy.title(s), s): Way(strategy, strategy.place(loops, s)) for s in plans}
            try:
                strategy.choose(facts, device, 0)
            except Decline:
                refused |= ways
            else:
                chosen |= ways
    return chosen | refused


def schedules(
    strategy: Strategy, loops: LoopProgram, facts: Facts, device: DeviceInfo, most: int
) -> list[Plan]:
    """Of one strategy: its choice first, what is near the first ones before what is near the next."""
    plans: dict[Plan, None] = {}
    with contextlib.suppress(Decline):
        plans[improved(strategy, loops, facts, strategy.choose(facts, device, 0), device)] = None
    with contextlib.suppress(Decline):
        plans[strategy.choose(facts, device, 0)] = None
    with contextlib.suppress(Decline):
        plans |= dict.fromkeys(strategy.starts(facts, device, 0))
    queue = list(plans)
    for schedule in queue:
        if len(queue) >= most:
            break
        near = [
            s for s in strategy.search_space(facts, device, schedule, False).near(schedule) if s not in plans
        ]
        plans |= dict.fromkeys(near)
        queue += near
    return queue[:most]


class Noting(Bench):
    """Keeps the main kernel of each candidate, to tell what it uses."""

    def _compiled(self, candidates: Sequence[Candidate]) -> Compiled:
        compiled = super()._compiled(candidates)
        self.main = {c: kernels[0][1] for c, kernels in compiled.items()}
        return compiled


def tune(target: Target, most: int, reps: int) -> tuple[Measured, tuple[float, float] | None]:
    """Time a target's candidates, and its limit; then the choice and the fastest again, in turns, as the
    fastest of many is so by luck as well: microseconds of both, None where the choice did not run."""
    device = torch.device("cuda", torch.cuda.current_device())
    ways = candidates(target.program, device_info(device), most)
    bench = Noting({c.variant: way for c, way in ways.items()}, "tune", device)
    rows = []
    for start in range(0, len(ways), IN_TURNS):
        batch = list(ways)[start : start + IN_TURNS]
        us = bench(batch, reps)
        for candidate in batch:
            kernel: Any = bench.main.get(candidate)
            use = (kernel.n_regs, kernel.n_spills, kernel.metadata.shared) if kernel else (None,) * 3
            took = round(us[candidate], 2) if candidate in us else None
            rows.append(Row(ways[candidate].strategy.name, candidate.schedule, *use, took))
    ran = [(row.us, candidate) for row, candidate in zip(rows, ways, strict=True) if row.us]
    chosen, fastest = next(iter(ways)), min(ran, key=lambda pair: pair[0])[1]
    again = bench([chosen, fastest], 2 * reps)
    both = (again[chosen], again[fastest]) if {chosen, fastest} <= again.keys() else None
    watch = stopwatch("cuda")
    limit = watch.limit(LIMIT_BYTES // 2 * target.dtype.itemsize * target.limit_numel)
    assert limit is not None
    limit_us = watch.time({"limit": limit})["limit"].times.median_us
    return Measured(target.name, str(target.dtype), round(limit_us, 2), tuple(rows)), both
