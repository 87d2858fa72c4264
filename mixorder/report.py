"""What mixorder says about a compile: counters, log lines, dump files, and records for the demo."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

from torch._dynamo.utils import counters

from .codegen.source import KernelSource
from .errors import Decline
from .graph.region import Region
from .schedule.schedule import Schedule

log = logging.getLogger("mixorder")
_graph_ids = itertools.count()


@dataclasses.dataclass(frozen=True)
class RegionRecord:
    """One fused region, as plain data: extents, numbers of reductions, the schedule and the kernels' text."""

    name: str
    rows: int
    cols: int
    dtype: str
    inner: tuple[str, ...]
    outer: tuple[str, ...]
    schedule: Schedule
    kernels: tuple[KernelSource, ...]


_collectors: contextvars.ContextVar[tuple[list[RegionRecord | Decline], ...]] = contextvars.ContextVar(
    "mixorder_collectors", default=()
)


@contextlib.contextmanager
def collect() -> Iterator[list[RegionRecord | Decline]]:
    """Collect a record of every region fused, and every decline, while the context is open."""
    records: list[RegionRecord | Decline] = []
    token = _collectors.set((*_collectors.get(), records))
    try:
        yield records
    finally:
        _collectors.reset(token)


def describe(region: Region, schedule: Schedule, kernels: tuple[KernelSource, ...]) -> RegionRecord:
    """The record of a region; taken before the rewrite, which erases the region's nodes."""
    val = region.inner[0].args[0].meta["val"]  # type: ignore[union-attr]
    return RegionRecord(
        region.name,
        region.space.rows,
        region.space.cols,
        str(val.dtype),
        tuple(n.name for n in region.inner),
        tuple(n.name for n in region.outer),
        schedule,
        kernels,
    )


def fused(record: RegionRecord) -> None:
    counters["mixorder"]["fused_regions"] += 1
    log.info(
        "%s: fused %sx%s, inner %s, outer %s -> %s",
        record.name,
        record.rows,
        record.cols,
        ", ".join(record.inner),
        ", ".join(record.outer),
        ", ".join(k.name for k in record.kernels),
    )
    for records in _collectors.get():
        records.append(record)


def declined(decline: Decline) -> None:
    counters["mixorder"][f"declined:{decline.reason.value}"] += 1
    log.info("not fused: %s. %s", decline, decline.reason.explanation)
    for records in _collectors.get():
        records.append(decline)


class Dump:
    """Writes one numbered text file per stage under `directory`; writes nothing if that is empty."""

    def __init__(self, directory: str) -> None:
        self.root = Path(directory) / f"graph{next(_graph_ids)}" if directory else None

    def write(self, region: str, name: str, content: object) -> None:
        if self.root is None:
            return
        folder = self.root / region
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.iterdir()))
        (folder / f"{number:02d}_{name}").write_text(f"{content}\n")
