"""The whole family on this GPU: the backward of each case (`support/cases.py`), and of programs as people
write them (`lab/written.py`), by stock Inductor and mixorder.

    python tools/family.py                                    # the cases of docs/lab/family.md
    python tools/family.py --groups unseen "by hand"          # programs: docs/lab/written.md
    python tools/family.py --cases "BatchNorm2d, ReLU" --shape 128,512,28,28
    python tools/family.py --report build/family/family.jsonl --keep c292d97c    # in tools/data/family.jsonl

Per case: the regions that are fused; launches, microseconds (CUDA-graph replay, L2 flushed, median, in turns)
of the backward, or of the function where there is nothing to train; the limit, which is an addition of as
many bytes as have to be read and written; megabytes that the kernels read and write; and the largest relative
error of a result against float64. In --out: `family.jsonl`, a line for each case as it ends, and `family.md`.
--keep adds the outcomes to those that pages show (`tests/tools/test_family.py` compares), with the commit
that was measured. Exit status: 0; 1 if a case has no result, is slower than stock or less accurate.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab import arguments
from lab.measuring import append, known, measured, of_commit, read
from lab.pool import Broken
from lab.tables import head, line

KEPT = Path(__file__).resolve().parent / "data" / "family.jsonl"
TASK_S = 200  # a case that takes longer counts as hung
TO_FINISH_S = 30
SLOWER, SLOWER_US = 1.03, 1.0  # two medians of the same kernels differ by up to this factor, or this
HEAD = ("case", "fused", "launches", "limit, us", "us", "speedup", "%", "MB", "error, stock / mixorder")


def run(args: argparse.Namespace) -> list[Any]:
    """An outcome for each case, in the order in which they end."""
    from lab.family import NAMES, Outcome, Task

    def taken(task: Task, result: Any) -> Outcome:
        if isinstance(result, Broken):
            message = f"{result.how}, exit code {result.code}"
            return Outcome(task.group, task.name, message=message)
        return result

    tasks = [
        Task(group, name, args.device, "", args.shape, args.dtype)
        for group in args.groups
        for name in NAMES[group]
        if any(part in name for part in args.cases)
    ]
    path = args.out / "family.jsonl"
    path.unlink(missing_ok=True)
    return measured("lab.family", tasks, args, path, (TASK_S, TO_FINISH_S), taken, told)


def load(paths: Iterable[Path]) -> list[Any]:
    """The last outcome of each case."""
    from lab.family import Outcome, Way

    found = dict[tuple[str, str], Outcome]()
    for plain in read(paths):
        outcome = Outcome(**known(Outcome, plain))
        stock, ours = (Way(**known(Way, plain[name])) for name in ("stock", "ours"))
        found[outcome.group, outcome.name] = dataclasses.replace(outcome, stock=stock, ours=ours)
    return list(found.values())


def told(outcome: Any) -> str:
    """A line of progress."""
    if outcome.message:
        return f"{outcome.name} FAILED: {outcome.message}"
    return f"{outcome.name}, {outcome.seconds:.0f} s: {outcome.stock.us:.1f} -> {outcome.ours.us:.1f} us"


def tables(outcomes: Sequence[Any]) -> dict[str, str]:
    """By group, a table of its cases, in their order."""
    from lab.family import NAMES

    named = {(one.group, one.name): one for one in outcomes}
    found = dict[str, str]()
    for group, names in NAMES.items():
        rows = [line(cells(named[group, name])) for name in names if (group, name) in named]
        if rows:
            found[group] = "\n".join([head(HEAD), *rows])
    return found


def cells(outcome: Any) -> list[str]:
    """A line of the table."""
    stock, ours, limit = outcome.stock, outcome.ours, outcome.limit_us
    if outcome.message:
        return [outcome.name, " ".join(outcome.message.split())[:120], *[""] * (len(HEAD) - 2)]
    left = [f"left to Inductor: {', '.join(outcome.declined)}"] if outcome.declined else []
    fused = [
        outcome.name,
        "; ".join(outcome.fused + left) or "no pair",
        f"{stock.launches} -> {ours.launches}",
        f"{limit:.1f}",
    ]
    timed = ["-", "-", "-"]
    if limit:
        percents = f"{100 * limit / stock.us:.0f} -> {100 * limit / ours.us:.0f}"
        timed = [f"{stock.us:.1f} -> {ours.us:.1f}", f"{stock.us / ours.us:.2f}", percents]
    moved = f"{stock.num_bytes / 1e6:.1f} -> {ours.num_bytes / 1e6:.1f}"
    return [*fused, *timed, moved, f"{stock.error:.1e} / {ours.error:.1e}"]


def means(outcomes: Sequence[Any]) -> str:
    """Of outcomes with times."""
    shares = [
        100 * statistics.geometric_mean(one.limit_us / getattr(one, name).us for one in outcomes)
        for name in ("stock", "ours")
    ]
    return "Geometric means: {:.0f}% of the limit by stock, {:.0f}% by mixorder.".format(*shares)


def report(outcomes: Sequence[Any]) -> str:
    """The tables, and below each the geometric means of the limit's shares."""
    text = []
    for group, found in tables(outcomes).items():
        timed = [one for one in outcomes if one.group == group and one.ours.us]
        text += [f"### {group.capitalize()}", found, *([means(timed)] if timed else [])]
    return "\n\n".join(text)


def is_wrong(outcome: Any) -> bool:
    """Whether there is no result, or it is slower than stock's, or less accurate."""
    stock, ours = outcome.stock, outcome.ours
    slower = ours.us > max(stock.us * SLOWER, stock.us + SLOWER_US)
    return bool(outcome.message) or slower or not ours.error <= stock.error * 1.05 + 1e-6


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    from lab.family import NAMES, WRITTEN

    parser = arguments.parser(__doc__)
    family = [group for group in NAMES if group not in WRITTEN]
    parser.add_argument("--groups", nargs="+", choices=NAMES, default=family, help=f"default: {family}")
    parser.add_argument("--cases", nargs="+", default=[""], help="only those whose name has one of these")
    parser.add_argument("--shape", type=sizes, help="in place of the cases' own, such as 128,512,28,28")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--report", nargs="+", type=Path, help="only the report, of these outcomes")
    parser.add_argument("--keep", metavar="COMMIT", help="also keep the outcomes, of this commit")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=540, help="in all (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/family")))
    return parser.parse_args(argv)


def sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    outcomes = load(args.report) if args.report else run(args)
    text = report(outcomes)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "family.md").write_text(text + "\n")
    print(text)
    if bad := [one.name for one in outcomes if is_wrong(one)]:
        print(f"\nfailed, slower or less accurate: {'; '.join(bad)}")
    for one in outcomes if args.keep else []:
        append(KEPT, dataclasses.asdict(one) | {"on": of_commit(one.on, args.keep)})
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
