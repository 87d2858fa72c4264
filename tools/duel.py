"""Duels: each subgraph of a corpus by stock Inductor as shipped and with mixorder, on this GPU.

    python tools/duel.py CORPUS --out duels --seconds 540             # the most frequent first
    python tools/duel.py CORPUS --out more --skip duels/duels.jsonl   # the others
    python tools/duel.py CORPUS --out all --left duels/duels.jsonl --fuse-all  # was it right not to fuse?
    python tools/duel.py CORPUS --out tuned --keys 5d27a8 --tuned    # by mixorder_autotune
    python tools/duel.py --report duels/duels.jsonl more/duels.jsonl  # no GPU

Processes compile side by side; what runs on the GPU runs alone (`lab/duel.py`). In --out: `duels.jsonl`,
a line per entry as it ends (`lab/duels.py` has the fields), so that a run that is cut off loses nothing;
`duels.md`, the report; `duels.png`, a histogram of the speedups; with --code `code.jsonl.gz`, stock's output
code. Exit status: 0, or 1 if an entry has no result.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab import arguments, duel_report
from lab.duels import Duel, interleaved, load
from lab.measuring import append, measured
from lab.pool import Broken

ENTRY_S, TUNED_S = 120, 600  # an entry that takes longer counts as hung; tuned ones wait for each other
CPU = "cpu: in Triton's interpreter, for tests"
TO_FINISH_S = 45  # from the last start of an entry to the end


def chosen(entries: Sequence[Any], args: argparse.Namespace) -> list[Any]:
    """The entries to run, in order: the most frequent first, those under autocast and others in turns."""
    from lab.duel import blank

    done = {records[-1].key for records in load(args.skip)}
    left = {duel.key for duel in duel_report.latest(load(args.left)) if duel.timed and not duel.ours.regions}
    todo = [
        entry
        for entry in sorted(entries, key=lambda e: (-e.count, e.key))
        if entry.key not in done
        and (not args.keys or entry.key.startswith(tuple(args.keys)))
        and (not args.left or entry.key in left)
    ]
    return interleaved(todo, [blank(entry).mixed for entry in todo])[: args.limit]


def run(args: argparse.Namespace) -> None:
    """All entries; a line in the results as each ends."""
    from lab.duel import Task, blank, entries

    def taken(task: Task, result: Any) -> Duel:
        """The record, also of an entry whose process broke."""
        if isinstance(result, Broken):
            duel = blank(known[task.key])
            duel.status, duel.message = result.how, f"exit code {result.code}"
            return duel
        if result.code:
            append(args.out / "code.jsonl.gz", {"key": task.key, "code": result.code})
        return result.duel

    known = entries(str(args.corpus))
    what = (not args.no_kernels, args.code, args.fuse_all, args.tuned)
    tasks = [Task(e.key, str(args.corpus), args.device, "", *what) for e in chosen([*known.values()], args)]
    limits = TUNED_S if args.tuned else ENTRY_S, TO_FINISH_S
    measured("lab.duel", tasks, args, args.out / "duels.jsonl", limits, taken, told)


def told(duel: Duel) -> str:
    """A line of progress."""
    if not duel.timed:
        return f"{duel.key[:16]} {duel.status}: {' '.join(duel.message.split())[:200]}"
    found = f"{duel.key[:16]} {duel.stock.us:.1f} -> {duel.ours.us:.1f} us"
    return f"{found}, {sum(duel.locked.values()):.2f} s on the GPU, {duel.waited_s:.1f} s waited"


def written(args: argparse.Namespace, paths: Sequence[Path]) -> Iterator[str]:
    """The report's text, which also goes to --out with the histogram."""
    groups = load(paths)
    yield duel_report.report(groups)
    args.out.mkdir(parents=True, exist_ok=True)
    timed = [duel for duel in duel_report.latest(groups) if duel.timed]
    yield duel_report.histogram(timed, args.out / "duels.png")


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments.parser(__doc__)
    parser.add_argument("corpus", nargs="?", type=Path, help="the file that tools/corpus.py writes")
    parser.add_argument("--report", nargs="+", type=Path, help="only the report, of these files")
    parser.add_argument("--seconds", type=float, default=540, help="in all (default: %(default)s)")
    parser.add_argument("--keys", nargs="+", default=[], help="entries by how their keys begin")
    parser.add_argument("--limit", type=int, help="so many entries at most")
    parser.add_argument("--skip", nargs="+", type=Path, default=[], help="results whose entries are left out")
    left = "results: only entries that mixorder left to Inductor there (see --fuse-all)"
    parser.add_argument("--left", nargs="+", type=Path, default=[], help=left)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=CPU)
    parser.add_argument("--no-kernels", action="store_true", help="without the profiler")
    parser.add_argument("--code", action="store_true", help="keep stock's output code")
    parser.add_argument("--fuse-all", action="store_true", help="fuse also what is predicted to be slower")
    parser.add_argument("--tuned", action="store_true", help="with mixorder_autotune, one entry at a time")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/duels")))
    args = parser.parse_args(argv)
    if bool(args.corpus) == bool(args.report):
        parser.error("either a corpus or --report")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    if args.corpus:
        run(args)
    paths = args.report or [args.out / "duels.jsonl"]
    if not all(path.exists() for path in paths):
        print("no results", file=sys.stderr)
        return 1
    text = "\n\n".join(written(args, paths))
    (args.out / "duels.md").write_text(text + "\n")
    print(text)
    return int(any(not duel.timed for duel in duel_report.latest(load(paths))))


if __name__ == "__main__":
    sys.exit(main())
