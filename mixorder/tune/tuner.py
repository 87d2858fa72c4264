"""Tune one region: the heuristic's schedule in, the fastest one that timing finds out.

The only module here that knows options and caches. Never changes a graph; whatever it raises leaves the
heuristic's schedule in place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import torch

from ..codegen.kernel import generate
from ..errors import Decline
from ..inductor import config, versions
from ..ir.program import NUM_SPLITS, BufferRole, LoopProgram
from ..options import Options, source_hash
from ..schedule import persistent_space as candidates
from ..schedule.cooperative import shared_schedules, shared_workload
from ..schedule.cooperative_space import SharedSpace
from ..schedule.device import DeviceInfo
from ..schedule.persistent import choose, workload
from ..schedule.schedule import Schedule
from ..transform.cooperative import check_shareable, share
from ..transform.reread import reload
from . import cache
from .measure import Bench, NotEnoughMemory
from .search import MOST, Candidate, Measure, Space, Tuning, search

log = logging.getLogger(__name__)

HELD, READ_TWICE = "rows are held", "rows are read twice"
WIDE = 4096  # columns; narrower rows are held at little cost. Untested guess.
SPILL_FACTOR = 1.5  # how far beyond the registers a row is still tried, held: docs/tuning.md, section 11
PROGRESS_AFTER_S = 2.0


@dataclasses.dataclass(frozen=True)
class Problem:
    """A region to tune: its merged loops, which hold their rows, and the loops and the schedule that the
    heuristic has chosen; `split_size` as the user has set it."""

    name: str
    label: str
    held: LoopProgram
    chosen: LoopProgram
    schedule: Schedule
    device: torch.device
    info: DeviceInfo
    split_size: int = 0


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What to run instead, and what that gains."""

    loops: LoopProgram
    schedule: Schedule
    tuning: Tuning


def wanted(options: Options) -> bool:
    """Whether this compile is to be tuned; says once why not, where determinism forbids what is asked for.

    Another schedule sums in another order, so that tuned results may differ from machine to machine.
    """
    if not options.autotune and not config.tunes():
        return False
    if config.wants_deterministic_results():
        _say_once("not tuned: deterministic results are asked for")
        return False
    return True


def reason_to_skip(device: torch.device) -> str | None:
    """Why kernels cannot be timed on a device here and now; None if they can."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"there is no GPU behind {device}"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "Triton interprets kernels"
    if torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return None


def tune(problem: Problem) -> Tuned | None:
    """The fastest schedule, from the cache or by timing; None where nothing can be timed.

    Raises RuntimeError where the heuristic's own kernels do not run, and what CUDA raises.
    """
    if (reason := reason_to_skip(problem.device)) is not None:
        log.info("%s: not tuned: %s", problem.name, reason)
        return None
    programs, spaces = variants(problem)
    key = key_of(problem, programs, spaces)
    folder = config.winners_folder()
    found = cache.load(folder, key, {v: s.start for v, s in spaces.items()}) if folder else None
    if found is not None and spaces[found[0].variant].legal(found[0].schedule):
        best, tuning = found
    else:
        started, progress = time.perf_counter(), _Progress(problem.name)
        try:
            outcome = search(spaces, progress.around(Bench(programs, problem.label, problem.device)))
        except NotEnoughMemory as error:
            log.info("%s: not tuned: %s", problem.name, error)
            return None
        finally:
            progress.end()
        best, seconds = outcome.best, time.perf_counter() - started
        tuning = Tuning(outcome.heuristic_us, outcome.best_us, outcome.candidates, seconds)
        if folder:
            cache.store(folder, key, best, tuning)
    log.info("%s: %s", problem.name, tuning)
    return Tuned(programs[best.variant], best.schedule, tuning)


def variants(problem: Problem) -> tuple[dict[str, LoopProgram], dict[str, Space]]:
    """The ways to write the region's loops, the heuristic's own first, and the schedules of each."""
    found = {}
    if int(problem.held.tile_axes[1].size) > WIDE:
        found = dict([*_single(problem, SPILL_FACTOR), *_shared(problem)])
    chosen = problem.schedule
    if chosen.parts > 1:
        space: Space = SharedSpace(shared_workload(problem.held), problem.info, chosen)
        first = {_name(chosen): (problem.chosen, space)}
    else:
        work = workload(problem.chosen)
        space = candidates.Space(work, problem.info, chosen, problem.split_size != 0)
        first = {READ_TWICE if work.rereads else HELD: (problem.chosen, space)}
    found = {**first, **{name: v for name, v in found.items() if name not in first}}
    return {n: program for n, (program, _) in found.items()}, {n: space for n, (_, space) in found.items()}


def _single(problem: Problem, spill_factor: float) -> Iterator[tuple[str, tuple[LoopProgram, Space]]]:
    """One program to a row: the row is held, or read twice."""
    for name, program in ((HELD, problem.held), (READ_TWICE, reload(problem.held))):
        work = workload(program)
        if bool(work.rereads) == (name == READ_TWICE):
            with contextlib.suppress(Decline):
                start = choose(work, problem.info, problem.split_size, spill_factor)
                yield name, (program, candidates.Space(work, problem.info, start, problem.split_size != 0))


def _shared(problem: Problem) -> Iterator[tuple[str, tuple[LoopProgram, Space]]]:
    """Several programs to a row, laid over it in different ways."""
    with contextlib.suppress(Decline):
        check_shareable(problem.held)
        work = shared_workload(problem.held)
        for start in shared_schedules(work, problem.info) if problem.info.exchanges else ():
            program = share(problem.held, start.parts, start.tile.xblock, start.period)
            yield _name(start), (program, SharedSpace(work, problem.info, start))


def _name(schedule: Schedule) -> str:
    return f"{schedule.parts} programs share {schedule.tile.xblock} rows"


def key_of(problem: Problem, programs: Mapping[str, LoopProgram], spaces: Mapping[str, Space]) -> str:
    """Everything that decides which schedule is the fastest: kernels, buffers, device, versions."""
    on_gpu = problem.device.type == "cuda" and torch.cuda.is_available()
    capability = torch.cuda.get_device_capability(problem.device) if on_gpu else None
    kernels = {
        variant: [
            (k.text.replace(k.name, "kernel"), k.buffers, k.grid, dataclasses.asdict(k.config))
            for k in generate(program, spaces[variant].start, "key")
        ]
        for variant, program in programs.items()
    }
    return cache.key_of(
        {
            "kernels": kernels,
            "buffers": _buffers(problem.chosen),
            "hints": [(str(symbol), value) for symbol, value in problem.chosen.hints],
            "split_size": problem.split_size,
            "device": [dataclasses.asdict(problem.info), capability],
            "versions": versions.versions(),
            "source": source_hash(),
        }
    )


def _buffers(program: LoopProgram) -> list[tuple[str, ...]]:
    """Dtypes, shapes and strides, of which kernels show only what their indices need."""
    return [
        (
            b.name,
            b.role.value,
            str(b.dtype),
            *(str([e.subs(NUM_SPLITS, 1) for e in t]) for t in (b.shape, b.stride)),
        )
        for role in BufferRole
        for b in program.role(role)
    ]


class _Progress:
    """A line on a terminal, rewritten as long as it takes; nothing elsewhere, and nothing if it is short."""

    def __init__(self, name: str) -> None:
        self.name, self.started, self.timed, self.shown = name, time.perf_counter(), 0, False

    def around(self, measure: Measure) -> Measure:
        """The same measurement, with progress shown before each round of it."""

        def shown(candidates: Sequence[Candidate], reps: int) -> Mapping[Candidate, float]:
            seconds = time.perf_counter() - self.started
            if seconds > PROGRESS_AFTER_S and sys.stderr.isatty():
                text = f"{self.name}: {self.timed} of at most {MOST} schedules timed, {seconds:.0f} s"
                sys.stderr.write(f"\rmixorder: tuning {text}")
                sys.stderr.flush()
                self.shown = True
            log.debug("%s: timing %d schedules", self.name, len(candidates))
            times = measure(candidates, reps)
            for candidate, us in times.items():
                log.debug("%8.1f us  %s", us, candidate)
            self.timed += len(candidates)
            return times

        return shown

    def end(self) -> None:
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


@functools.cache
def _say_once(message: str) -> None:
    log.warning(message)
