"""One recipe of `support/quantised.py` at one size: stock Inductor, mixorder and the limit, on this GPU.

Runs in a process of `lab/pool.py`: processes compile side by side, and each has a `Turn` on the GPU for all
that runs there. Without a GPU, kernels run in Triton's interpreter, and nothing is timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from support.compilers import ahead_of_time
from support.quantised import RECIPES, Recipe, different, inputs
from support.sources import lost, told
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from mixorder.errors import Decline
from mixorder.planning import planning_with
from mixorder.report import RegionRecord, collect
from mixorder.schedule import tile
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.plan import Plan, next_power_of_2
from mixorder.schedule.tile import TileFacts
from mixorder.strategies import STRATEGIES
from mixorder.strategies.tile import TILE

from .duel import moved
from .processes import Turn
from .stopwatch import Stopwatch, here, stopwatch

MOST_LOCKED_S = 60
MOST_TOLD = 1000
LEAST = 2048  # elements of a tile that is timed


@dataclasses.dataclass(frozen=True)
class Task:
    """A recipe by its name and a size; the device, and the file of the `Turn`. `schedules`: how many others
    are timed against the one that is chosen."""

    recipe: str
    rows: int
    cols: int
    device: str
    turn: str
    schedules: int = 0


@dataclasses.dataclass
class Outcome:
    """What a process answers. Microseconds, medians; empty where nothing is timed. `schedules`: the time of
    each tile and number of warps. `differing`: of each result, the elements that are not eager's, and all.
    `fused`: what mixorder made of the graph. `lost`: the process can no longer use the GPU. `on`: the day,
    the card, the versions, and the commit if the record is kept."""

    recipe: str
    rows: int
    cols: int
    us: dict[str, float] = dataclasses.field(default_factory=dict)
    launches: dict[str, int] = dataclasses.field(default_factory=dict)
    schedules: dict[str, float] = dataclasses.field(default_factory=dict)
    differing: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    fused: list[str] = dataclasses.field(default_factory=list)
    chosen: str = ""
    num_bytes: int = 0
    message: str = ""
    seconds: float = 0.0
    lost: bool = False
    on: str = ""

    @property
    def name(self) -> str:
        return f"{self.recipe} {self.rows}x{self.cols}"


def work(task: Task) -> Outcome:
    """Runs in a process of the pool. Never raises: errors are in the outcome."""
    outcome = Outcome(task.recipe, task.rows, task.cols, on=here(task.device))
    started = time.perf_counter()
    try:
        _measure(task, outcome)
    except Exception as error:  # the next task goes on
        outcome.message = told(error)[-MOST_TOLD:]
        outcome.lost = lost(told(error))
    outcome.seconds = round(time.perf_counter() - started, 1)
    return outcome


def _measure(task: Task, outcome: Outcome) -> None:
    recipe, turn = RECIPES[task.recipe], Turn(task.turn, MOST_LOCKED_S)
    with turn:
        watch = stopwatch(task.device)  # starts the GPU's context
    compiled = {"stock": _compiled(recipe, task, False), "mixorder": _compiled(recipe, task, True)}
    outcome.fused = compiled["mixorder"].fused
    calls = {name: variant.call for name, variant in compiled.items()}
    if (schedule := compiled["mixorder"].schedule) is not None:
        outcome.chosen = name_of(schedule)
        for near in _others(compiled["mixorder"], task.schedules):
            calls[name_of(near)] = _compiled(recipe, task, True, near).call
    with turn, torch.no_grad():
        try:
            _run(recipe, task, outcome, calls, watch)
        finally:
            del calls, compiled
            gc.collect()
            watch.free()


@dataclasses.dataclass
class _Compiled:
    """`fused`: what mixorder made of the graph. `record`: of its region that ends within a tile."""

    call: Callable[..., Any]
    fused: list[str]
    record: RegionRecord | None = None

    @property
    def schedule(self) -> Plan | None:
        return None if self.record is None else self.record.schedule


def _compiled(recipe: Recipe, task: Task, mixorder: bool, schedule: Plan | None = None) -> _Compiled:
    """A recipe compiled ahead of time, from tensors without memory; with this tile, if one is given."""
    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [
            torch.empty(shape, dtype=dtype, device=task.device)
            for shape, dtype in recipe.like(task.rows, task.cols)
        ]
        gm = make_fx(lambda *args: recipe.function(*args))(*fakes)
    with collect() as records, _fixed(schedule, task.device):
        call = ahead_of_time(task.device, mixorder)(gm, fakes)
    fused = [r for r in records if isinstance(r, RegionRecord)]
    tiles = [r for r in fused if r.strategy == TILE.name]
    told_of = [f"{r.strategy} {r.space}" if r in fused else f"declined: {r}" for r in records]
    return _Compiled(call, told_of, tiles[0] if len(tiles) == 1 else None)


@contextlib.contextmanager
def _fixed(schedule: Plan | None, device: str) -> Iterator[None]:
    """Plan tiles with this schedule; on the CPU, for a GPU with few multiprocessors."""
    changes: dict[str, Any] = {}
    if device != "cuda":
        changes["device"] = dataclasses.replace(H200, num_sm=5)
    if schedule is not None:
        fixed = dataclasses.replace(TILE, choose=lambda *_: schedule)
        changes["strategies"] = tuple(fixed if s is TILE else s for s in STRATEGIES)
    with planning_with(**changes):
        yield


def _others(compiled: _Compiled, count: int) -> list[Plan]:
    """Schedules near the one chosen, the nearest first."""
    assert compiled.record is not None and compiled.schedule is not None
    facts = tile.facts_of_tile(compiled.record.loops)
    schedules = {compiled.schedule: None}
    queue = [compiled.schedule]
    while queue and len(schedules) <= count:
        for near in _near(queue.pop(0), facts):
            if near not in schedules and math.prod(near.extents) >= LEAST:
                schedules[near] = None
                queue.append(near)
    return list(schedules)[1 : count + 1]


def _near(plan: Plan, facts: TileFacts) -> Iterator[Plan]:
    """One axis with twice or half the elements, twice or half the warps, or the tiles in the other order."""
    extents, warps = plan.extents, plan.launch.num_warps
    sizes = [(extents, warps * 2), (extents, max(1, warps // 2))]
    for i in (i for i in range(len(extents)) if i not in facts.whole):
        for extent in (extents[i] * 2, extents[i] // 2):
            sizes.append(((*extents[:i], extent, *extents[i + 1 :]), warps))
    if not facts.row_axes:
        yield plan.changed(backwards=not plan.order.backwards)
    for sides, warps in sizes:
        elements = math.prod(sides)
        inside = all(1 <= side <= next_power_of_2(n) for side, n in zip(sides, facts.sizes, strict=True))
        if inside and warps <= H200.max_warps and 32 * warps <= elements <= tile.MOST_ELEMENTS:
            with contextlib.suppress(Decline):
                yield tile.with_finalisation(tile.completed(sides, warps, facts, H200), facts, H200)


def name_of(schedule: Plan) -> str:
    """Such as `4x32x4x32, 8 warps`, and whether programs begin at the last tile."""
    words = f"{'x'.join(map(str, schedule.extents))}, {schedule.launch.num_warps} warps"
    return words + ", backwards" * schedule.order.backwards


def _run(
    recipe: Recipe, task: Task, outcome: Outcome, calls: dict[str, Callable[..., Any]], watch: Stopwatch
) -> None:
    """What runs on the GPU: eager, the first calls, the comparison, and the times."""
    args = inputs(recipe, task.rows, task.cols, task.device)
    ours = _tensors(calls["mixorder"](*args))
    eager = recipe.function(*args)
    outcome.differing = [(different(a, b), b.numel()) for a, b in zip(ours, eager, strict=True)]
    outcome.num_bytes = moved(args, eager)
    del ours, eager
    watch.free()
    if task.device != "cuda":
        return
    for call in calls.values():
        call(*args)
        watch.free()
    bound = {name: functools.partial(call, *args) for name, call in calls.items()}
    main = {name: bound.pop(name) for name in ("stock", "mixorder")}
    limit = watch.limit(outcome.num_bytes)
    assert limit is not None
    timed = watch.time(main | {"limit": limit})
    outcome.us = {name: round(result.times.median_us, 2) for name, result in timed.items()}
    outcome.launches = {
        name: sum(result.launches.values()) for name, result in timed.items() if result.launches
    }
    del timed, main
    for name, call in bound.items():
        watch.free()
        outcome.schedules[name] = round(watch.time({name: call})[name].times.median_us, 2)


def _tensors(results: Any) -> Sequence[Tensor]:
    return results if isinstance(results, list | tuple) else [results]
