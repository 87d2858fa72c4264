"""What the fit of predicted times reads: the work of a subgraph's kernels, and microseconds that they took.

The work is that of the corpus' regions as planned for an H200. The times are those of a file that
`tools/draw.py` wrote.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from support.compilers import looking
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

from mixorder import pipeline
from mixorder.options import Options
from mixorder.record import RegionRecord
from mixorder.report import collect
from mixorder.schedule import baseline, tile
from mixorder.schedule.baseline import Kernel
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.facts import facts_of
from mixorder.schedule.fused import Fused, fused_kernels
from mixorder.schedule.kernel_time import Times
from mixorder.schedule.plan import Exchanged, Launch, Plan, SecondStage, Walk, Within
from mixorder.schedule.predicted import Case
from mixorder.strategies import STRATEGIES, Strategy
from mixorder.tune.cache import _like

from .corpus import Entry
from .corpus import load as load_corpus
from .duels import load


class Seen(Exception):
    """The graph was looked at, and need not run."""


@dataclasses.dataclass(frozen=True)
class TileLocal:
    """A region whose reductions end in blocks: `Fused` does not describe its kernel."""

    record: RegionRecord

    def us(self, device: DeviceInfo, times: Times) -> float:
        """Microseconds of all kernels."""
        record, strategy = self.record, strategy_of(self.record)
        facts = strategy.facts(record.loops)
        nests = record.planning.lowered, record.loops
        takes = strategy.predict(Case(*nests, record.schedule, facts, record.traffic, device, times))
        return takes.fused_us


@dataclasses.dataclass(frozen=True)
class Sample:
    """A subgraph whose nodes are all in regions.

    `stock_us`, `ours_us`: measured.
    `ours`, `stock`: the kernels of each region.
    """

    key: str
    kind: str
    families: frozenset[str]
    recipes: frozenset[str]
    space: str
    stock_us: float
    ours_us: float
    ours: tuple[Fused | TileLocal, ...]
    stock: tuple[tuple[Kernel, ...], ...]

    def predicted(self, times: Times) -> tuple[float, float]:
        """Microseconds of Inductor's kernels, and of ours."""
        # Each region's time has the start of a graph in it.
        more = times.launch_us - times.start_us
        stock = sum(baseline.microseconds(kernels, H200, times) + more for kernels in self.stock) - more
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
        inductor_kernels = [name for name, _ in duel.ours.kernels if name not in names]
        if not (duel.timed and names and len(inductor_kernels) <= copies and duel.key in entries):
            continue
        entry = entries[duel.key]
        records = _as_they_ran(planned(entry), duel.ours.regions)
        if records is not None:
            assert duel.stock.us is not None and duel.ours.us is not None
            families = frozenset(family for family, *_ in duel.where)
            recipes = frozenset(recipe for _, recipe, *_ in duel.where)
            times = duel.stock.us, duel.ours.us
            yield _sample(duel.key, duel.kind, families, recipes, records, *times)


def _sample(
    key: str,
    kind: str,
    families: frozenset[str],
    recipes: frozenset[str],
    records: Sequence[RegionRecord],
    stock_us: float,
    ours_us: float,
) -> Sample:
    space = " + ".join(str(record.space) for record in records)
    stock = tuple(map(_of_inductor, records))
    return Sample(key, kind, families, recipes, space, stock_us, ours_us, tuple(map(fused, records)), stock)


def _as_they_ran(
    records: Sequence[RegionRecord], regions: Sequence[dict[str, Any]]
) -> list[RegionRecord] | None:
    """The regions with the schedules that were timed; None if they are planned in another way now."""
    now = [(str(r.space), r.strategy) for r in records]
    if now != [(r["space"], r["strategy"]) for r in regions]:
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
    return _of_rows(fields)


def _of_rows(fields: dict[str, Any]) -> Plan:
    """The plan of tiles of rows and columns that an older file has."""
    flat = {"chunks": 1, "max_registers": 0, "finishable": False, **fields, **fields["tile"]}
    return Plan(
        (
            Walk(split=flat["num_splits"], tile=flat["xblock"], period=flat["period"]),
            Walk(
                group=flat["parts"],
                part=flat["part_cols"],
                unroll=flat["chunks"],
                tile=flat["r0_block"] // flat["chunks"],
            ),
        ),
        Launch(flat["num_warps"], flat["num_stages"], flat["max_registers"], flat["overlap"]),
        SecondStage(flat["final_block"], flat["final_warps"], flat["finishable"]),
        Exchanged(flat["depth"]) if flat["depth"] else Within(),
    )


def strategy_of(record: RegionRecord) -> Strategy:
    return next(s for s in STRATEGIES if s.name == record.strategy.split(",")[0])


def fused(record: RegionRecord) -> Fused | TileLocal:
    """The kernels of a region's record, for a prediction."""
    strategy = strategy_of(record)
    if strategy.tile_local:
        return TileLocal(record)
    return fused_kernels(record.loops, record.schedule, facts_of(record.loops), record.traffic)


def _of_inductor(record: RegionRecord) -> tuple[Kernel, ...]:
    """Inductor's kernels for a region's record."""
    tile_local = strategy_of(record).tile_local
    loops = record.planning.lowered
    return tuple(tile.kernels_of(loops) if tile_local else baseline.kernels_of(loops, H200))


def planned(entry: Entry) -> list[RegionRecord]:
    """The regions of a subgraph, whatever is predicted of them; nothing is run."""
    with torch.no_grad(), FakeTensorMode():
        inputs = [torch.empty_strided(*i.hint, dtype=getattr(torch, i.dtype)) for i in entry.inputs]
        return _seen(lambda look: look(entry.module("cpu"), inputs))


def _seen(run: Callable[[Callable[..., Any]], Any]) -> list[RegionRecord]:
    """The regions of the graphs that `run` hands to what looks at them."""
    regions: list[RegionRecord] = []
    options = Options(enabled=True, interpret=True, min_numel=0)

    def look(gm: GraphModule, _: Sequence[object]) -> None:
        with collect() as records:
            pipeline.run(gm.graph, options)
        regions.extend(r for r in records if isinstance(r, RegionRecord))
        raise Seen

    with contextlib.suppress(Seen):
        run(looking(look))
    return regions
