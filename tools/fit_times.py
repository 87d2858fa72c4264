"""Fit the numbers behind the predicted times of Inductor's kernels to duels of a corpus (`tools/draw.py`).

    python tools/fit_times.py CORPUS DUELS            # the table
    python tools/fit_times.py CORPUS DUELS --write    # and mixorder/schedule/times.json

Each number is changed in turn by a factor, as long as the mean of |log(predicted / measured)| falls. Those of
mixorder's own kernels stay as they are: schedules are compared by them as well. Every fifth family is left
out, in five turns; the table has the errors of families that were left out. A decision is right if fusing was
predicted to be faster and was, or if both ways are within 3% or 1 us.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.tables import table
from lab.time_samples import Sample, samples

from mixorder.schedule.kernel_time import FILE, TIMES, Kind, Times

FACTORS = (1.3, 1.1, 1.03)
FOLDS = 5
LIMITS = {  # what is physically possible; else a number takes over what another stands for
    "share": (0.2, 1.1),
    "kernel_us": (0.7, 5.0),
    "sum_us": (2.0, 20.0),
}
KINDS = (Kind.ROWS, Kind.LOOPED, Kind.COLUMNS, Kind.MIXED)  # ours reach shares of their own
LEVEL, LEVEL_US = 0.03, 1.0  # of two times that count as equal


def error(times: Times, data: Sequence[Sample]) -> float:
    """Mean of |log(predicted / measured)| of Inductor's kernels."""
    return statistics.mean(abs(math.log(s.predicted(times)[0] / s.stock_us)) for s in data)


def fitted(times: Times, data: Sequence[Sample]) -> Times:
    """The numbers with the least error, from `times` on."""
    best = error(times, data)
    for factor in FACTORS:
        while True:
            before = best
            for change in changes():
                for f in (factor, 1 / factor):
                    tried = change(times, f)
                    if (tried_error := error(tried, data)) < best - 1e-6:
                        times, best = tried, tried_error
                        break
            if best > before - 1e-5:
                break
    return times


def changes() -> list[Callable[[Times, float], Times]]:
    """What may be changed, by a factor."""

    def number(name: str) -> Callable[[Times, float], Times]:
        low, high = LIMITS[name]
        return lambda t, f: dataclasses.replace(t, **{name: min(high, max(low, getattr(t, name) * f))})

    def share(kind: Kind) -> Callable[[Times, float], Times]:
        low, high = LIMITS["share"]
        return lambda t, f: dataclasses.replace(
            t, share=t.share | {kind.value: min(high, max(low, t.share[kind.value] * f))}
        )

    return [*map(number, ("kernel_us", "sum_us")), *map(share, KINDS)]


def left_out(data: Sequence[Sample], folds: int = FOLDS) -> list[tuple[Sample, Times]]:
    """Each sample with the numbers fitted to the families of other folds."""
    families = sorted({min(s.families) for s in data})
    fold = {family: i % folds for i, family in enumerate(families)}
    predictions = []
    for i in range(folds):
        inside = {name for name, number in fold.items() if number == i}
        times = fitted(TIMES, [s for s in data if not s.families & inside])
        predictions += [(s, times) for s in data if min(s.families) in inside]
    return predictions


def right(sample: Sample, times: Times) -> bool:
    """Whether the choice by prediction was right, or made no difference."""
    stock, ours = sample.predicted(times)
    off = abs(sample.ours_us - sample.stock_us)
    level = off <= max(LEVEL_US, LEVEL * min(sample.stock_us, sample.ours_us))
    return level or (ours < stock) == (sample.ours_us < sample.stock_us)


def figures(predictions: Sequence[tuple[Sample, Times]]) -> list[str]:
    """Median and 95th percentile of both errors in percent, and right decisions in percent."""
    cells = [str(len(predictions))]
    for way in range(2):
        pairs = ((s.predicted(times)[way], (s.stock_us, s.ours_us)[way]) for s, times in predictions)
        ranked = sorted(abs(p / m - 1) for p, m in pairs)
        cells += [
            f"{100 * statistics.median(ranked):.1f}",
            f"{100 * ranked[int(0.95 * (len(ranked) - 1))]:.1f}",
        ]
    return [*cells, f"{100 * statistics.mean(right(*prediction) for prediction in predictions):.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("duels", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="write the numbers to times.json")
    parser.add_argument("--folds", type=int, default=FOLDS, help="turns of families left out; 0: none")
    args = parser.parse_args()
    data = list(samples(args.corpus, args.duels))
    times = fitted(TIMES, data)
    rows = [
        ["before", *figures([(s, TIMES) for s in data])],
        ["fitted", *figures([(s, times) for s in data])],
    ]
    if args.folds:
        rows.append(["fitted, families left out", *figures(left_out(data, args.folds))])
    names = ["numbers", "samples", "Inductor median %", "p95 %", "ours median %", "p95 %", "right %"]
    print(table(names, rows))
    if args.write:
        stored = json.loads(FILE.read_text())
        fitted_times = stored["times"] | {
            name: float(f"{getattr(times, name):.4g}") for name in ("kernel_us", "sum_us")
        }
        fitted_times["share"] = {kind: float(f"{share:.4g}") for kind, share in times.share.items()}
        FILE.write_text(json.dumps(stored | {"times": fitted_times}, indent=2) + "\n")


if __name__ == "__main__":
    main()
