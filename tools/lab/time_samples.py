"""What the fit of predicted times reads: the work of a subgraph's kernels, and microseconds that they took.

The work is that of the regions as planned for an H200, of the corpus and of norms, and of many schedules of
one region. The times are those of a file that `tools/duel.py` wrote, of the first table of docs/benchmark.md,
and of the sweeps of `tools/tune.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from support.compilers import looking
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

from mixorder import pipeline
from mixorder.ir.program import LoopProgram
from mixorder.options import Options
from mixorder.record import RegionRecord
from mixorder.report import collect
from mixorder.schedule import apart, tile
from mixorder.schedule.apart import Kernel
from mixorder.schedule.cost import Traffic, workspace_bytes
from mixorder.schedule.device import H200, DeviceInfo
from mixorder.schedule.facts import facts_of
from mixorder.schedule.fused import Fused, fused_kernels
from mixorder.schedule.kernel_time import Times
from mixorder.schedule.plan import Plan
from mixorder.strategies import STRATEGIES, Strategy
from mixorder.transform.column_blocks import in_blocks
from mixorder.tune.cache import _like

from .corpus import Entry
from .corpus import load as load_corpus
from .duels import load
from .schedules import ABSENT, plan_of
from .schedules import Target as Measured
from .schedules import read as read_sweeps
from .targets import case_targets, entry_targets, norm_step, norm_target


class Seen(Exception):
    """The graph was looked at, and need not run."""


@dataclasses.dataclass(frozen=True)
class Blocked:
    """A region whose reductions end in blocks: `Fused` does not describe its kernel."""

    record: RegionRecord

    def us(self, device: DeviceInfo, times: Times) -> float:
        """Microseconds of all kernels."""
        record, strategy = self.record, strategy_of(self.record)
        facts = strategy.facts(record.loops)
        nests = record.apart, record.loops
        takes = strategy.predict(*nests, record.schedule, facts, record.traffic, device, times)
        return takes.fused_us


@dataclasses.dataclass(frozen=True)
class Sample:
    """A subgraph whose nodes are all in regions. `stock_us`, `ours_us`: measured; None if stock was not.
    `ours`, `stock`: the kernels of each region. `weight`: in the mean error."""

    key: str
    kind: str
    families: frozenset[str]
    recipes: frozenset[str]
    space: str
    stock_us: float | None
    ours_us: float
    ours: tuple[Fused | Blocked, ...]
    stock: tuple[tuple[Kernel, ...], ...]
    weight: float = 1.0

    def predicted(self, times: Times) -> tuple[float, float]:
        """Microseconds of Inductor's kernels, and of ours."""
        # Each region's time has the start of a graph in it.
        more = times.launch_us - times.start_us
        stock = sum(apart.microseconds(kernels, H200, times) + more for kernels in self.stock) - more
        ours = sum(fused.us(H200, times) + more for fused in self.ours) - more
        return stock, ours


def samples(corpus: Path, results: Sequence[Path]) -> Iterator[Sample]:
    """The duels in which mixorder's kernels do all the work: no other kernel ran beside them. Of an entry
    that was timed several times, the last in which it had a region. Tuned ones are left out: some ran without
    the profiler, so that nothing tells what ran beside them."""
    entries = {entry.key: entry for entry in load_corpus(corpus)}
    plain = ([d for d in records if not d.tuned] for records in load(results))
    for duel in (([d for d in records if d.ours.regions] or records)[-1] for records in plain if records):
        names = {name for region in duel.ours.regions for name in region["kernels"]}
        copies = sum(region["traffic"]["copies"] for region in duel.ours.regions)
        others = [name for name, _ in duel.ours.kernels if name not in names]
        if not (duel.timed and names and len(others) <= copies and duel.key in entries):
            continue
        entry = entries[duel.key]
        records = _as_they_ran(planned(entry), duel.ours.regions)
        if records is not None:
            assert duel.stock.us is not None and duel.ours.us is not None
            families = frozenset(family for family, *_ in duel.where)
            recipes = frozenset(recipe for _, recipe, *_ in duel.where)
            times = duel.stock.us, duel.ours.us
            yield _sample(duel.key, duel.kind, families, recipes, records, *times)


def benchmarked(page: Path) -> Iterator[Sample]:
    """Norms in bfloat16, by the first table of docs/benchmark.md: the limit in us, percent of it."""
    first = page.read_text().partition("| M x N |")[2].partition("\n\n")[0]
    for line in first.splitlines()[2:]:
        size, limit, *shares = (cell.strip(" *") for cell in line.strip("|").split("|"))
        rows, cols = map(int, size.split(" x "))
        for norm, (stock, _, _, ours) in (("rms", shares[:4]), ("layer", shares[4:])):
            times = [100 * float(limit) / float(share) for share in (stock, ours)]
            yield _of_norm(norm, rows, cols, *times)


def swept(sweeps: Sequence[Path], corpus: Path) -> Iterator[Sample]:
    """Schedules of the targets of files of `tools/tune.py`: the fastest ones, and some of the others. The
    weights of a target's add up to 1, and fall with the square of the time."""
    for target in (target for path in sweeps for target in read_sweeps(path).targets):
        program = program_of(target, corpus)
        ran = sorted((r for r in target.rows if r.us), key=lambda r: r.us or 0.0)
        chosen = ran[:FASTEST] + ran[FASTEST::EVERY]
        weights = [(chosen[0].us / row.us) ** 2 for row in chosen if row.us and chosen[0].us]
        for strategy in STRATEGIES:
            own = [(r, w) for r, w in zip(chosen, weights, strict=True) if r.strategy == strategy.name]
            if not own:
                continue
            strategy.applies(program)
            whole = strategy.transform(program)
            for row, weight in own:
                assert row.us is not None
                lanes = row.schedule.lanes * row.schedule.group
                # Blocks of columns of other widths than the strategy's stand under the name of another.
                loops = in_blocks(whole, lanes) if lanes < program.tile_axes[1].size else whole
                kernels = (_scheduled(strategy, loops, row.schedule),)
                name = frozenset({target.name})
                rest = (target.name, None, row.us, kernels, (), weight / sum(weights))
                yield Sample(target.name, "sweep", name, frozenset(), *rest)


FASTEST, EVERY = 8, 6  # of a target's schedules


def program_of(target: Measured, corpus: Path) -> LoopProgram:
    """The merged program of a sweep's target, by its name."""
    name, dtype = target.name, getattr(torch, target.dtype.removeprefix("torch."))
    if name.startswith("entry "):
        found = entry_targets(corpus, name.split()[1].strip(","))
    elif ", region" in name:
        found = case_targets(name.rpartition(", region")[0], dtype)
    else:
        kind, _, size = name.partition(" ")
        found = [norm_target(kind, *map(int, size.split("x")), dtype)]
    return next(one.program for one in found if one.name == name)


def _scheduled(strategy: Strategy, loops: LoopProgram, schedule: Plan) -> Fused:
    placed = strategy.place(loops, schedule)
    moved = Traffic(0, 0, workspace_bytes(placed, schedule.partials), 0, 0)
    return fused_kernels(placed, schedule, strategy.facts(loops), moved)


def _of_norm(norm: str, rows: int, cols: int, stock_us: float | None, ours_us: float) -> Sample:
    with FakeTensorMode(allow_non_fake_inputs=True):
        step = norm_step(norm, rows, cols, torch.bfloat16)
        torch._dynamo.reset()
        records = _seen(
            lambda look: step(functools.partial(torch.compile, backend=look, dynamic=False)), True
        )
    name = frozenset({f"benchmark/{norm}"})
    return _sample(f"{norm} {rows}x{cols}", norm, name, frozenset({"bf16"}), records, stock_us, ours_us)


def _sample(
    key: str,
    kind: str,
    families: frozenset[str],
    recipes: frozenset[str],
    records: Sequence[RegionRecord],
    stock_us: float | None,
    ours_us: float,
) -> Sample:
    space = " + ".join(record.space for record in records)
    stock = tuple(map(_of_inductor, records))
    return Sample(key, kind, families, recipes, space, stock_us, ours_us, tuple(map(fused, records)), stock)


def _as_they_ran(
    records: Sequence[RegionRecord], regions: Sequence[dict[str, Any]]
) -> list[RegionRecord] | None:
    """The regions with the schedules that were timed; None if they are planned in another way now."""
    now = [(r.space, r.num_nodes, r.strategy) for r in records]
    if now != [(r["space"], r["num_nodes"], r["strategy"]) for r in regions]:
        return None
    ran = [_plan(region["schedule"], r.schedule) for region, r in zip(regions, records, strict=True)]
    # A mailbox has the size that the plan asks for.
    if any(s is None or s.group > 1 and s != r.schedule for s, r in zip(ran, records, strict=True)):
        return None
    return [dataclasses.replace(r, schedule=s) for s, r in zip(ran, records, strict=True)]


def _plan(fields: dict[str, Any], now: Plan) -> Plan | None:
    """The plan that was timed, of an older file as well; None for tiles of blocks that are others now."""
    if "tile" not in fields:
        return _like(now, fields)
    if fields.get("extents"):
        timed = tuple(fields["extents"]), fields["tile"]["num_warps"]
        return now if timed == (now.extents, now.launch.num_warps) else None
    return plan_of({**ABSENT, **fields, **fields["tile"]}, fields["overlap"])


def strategy_of(record: RegionRecord) -> Strategy:
    return next(s for s in STRATEGIES if s.name == record.strategy.split(",")[0])


def fused(record: RegionRecord) -> Fused | Blocked:
    """The kernels of a region's record, for a prediction."""
    strategy = strategy_of(record)
    if strategy.blocked:
        return Blocked(record)
    return fused_kernels(record.loops, record.schedule, facts_of(record.loops), record.traffic)


def _of_inductor(record: RegionRecord) -> tuple[Kernel, ...]:
    """Inductor's kernels for a region's record."""
    blocked = strategy_of(record).blocked
    return tuple(tile.kernels_of(record.apart) if blocked else apart.kernels_of(record.apart, H200))


def planned(entry: Entry) -> list[RegionRecord]:
    """The regions of a subgraph, whatever is predicted of them; nothing is run."""
    with torch.no_grad(), FakeTensorMode():
        inputs = [torch.empty_strided(*i.hint, dtype=getattr(torch, i.dtype)) for i in entry.inputs]
        return _seen(lambda look: look(entry.module("cpu"), inputs), False)


def _seen(run: Callable[[Callable[..., Any]], Any], raw: bool) -> list[RegionRecord]:
    """The regions of the graphs that `run` hands to what looks at them. `raw`: without Inductor's passes."""
    found: list[RegionRecord] = []
    options = Options(enabled=True, interpret=True, min_numel=0)

    def look(gm: GraphModule, _: Sequence[object]) -> None:
        if raw:
            post_grad_passes(gm, is_inference=False)
        with collect() as records:
            pipeline.run(gm.graph, options)
        found.extend(r for r in records if isinstance(r, RegionRecord))
        if not raw:
            raise Seen

    with contextlib.suppress(Seen):
        run(looking(look))
    return found
