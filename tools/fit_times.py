"""Fit the numbers behind predicted times to duels (files of `tools/duel.py`) of a corpus's subgraphs.

Beside them stand the norms of docs/benchmark.md, and the schedules of tools/data/h200.json and entries.json:
a target of theirs counts as much as a duel of both ways.

    python tools/fit_times.py CORPUS DUELS            # the table
    python tools/fit_times.py CORPUS DUELS --write    # and mixorder/schedule/times.json

Each number is changed in turn by a factor, as long as the mean of |log(predicted / measured)| falls. Every
fifth family is left out, in five turns; the table has the errors of families that were left out. A decision
is right if fusing was predicted to be faster and was, or if both ways are within 3% or 1 us.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.tables import table
from lab.time_samples import Sample, benchmarked, samples, swept

from mixorder.schedule.kernel_time import FILE, TIMES, Times

ROOT = Path(__file__).resolve().parents[1]
PAGE, DATA = ROOT / "docs" / "benchmark.md", ROOT / "tools" / "data"
SWEEPS = [DATA / "h200.json", DATA / "entries.json"]
FACTORS = (1.3, 1.1, 1.03)
FOLDS = 5
LIMITS = {  # what is physically possible; else a number takes over what another stands for
    "start_us": (3.0, 3.8),
    "sharpness": (2.0, 6.0),
    "l2_mb_us": (4.0, 12.0),
    "share": (0.2, 1.1),
    "latency_us": (0.7, 5.0),
    "instructions_sm_us": (150_000.0, 320_000.0),  # 128 threads each cycle, of which counting misses some
    "requests_sm_us": (5000.0, 56000.0),  # 32 threads each cycle
    "lines_sm_us": (790.0, 930.0),  # measured: docs/tuning.md, "First-level cache and narrow loads"
    "program_us": (0.001, 0.3),
    "row_us": (0.005, 0.3),
    "turn_us": (0.02, 1.0),
    "tile_us": (0.005, 0.5),
    "in_flight_us": (0.5, 2.0),
    "full_warps": (3.0, 64.0),
    "full_chains": (4.0, 256.0),
    "uneven": (0.05, 1.5),
    "step_us": (0.01, 1.0),
    "level_us": (0.01, 0.5),
    "warps_us": (0.005, 0.5),
    "exchange_us": (0.01, 4.0),
    "parts_us": (0.001, 0.5),
    "load_us": (0.3, 3.0),
    "narrow": (0.05, 1.5),
    "spill_us": (0.005, 2.0),
    "tree_us": (0.02, 1.2),
    "plain_tree_us": (0.02, 1.2),
}
LEVEL, LEVEL_US = 0.03, 1.0  # of two times that count as equal


def error(times: Times, data: Sequence[Sample]) -> float:
    """Weighted mean of |log(predicted / measured)|, of Inductor's kernels and of ours."""
    found = [(s.weight, abs(math.log(p / m))) for s in data for p, m in both(times, s)]
    return sum(weight * off for weight, off in found) / sum(weight for weight, _ in found)


def both(times: Times, sample: Sample) -> Iterator[tuple[float, float]]:
    """Predicted and measured microseconds, of Inductor's kernels where they were measured, and of ours."""
    found = zip(sample.predicted(times), (sample.stock_us, sample.ours_us), strict=True)
    return ((predicted, us) for predicted, us in found if us is not None)


def fitted(times: Times, data: Sequence[Sample]) -> Times:
    """The numbers with the least error, from `times` on."""
    best = error(times, data)
    for factor in FACTORS:
        while True:
            before = best
            for change in changes(times):
                for f in (factor, 1 / factor):
                    tried = change(times, f)
                    if (found := error(tried, data)) < best - 1e-6:
                        times, best = tried, found
                        break
            if best > before - 1e-5:
                break
    return times


def changes(times: Times) -> list[Callable[[Times, float], Times]]:
    """What may be changed, by a factor."""

    def number(name: str) -> Callable[[Times, float], Times]:
        low, high = LIMITS.get(name, (0.0, math.inf))
        return lambda t, f: dataclasses.replace(t, **{name: min(high, max(low, getattr(t, name) * f))})

    def of_kind(name: str, kind: str) -> Callable[[Times, float], Times]:
        low, high = LIMITS[name]
        return lambda t, f: dataclasses.replace(
            t, **{name: getattr(t, name) | {kind: min(high, max(low, getattr(t, name)[kind] * f))}}
        )

    def of_fused(name: str) -> Callable[[Times, float], Times]:
        low, high = LIMITS[name]

        def change(t: Times, f: float) -> Times:
            value = min(high, max(low, getattr(t.fused, name) * f))
            return dataclasses.replace(t, fused=dataclasses.replace(t.fused, **{name: value}))

        return change

    kinds = ("share", "latency_us", "turn_us", "tile_us")
    names = [f.name for f in dataclasses.fields(times) if f.name not in (*kinds, "memory_mb_us", "fused")]
    found = [
        *map(number, names),
        *map(of_fused, (f.name for f in dataclasses.fields(times.fused) if f.name in LIMITS)),
    ]
    return found + [of_kind(name, kind) for name in kinds for kind in getattr(times, name)]


def left_out(
    data: Sequence[Sample], always: Sequence[Sample], folds: int = FOLDS
) -> list[tuple[Sample, Times]]:
    """Each sample with the numbers fitted to the families of other folds, and to what is `always` there."""
    families = sorted({min(s.families) for s in data})
    fold = {family: i % folds for i, family in enumerate(families)}
    found = []
    for i in range(folds):
        inside = {name for name, number in fold.items() if number == i}
        rest = [s for s in data if not s.families & inside]
        times = fitted(TIMES, [*rest, *always])
        found += [(s, times) for s in data if min(s.families) in inside]
    return found


def right(sample: Sample, times: Times) -> bool:
    """Whether the choice by prediction was right, or made no difference."""
    stock, ours = sample.predicted(times)
    assert sample.stock_us is not None
    off = abs(sample.ours_us - sample.stock_us)
    level = off <= max(LEVEL_US, LEVEL * min(sample.stock_us, sample.ours_us))
    return level or (ours < stock) == (sample.ours_us < sample.stock_us)


def figures(found: Sequence[tuple[Sample, Times]]) -> list[str]:
    """Median and 95th percentile of both errors in percent, and right decisions in percent; empty cells where
    Inductor was not measured."""
    errors = [[abs(p / m - 1) for p, m in both(times, s)] for s, times in found]
    compared = [one for one in found if one[0].stock_us is not None]
    cells = [] if compared else ["", ""]
    for way in zip(*errors, strict=True):
        ranked = sorted(way)
        cells += [
            f"{100 * statistics.median(ranked):.1f}",
            f"{100 * ranked[int(0.95 * (len(ranked) - 1))]:.1f}",
        ]
    decided = f"{100 * statistics.mean(right(*one) for one in compared):.1f}" if compared else ""
    return [str(len(found)), *cells, decided]


def worst(found: Sequence[tuple[Sample, Times]], most: int) -> Iterator[list[str]]:
    """The largest errors, and all wrong decisions."""

    def off(one: tuple[Sample, Times]) -> float:
        return max(abs(math.log(p / m)) for p, m in both(one[1], one[0]))

    ranked = sorted(found, key=off, reverse=True)
    chosen = ranked[:most] + [one for one in ranked[most:] if not right(*one)]
    for sample, times in chosen:
        cells = [f"{m:.1f} ({p:.1f})" for p, m in both(times, sample)]
        kinds = ", ".join(k.kind.value for kernels in sample.stock for k in kernels)
        where = f"{min(sample.families)} {min(sample.recipes)}"
        yield [sample.key[:8], where, sample.space, kinds, *cells, "" if right(sample, times) else "wrong"]


def rounded_to_4(value: Any) -> Any:
    """A number, or those of a dict, to four digits."""
    if isinstance(value, dict):
        return {kind: rounded_to_4(number) for kind, number in value.items()}
    return float(f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("duels", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="write the numbers to times.json")
    parser.add_argument("--folds", type=int, default=FOLDS, help="turns of families left out; 0: none")
    parser.add_argument("--worst", type=int, default=15, metavar="N", help="rows of the second table")
    args = parser.parse_args()
    data = list(samples(args.corpus, args.duels))
    norms, schedules = list(benchmarked(PAGE)), list(swept(SWEEPS, args.corpus))
    always = 2 * norms + 2 * schedules
    times = fitted(TIMES, data + always)
    names = ["numbers", "what", "samples", "Inductor median %", "p95 %", "ours median %", "p95 %", "right %"]
    others = left_out(data, always, args.folds) if args.folds else []
    rows = [
        ["before", "duels", *figures([(s, TIMES) for s in data])],
        ["fitted", "duels", *figures([(s, times) for s in data])],
        ["fitted", "norms of the benchmark", *figures([(s, times) for s in norms])],
        ["fitted", "schedules", *figures([(s, times) for s in schedules])],
    ]
    if others:
        rows.append(["fitted, families left out", "duels", *figures(others)])
    print(table(names, rows))
    print()
    columns = [
        "key",
        "from",
        "space",
        "Inductor's kernels",
        "Inductor us (predicted)",
        "ours us (predicted)",
        "",
    ]
    print(table(columns, worst(others or [(s, times) for s in data], args.worst)))
    print()
    print(json.dumps(dataclasses.asdict(times)))
    if args.write:
        stored = json.loads(FILE.read_text())
        rounded = {name: rounded_to_4(value) for name, value in dataclasses.asdict(times).items()}
        FILE.write_text(json.dumps(stored | {"times": rounded}, indent=2) + "\n")


if __name__ == "__main__":
    main()
