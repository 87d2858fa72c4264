"""Reports of a compile: counters, log lines, a trace artifact, dump files, and records."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from .errors import Decline, MixorderError
from .inductor.telemetry import count, trace_json
from .record import RegionRecord, as_dict

__all__ = ["Dump", "RegionRecord", "collect", "declined", "failed", "finished", "fused"]

log = logging.getLogger("mixorder")


# Not a context variable: autograd compiles a GPU's backward on a thread of its own.
_collectors: list[tuple[list[RegionRecord | Decline], list[MixorderError]]] = []


@contextlib.contextmanager
def collect(failures: list[MixorderError] | None = None) -> Iterator[list[RegionRecord | Decline]]:
    """Collect a record of every fused region, and every decline, while the context is open, on any thread.
    Bugs that did not stop the pass are added to `failures`."""
    records: list[RegionRecord | Decline] = []
    _collectors.append((records, [] if failures is None else failures))
    try:
        yield records
    finally:
        _collectors[:] = [collector for collector in _collectors if collector[0] is not records]


def fused(record: RegionRecord) -> None:
    count("fused_regions")
    log.info(
        "%s: fused %s, inner %s, outer %s, %.0f us predicted instead of %.0f (the pass took %.1f ms) -> %s",
        record.name,
        record.space,
        ", ".join(reduction.name for reduction in record.inner) or "none",
        ", ".join(reduction.name for reduction in record.outer) or "none",
        record.expected.ours_us,
        record.expected.apart_us,
        record.planning.pass_ms,
        ", ".join(k.name for k in record.kernels),
    )
    for records, _ in list(_collectors):
        records.append(record)


def given_back(regions: Sequence[RegionRecord]) -> None:
    """Inductor could not compile the graph with these regions, and compiles it without them."""
    count("fused_regions", -len(regions))
    count("given_back_regions", len(regions))
    log.info("compiled without these regions after all: %s", ", ".join(region.name for region in regions))
    for records, _ in list(_collectors):
        records[:] = [record for record in records if not any(record is region for region in regions)]


def declined(decline: Decline) -> None:
    count(f"declined:{decline.reason.value}")
    log.info("not fused: %s. %s", decline, decline.reason.explanation)
    for records, _ in list(_collectors):
        records.append(decline.kept())


def failed(error: MixorderError) -> None:
    """A pair was left to Inductor because of a bug."""
    for _, failures in list(_collectors):
        failures.append(error)


def finished(records: Sequence[RegionRecord | Decline], seconds: float) -> None:
    """Log how many regions of a graph were fused, and how long the pass took. A graph without any pair logs
    nothing. The artifact `mixorder` has all records of the graph, for tlparse."""
    if not records:
        return
    num_fused = sum(isinstance(record, RegionRecord) for record in records)
    regions = "1 region" if num_fused == 1 else f"{num_fused} regions"
    log.info("%s fused, %d declined, in %.0f ms", regions, len(records) - num_fused, 1e3 * seconds)
    trace_json(lambda: json.dumps([as_dict(record) for record in records], indent=1))


class Dump:
    """Writes a numbered text file per stage and region under `directory`, unless that is empty.

    If a file cannot be written, it warns and writes nothing more: the compile goes on."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.root: Path | None = None

    def write(self, region: str, name: str, content: object) -> None:
        if not self.directory:
            return
        try:
            folder = self._folder() / region
            folder.mkdir(parents=True, exist_ok=True)
            number = len(list(folder.iterdir()))
            (folder / f"{number:02d}_{name}").write_text(f"{content}\n")
        except OSError as error:
            self.directory = ""
            warnings.warn(f"mixorder_dump_dir (MIXORDER_DUMP): nothing is dumped. {error}", stacklevel=2)

    def _folder(self) -> Path:
        """The folder of the graph, which the first call names."""
        if self.root is None:
            taken = (Path(self.directory) / f"graph{i}" for i in itertools.count())
            self.root = next(path for path in taken if not path.exists())
        return self.root
