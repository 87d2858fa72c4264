"""What mixorder says about a compile: counters, log lines, dump files, and records for the demo."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

from torch._dynamo.utils import counters

from .codegen.source import KernelSource
from .errors import Decline
from .graph.region import Region
from .schedule.cost import Traffic
from .schedule.schedule import Schedule
from .tune.search import Tuning

log = logging.getLogger("mixorder")


@dataclasses.dataclass(frozen=True)
class RegionRecord:
    """One fused region, as plain data: extents, dtype of the reductions, their nodes, the number of nodes
    that the kernels compute, the schedule, the kernels' text, the bytes they move, and what tuning gained.

    `stage_ms`: milliseconds that the pass spent on the region, by stage. They differ from run to run, and do
    not count when records are compared.
    """

    name: str
    space: str
    rows: int | str
    cols: int
    dtype: str
    inner: tuple[str, ...]
    outer: tuple[str, ...]
    num_nodes: int
    schedule: Schedule
    kernels: tuple[KernelSource, ...]
    traffic: Traffic
    tuning: Tuning | None = None
    stage_ms: tuple[tuple[str, float], ...] = dataclasses.field(default=(), compare=False, repr=False)

    @property
    def pass_ms(self) -> float:
        """Milliseconds that the pass spent on the region, from looking for it to the rewrite."""
        return sum(ms for _, ms in self.stage_ms)


# Not a context variable: autograd compiles a GPU's backward on a thread of its own.
_collectors: list[list[RegionRecord | Decline]] = []


@contextlib.contextmanager
def collect() -> Iterator[list[RegionRecord | Decline]]:
    """Collect a record of every region fused, and every decline, while the context is open, on any thread."""
    records: list[RegionRecord | Decline] = []
    _collectors.append(records)
    try:
        yield records
    finally:
        _collectors[:] = [other for other in _collectors if other is not records]


def describe(
    region: Region,
    schedule: Schedule,
    kernels: tuple[KernelSource, ...],
    traffic: Traffic,
    tuning: Tuning | None = None,
) -> RegionRecord:
    """The record of a region; taken before the rewrite, which erases the region's nodes."""
    val = region.outer[0].args[0].meta["val"]  # type: ignore[union-attr]
    return RegionRecord(
        region.name,
        str(region.space),
        region.space.rows if isinstance(region.space.rows, int) else str(region.space.rows),
        int(region.space.cols),
        str(val.dtype),
        tuple(n.name for n in region.inner),
        tuple(n.name for n in region.outer),
        len(region.nodes),
        schedule,
        kernels,
        traffic,
        tuning,
    )


def fused(record: RegionRecord) -> None:
    counters["mixorder"]["fused_regions"] += 1
    log.info(
        "%s: fused %s, inner %s, outer %s, %.1f MB instead of %.1f, in %.1f ms -> %s",
        record.name,
        record.space,
        ", ".join(record.inner),
        ", ".join(record.outer),
        record.traffic.total / 1e6,
        record.traffic.apart / 1e6,
        record.pass_ms,
        ", ".join(k.name for k in record.kernels),
    )
    for records in list(_collectors):
        records.append(record)


def declined(decline: Decline) -> None:
    counters["mixorder"][f"declined:{decline.reason.value}"] += 1
    log.info("not fused: %s. %s", decline, decline.reason.explanation)
    for records in list(_collectors):
        records.append(decline)


def finished(num_fused: int, num_declined: int, seconds: float) -> None:
    """Say what became of a graph and how long the pass took; nothing where there was nothing to fuse."""
    if num_fused or num_declined:
        regions = "1 region" if num_fused == 1 else f"{num_fused} regions"
        log.info("%s fused, %d declined, in %.0f ms", regions, num_declined, 1e3 * seconds)


class Dump:
    """Writes one numbered text file per stage under `directory`; writes nothing if that is empty."""

    def __init__(self, directory: str) -> None:
        self.root = None
        if directory:
            taken = (Path(directory) / f"graph{i}" for i in itertools.count())
            self.root = next(path for path in taken if not path.exists())

    def write(self, region: str, name: str, content: object) -> None:
        if self.root is None:
            return
        folder = self.root / region
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.iterdir()))
        (folder / f"{number:02d}_{name}").write_text(f"{content}\n")
