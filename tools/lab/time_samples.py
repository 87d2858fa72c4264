"""What the fit of predicted times reads: the work of a subgraph's kernels, and microseconds that they took.

The work is that of the regions as planned for an H200: of the corpus, of norms, and of GELU. The times are
those of a file that `tools/duel.py` wrote, of the first table of docs/benchmark.md, and of the sweeps of
`tools/tune.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor.fx_passes.post_grad import post_grad_passes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

from mixorder import pipeline
from mixorder.ir.program import BufferRole
from mixorder.options import Options
from mixorder.record import RegionRecord
from mixorder.report import collect
from mixorder.schedule import apart
from mixorder.schedule.apart import Kernel
from mixorder.schedule.device import H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.kernel_time import Times
from mixorder.schedule.predicted import Fused, fused_kernels
from mixorder.strategies import STRATEGIES

from .compilers import looking
from .corpus import Entry
from .corpus import load as load_corpus
from .duels import load
from .schedules import read as read_sweeps
from .targets import norm_step


class Seen(Exception):
    """The graph was looked at, and need not run."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """A subgraph whose nodes are all in regions. `stock_us`, `ours_us`: measured; None if stock was not.
    `ours`, `stock`: the kernels of each region."""

    key: str
    kind: str
    families: frozenset[str]
    recipes: frozenset[str]
    space: str
    stock_us: float | None
    ours_us: float
    ours: tuple[Fused, ...]
    stock: tuple[tuple[Kernel, ...], ...]

    def predicted(self, times: Times) -> tuple[float, float]:
        """Microseconds of Inductor's kernels, and of ours."""
        # Each region's time has the start of a graph in it.
        more = times.launch_us - times.start_us
        stock = sum(apart.microseconds(kernels, H200, times) + more for kernels in self.stock) - more
        ours = sum(fused.us(H200, times) + more for fused in self.ours) - more
        return stock, ours


def samples(corpus: Path, results: Sequence[Path]) -> Iterator[Sample]:
    """The duels in which mixorder's kernels do all the work: no other kernel ran beside them."""
    entries = {entry.key: entry for entry in load_corpus(corpus)}
    for duel in (records[-1] for records in load(results)):
        names = {name for region in duel.ours.regions for name in region["kernels"]}
        copies = sum(region["traffic"]["copies"] for region in duel.ours.regions)
        others = [name for name, _ in duel.ours.kernels if name not in names]
        if not (duel.timed and names and len(others) <= copies and duel.key in entries):
            continue
        entry = entries[duel.key]
        records = planned(entry)
        if _as_they_ran(records, duel.ours.regions):
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


def swept(sweeps: Path) -> Iterator[Sample]:
    """GELU and the bias before it, by the best schedules of a file of `tools/tune.py`."""
    for target in read_sweeps(sweeps).targets:
        name, _, size = target.name.partition(" ")
        if name.startswith("gelu"):
            best = min(row.us for row in target.rows if row.us)
            yield _of_norm(name, *map(int, size.split("x")), None, best)


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
    stock = tuple(tuple(apart.kernels_of(record.apart, H200)) for record in records)
    return Sample(key, kind, families, recipes, space, stock_us, ours_us, tuple(map(fused, records)), stock)


def _as_they_ran(records: Sequence[RegionRecord], regions: Sequence[dict[str, Any]]) -> bool:
    """Whether the regions are planned now as they were when they were timed."""
    now = [(r.space, r.num_nodes, dataclasses.asdict(r.schedule)) for r in records]
    return now == [(r["space"], r["num_nodes"], r["schedule"]) for r in regions]


def fused(record: RegionRecord) -> Fused:
    """The kernels of a region's record, for a prediction."""
    strategy = next(s for s in STRATEGIES if s.name == record.strategy.split(",")[0])
    stretch = strategy.stretch(len(record.loops.role(BufferRole.WORKSPACE)))
    return fused_kernels(record.loops, record.schedule, facts_of(record.loops), record.traffic, stretch)


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
