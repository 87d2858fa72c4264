"""Tune one region. In: the heuristic's schedule. Out: the fastest one that timing finds.

The only module of this folder that uses options and caches. Never changes a graph; if it raises, the
heuristic's schedule stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence

import torch

from ..errors import Decline, say_once
from ..inductor import config, stock, versions
from ..ir.program import LoopProgram
from ..options import Options, source_hash
from ..rewrite.standalone import Standalone
from ..schedule.device import DeviceInfo
from ..schedule.search_space import SearchSpace
from ..strategies.strategy import Chosen, Strategy
from . import cache
from .measure import Bench, NotComparable, NotEnoughMemory
from .search import Candidate, Tuning, VersusInductor, search, versus_inductor

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A region to tune: its merged loops, the choice without timing, the strategies that may replace it,
    and its device; `split_size` is the user's. `standalone`: its nodes, to compare with Inductor's kernels;
    None for no comparison. `times`: whether to time what no earlier compile has timed."""

    name: str
    label: str
    merged: LoopProgram
    chosen: Chosen
    strategies: Sequence[Strategy]
    device: torch.device
    info: DeviceInfo
    split_size: int = 0
    standalone: Standalone | None = None
    times: bool = True


@dataclasses.dataclass(frozen=True)
class Tuned(Chosen):
    """The loops and schedule to run instead, and the gain."""

    tuning: Tuning


def times(options: Options) -> bool:
    """Whether this compile times schedules that no earlier one has timed."""
    return options.autotune or config.tunes()


def found_before(options: Options) -> tuple[str, ...]:
    """The keys of earlier winners, on which the results of a compile that times nothing depend."""
    if times(options) or config.wants_deterministic_results():
        return ()
    return cache.keys(config.winners_folder())


def wanted(options: Options) -> bool:
    """Whether this compile times schedules, or uses those that an earlier one has timed; logs the reason once
    if determinism forbids to time them.

    Another schedule sums in another order, so that tuned results may differ from machine to machine.
    """
    if times(options) and config.wants_deterministic_results():
        say_once("not tuned: deterministic results are asked for")
        return False
    return times(options) or bool(found_before(options))


def reason_to_skip(device: torch.device) -> str | None:
    """Why kernels cannot be timed on a device at this moment; None if they can."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"there is no GPU behind {device}"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "Triton interprets kernels"
    if torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return None


def tune(problem: Problem) -> Tuned | None:
    """The fastest schedule, from the cache or by timing; None where nothing can be timed.

    Raises RuntimeError where the heuristic's own kernels do not run, and errors of CUDA.
    """
    if (reason := reason_to_skip(problem.device)) is not None:
        log.info("%s: not tuned: %s", problem.name, reason)
        return None
    starts = variants(problem)
    spaces = {name: _search_space(problem, start) for name, start in starts.items()}
    key = key_of(problem, starts)
    folder = config.winners_folder()
    cached = cache.load(folder, key, {v: s.start for v, s in spaces.items()}) if folder else None
    if cached is not None and spaces[cached[0].variant].legal(cached[0].schedule):
        best, tuning = cached
    elif not problem.times:
        return None
    else:
        try:
            best, tuning, lasting = _timed(problem, starts, spaces)
        except NotEnoughMemory as error:
            log.info("%s: not tuned: %s", problem.name, error)
            return None
        if folder and lasting:
            cache.store(folder, key, best, tuning)
    log.info("%s: %s", problem.name, tuning)
    winner = starts[best.variant]
    return Tuned(winner.strategy, winner.loops, winner.facts, best.schedule, tuning)


def _timed(
    problem: Problem, starts: Mapping[str, Chosen], spaces: Mapping[str, SearchSpace]
) -> tuple[Candidate, Tuning, bool]:
    """The fastest schedule by timing, and whether that is so next time: not if memory was short."""
    started = time.perf_counter()
    bench = Bench(starts, problem.label, problem.device, problem.standalone)
    outcome = search(spaces, bench)
    versus, lasting = (
        _versus_inductor(bench, outcome.best) if problem.standalone is not None else (None, True)
    )
    seconds = time.perf_counter() - started
    tuning = Tuning(outcome.heuristic_us, outcome.best_us, outcome.candidates, seconds, versus)
    return outcome.best, tuning, lasting


def _versus_inductor(bench: Bench, best: Candidate) -> tuple[VersusInductor | None, bool]:
    """The times of the fastest schedule and of Inductor's kernels, or None, and whether that lasts."""
    try:
        return versus_inductor(bench.versus_inductor, best), True
    except (NotComparable, NotEnoughMemory) as error:
        say_once(f"a region is not timed against Inductor's kernels: {error}")
        return None, isinstance(error, NotComparable)


def variants(problem: Problem) -> dict[str, Chosen]:
    """The variants of the region by name, the chosen one first: a strategy and its transformed loops. Of
    narrow rows only the chosen one is timed."""
    chosen = problem.chosen
    first = {chosen.strategy.title(chosen.schedule): chosen}
    if int(problem.merged.tile_axes[1].size) <= 4096:
        return first
    alternatives = {
        strategy.title(start.schedule): start
        for strategy in problem.strategies
        for start in _starts(strategy, problem)
    }
    return {**first, **{title: start for title, start in alternatives.items() if title not in first}}


def _starts(strategy: Strategy, problem: Problem) -> Iterator[Chosen]:
    with contextlib.suppress(Decline):
        strategy.applies(problem.merged)
        loops = strategy.transform(problem.merged, problem.info)
        facts = strategy.facts(loops)
        for schedule in strategy.starts(facts, problem.info, problem.split_size):
            yield Chosen(strategy, strategy.place(loops, schedule), facts, schedule)


def _search_space(problem: Problem, start: Chosen) -> SearchSpace:
    return start.strategy.search_space(start.facts, problem.info, start.schedule, problem.split_size != 0)


def key_of(problem: Problem, starts: Mapping[str, Chosen]) -> str:
    """A key of everything that determines the fastest schedule: kernels, buffers, device, versions."""
    on_gpu = problem.device.type == "cuda" and torch.cuda.is_available()
    capability = torch.cuda.get_device_capability(problem.device) if on_gpu else None
    kernels = {
        variant: [
            (k.text.replace(k.name, "kernel"), k.buffers, str(k.grid), dataclasses.asdict(k.config))
            for k in start.strategy.generate(start.loops, start.schedule, "key")
        ]
        for variant, start in starts.items()
    }
    return cache.key_of(
        {
            "kernels": kernels,
            "buffers": list(map(repr, problem.chosen.loops.buffers)),
            "hints": [(str(symbol), value) for symbol, value in problem.merged.hints],
            "split_size": problem.split_size,
            "device": [dataclasses.asdict(problem.info), capability],
            "alone": problem.standalone and [str(problem.standalone), stock.settings()],
            "versions": versions.versions(),
            "source": source_hash(),
        }
    )
