"""One duel: an entry of the corpus by stock Inductor and with mixorder, in a process of `lab/pool.py`.

Compiling takes a processor only, and processes do it side by side, for fake tensors. All that runs on the GPU
(first calls, with what Inductor times there, replays, the profiler, float64) happens in a `Turn`, so that
nothing else runs there while a duel is timed; the process ends if that takes longer than `MOST_LOCKED_S`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from support.compilers import ahead_of_time
from support.sources import lost, told
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from mixorder.errors import Decline
from mixorder.inspection.accuracy import largest_error
from mixorder.region import nodes
from mixorder.report import RegionRecord, collect
from mixorder.tune import measure

from .corpus import Entry, load
from .duels import Duel, Way
from .exact import exact
from .processes import Turn, cpu_seconds
from .rules import off
from .stopwatch import here, stopwatch

MOST_LOCKED_S, MOST_TUNED_S = 20, 90
MOST_TOLD = 2000  # characters of an exception's text
MOST_DETAIL = 200  # and of a decline's


@dataclasses.dataclass(frozen=True)
class Task:
    """An entry by its key, the corpus's file, the device, the file of the `Turn`. `tuned`: by
    `mixorder_autotune`. `without`: mixorder without this rule of `lab/rules.py`."""

    key: str
    corpus: str
    device: str
    turn: str
    tuned: bool = False
    without: str = ""


@dataclasses.dataclass
class Outcome:
    """What a process answers. `lost`: it can no longer use the GPU."""

    duel: Duel
    lost: bool = False


def work(task: Task) -> Outcome:
    """Runs in a process of the pool. Never raises: errors are in the record."""
    entry = entries(task.corpus)[task.key]
    outcome = Outcome(blank(entry))
    started = time.perf_counter()
    try:
        fight(entry, task, outcome, Turn(task.turn, MOST_LOCKED_S))
    except Exception as error:  # the next entry goes on
        outcome.duel.status, outcome.duel.message = "failed", told(error)[:MOST_TOLD]
        outcome.lost = lost(told(error))
    if outcome.duel.status == "failed" and not outcome.lost:
        stopwatch(task.device).free()  # what the exception kept
    outcome.duel.on = here(task.device)
    outcome.duel.seconds = round(time.perf_counter() - started, 2)
    return outcome


@functools.cache
def entries(corpus: str) -> dict[str, Entry]:
    """The entries of a corpus by their keys."""
    return {entry.key: entry for entry in load(corpus)}


def blank(entry: Entry) -> Duel:
    """An entry's record before anything is measured."""
    where = [[place.family, place.recipe, place.kind] for place in entry.places]
    return Duel(entry.key, count=entry.count, where=where, outcome=entry.outcome)


def fight(entry: Entry, task: Task, outcome: Outcome, turn: Turn) -> None:
    """Fill in the record; what was filled in before an exception stays."""
    duel = outcome.duel
    watch = stopwatch(task.device)  # the first one starts the GPU's context, which takes seconds
    gm, fakes = entry.module(task.device), faked(entry, task.device)
    results = propagated(gm, fakes)
    duel.tuned = task.tuned
    duel.kind, duel.num_bytes = kind_of(gm), moved(fakes, results)
    ways = {"stock": duel.stock, "ours": duel.ours}
    calls, texts = {}, {}
    measure.exclusive_gpu = functools.partial(Turn, task.turn, MOST_TUNED_S)
    for name, way in ways.items():
        tuned = task.tuned and name == "ours"
        compiles = ahead_of_time(task.device, name == "ours", tuned)
        with off(task.without) if name == "ours" and task.without else contextlib.nullcontext():
            calls[name], texts[name] = compiled(way, entry.module(task.device), fakes, compiles)
    if any(way.status != "ok" for way in ways.values()):
        duel.status = "failed"
        duel.message = "; ".join(f"{name}: {way.message}" for name, way in ways.items() if way.message)
        return
    duel.ours.same_code = bool(texts["stock"]) and texts["stock"] == texts["ours"]
    with turn, torch.no_grad():
        duel.waited_s = round(turn.waited_s, 2)
        try:
            Bout(entry, gm, task, duel, calls).run()
        finally:
            watch.free()


# Compiling: no GPU.


def faked(entry: Entry, device: str) -> list[Any]:
    """The inputs without memory. They are all of one fake mode."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return [
            torch.empty_strided(*tensor.hint, dtype=getattr(torch, tensor.dtype), device=device)
            for tensor in entry.inputs
        ]


def propagated(gm: GraphModule, fakes: Sequence[Any]) -> list[Any]:
    """The graph's results without memory; its nodes get their `meta`."""
    mode = next(t.fake_mode for t in fakes if isinstance(t, Tensor))
    results = FakeTensorProp(gm, mode).propagate_dont_convert_inputs(*fakes)
    return list(results) if isinstance(results, tuple | list) else [results]


def compiled(
    way: Way, gm: GraphModule, fakes: Sequence[Any], compiles: Callable[..., Any]
) -> tuple[Callable[..., Any] | None, str]:
    """What runs the graph, and its output code; None with an error in `way`."""
    started = cpu_seconds()
    try:
        with collect() as records:
            call, texts = run_and_get_code(compiles, gm, fakes)
    except Exception as error:
        way.status, way.message = "failed", told(error)[:MOST_TOLD]
        return None, ""
    way.compile_s = round(cpu_seconds() - started, 2)
    way.regions = [plain(record) for record in records if isinstance(record, RegionRecord)]
    declines = [record for record in records if isinstance(record, Decline)]
    way.declined = dict(Counter(decline.reason.value for decline in declines))
    way.details = [decline.detail[:MOST_DETAIL] for decline in declines]
    return call, texts[-1] if texts else ""


def plain(record: RegionRecord) -> dict[str, Any]:
    """What a duel keeps of a region."""
    return {
        "space": str(record.space),
        "rows": record.space.rows,
        "cols": record.space.cols,
        "inner_ops": [reduction.op for reduction in record.inner],
        "outer_ops": [reduction.op for reduction in record.outer],
        "strategy": record.strategy,
        "schedule": dataclasses.asdict(record.schedule),
        "kernels": [kernel.name for kernel in record.kernels],
        "expected": dataclasses.asdict(record.expected),
        "traffic": dataclasses.asdict(record.traffic) | {"total": record.traffic.total},
    }


def moved(inputs: Sequence[Any], results: Sequence[Any]) -> int:
    """Bytes of the inputs and results, each once; a broadcast one counts as what it has in memory."""
    return sum(
        min(t.numel(), 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))) * t.itemsize
        for t in (*inputs, *results)
        if isinstance(t, Tensor) and t.numel()
    )


def kind_of(gm: GraphModule) -> str:
    """norm: reductions along the last dim, and others; bias: others only; else other."""
    directions = {along for node in gm.graph.nodes for along in _directions(node)}
    if "outer" not in directions:
        return "other"
    return "norm" if "inner" in directions else "bias"


def _directions(node: Any) -> Iterator[str]:
    if nodes.reduction_kind(node) is not None and (val := nodes.fake(node.args[0])) is not None and val.ndim:
        yield "inner" if val.ndim - 1 in nodes.reduced_dims(node) else "outer"


# On the GPU, in turn.


class Bout:
    """What happens on the GPU, step by step; `duel.locked` gets the seconds of each."""

    def __init__(
        self, entry: Entry, gm: GraphModule, task: Task, duel: Duel, calls: dict[str, Callable[..., Any]]
    ) -> None:
        self.entry, self.gm, self.task, self.duel = entry, gm, task, duel
        self.watch = stopwatch(task.device)
        self.ways = {"stock": duel.stock} | ({} if duel.ours.same_code else {"ours": duel.ours})
        self.calls = calls
        self.results: dict[str, list[Tensor]] = {}

    def run(self) -> None:
        with self._step("inputs"):
            self.inputs = self.entry.tensors(self.task.device)
        self.bound = {name: functools.partial(self.calls[name], *self.inputs) for name in self.ways}
        for name in self.ways:
            with self._step(f"first_{name}"):
                self.results[name] = _tensors(self.bound[name]())
        with self._step("times"):
            self._times()
        with self._step("peak"):
            for name, way in self.ways.items():
                way.peak = self.watch.peak(self.bound[name])
        with self._step("errors"):
            self._errors()
        with self._step("kernels"):
            for name, way in self.ways.items():
                way.kernels = self.watch.kernels(self.bound[name])
        if self.duel.ours.same_code:
            names = ("compile_s", "declined", "details")
            kept = {name: getattr(self.duel.ours, name) for name in names}
            self.duel.ours = dataclasses.replace(self.duel.stock, same_code=True, **kept)

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.watch.wait()
        self.duel.locked[name] = round(time.perf_counter() - started, 4)

    def _times(self) -> None:
        limit = self.watch.limit(self.duel.num_bytes)
        timed = self.watch.time(self.bound | ({"limit": limit} if limit else {}))
        for name, way in self.ways.items():
            samples = timed[name].times.samples
            way.us, way.samples = round(statistics.median(samples), 2), len(samples)
            way.low, _, way.high = (round(us, 2) for us in statistics.quantiles(samples, n=4))
            way.launches = sum(timed[name].launches.values()) if timed[name].launches else None
        self.duel.limit_us = round(timed["limit"].times.median_us, 2) if limit else None

    def _errors(self) -> None:
        """Of the first call's results. Without a reference in float64, ours against stock's."""
        try:
            truth, self.duel.reference = _tensors(exact(self.gm, self.inputs)), "float64"
        except Exception as error:
            if lost(told(error)):
                raise
            truth = [t.double() for t in self.results["stock"]]
            self.duel.reference = f"stock, since {told(error)[:200]}"
            self.watch.free()
        for name, way in self.ways.items():
            pairs = zip(self.results[name], truth, strict=True)
            way.errors = [largest_error([(_flat(got), _flat(want).double())]) for got, want in pairs]


def _tensors(results: Any) -> list[Tensor]:
    return [t for t in (results if isinstance(results, tuple | list) else [results]) if isinstance(t, Tensor)]


def _flat(t: Tensor) -> Tensor:
    return t.reshape(1) if t.ndim == 0 else t
