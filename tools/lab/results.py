"""The records of the benchmark: a case, a provider's result on it, a row of results, and the report.

Plain numbers, which JSON preserves. Independent of providers, tables and the command line.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .processes import write_whole


@dataclass(frozen=True)
class Case:
    """One row of the benchmark. The dtypes are names such as "bf16".

    `residual`: x goes on beside the norm, so that its gradient has a second part, which is added to dx.
    """

    norm: str
    dtype: str
    weight_dtype: str
    rows: int
    cols: int
    residual: bool = False

    @property
    def shape(self) -> str:
        return f"{self.rows}x{self.cols}"


@dataclass
class Result:
    """One provider's result on one case. Times are in microseconds; `seconds` is the total duration.

    `alone_us` is the median when it was timed alone, if it was then timed in turns with the others.
    """

    status: str = "running"  # running, ok, err, absent
    error: str = ""
    note: str = ""
    us: float | None = None
    us_min: float | None = None
    us_max: float | None = None
    alone_us: float | None = None
    reps: int = 0
    launches: dict[str, int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    repeatable: bool | None = None  # two runs gave the same bits
    seconds: float = 0.0

    def take(self, samples: Sequence[float]) -> None:
        """Microseconds of replays."""
        self.us, self.reps = statistics.median(samples), len(samples)
        self.us_min, self.us_max = min(samples), max(samples)

    @property
    def reason(self) -> str:
        """The error on one line."""
        return " ".join(self.error.split())[:200]


@dataclass
class Row:
    """A case, its results, and medians of its limit: microseconds, of the first turns and of the last."""

    case: Case
    limit_medians: list[float] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)

    @property
    def limit_us(self) -> float | None:
        return statistics.fmean(self.limit_medians) if self.limit_medians else None

    @property
    def spread(self) -> float:
        """Percent between the lowest and the highest median of the limit."""
        low, high = min(self.limit_medians), max(self.limit_medians)
        return (high - low) / statistics.fmean(self.limit_medians) * 100

    def share(self, provider: str) -> float | None:
        """Percent of the limit that a provider reaches; None without a time or with a failure."""
        result = self.results.get(provider)
        if result is None or result.status != "ok" or not result.us or self.limit_us is None:
            return None
        return self.limit_us / result.us * 100


@dataclass
class Report:
    """Everything measured so far; `started` in `meta` is seconds since the epoch."""

    meta: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def row(self, case: Case) -> Row:
        for row in self.rows:
            if row.case == case:
                return row
        self.rows.append(Row(case))
        return self.rows[-1]

    def finished(self) -> int:
        return sum(r.status != "running" for row in self.rows for r in row.results.values())

    def older_than(self, seconds: float | None) -> bool:
        return seconds is not None and time.time() - self.meta["started"] > seconds

    def close_running(self, reason: str) -> None:
        """Mark results that were running when their process ended as errors."""
        for result in (r for row in self.rows for r in row.results.values()):
            if result.status == "running":
                result.status, result.error = "err", reason

    def tables(self) -> dict[str, list[Row]]:
        """Rows of one norm and one pair of dtypes under a title; only rows that have results."""
        tables: dict[str, list[Row]] = {}
        for row in self.rows:
            form = " and residual" if row.case.residual else ""
            title = f"{row.case.norm}{form} {row.case.dtype} (weights {row.case.weight_dtype})"
            if row.results or row.limit_medians:
                tables.setdefault(title, []).append(row)
        return tables

    def save(self, path: Path) -> None:
        """Write atomically, with limits and shares for readers; `load` computes them again."""
        data = dataclasses.asdict(self)
        for row, plain in zip(self.rows, data["rows"], strict=True):
            plain["derived"] = {
                "limit_us": row.limit_us,
                "share_percent": {name: row.share(name) for name in row.results},
            }
        write_whole(path, json.dumps(data, indent=1))

    @classmethod
    def load(cls, path: Path) -> Report:
        data = json.loads(path.read_text())
        rows = []
        for plain in data["rows"]:
            del plain["derived"]
            results = {name: Result(**r) for name, r in plain.pop("results").items()}
            rows.append(Row(Case(**plain.pop("case")), results=results, **plain))
        return cls(data["meta"], rows)
