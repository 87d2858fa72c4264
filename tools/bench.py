"""Norm-backward benchmark: share of the memory limit, launches and error of every provider.

In: shapes, norms, dtypes, providers. Out: tables on stdout, progress on stderr, and in --out `bench.jsonl` (a
line per row as it ends), `report.txt` and one chart per norm and dtype.

The limit is `torch.add(x, dy, out=dx)` on the same tensors; a provider's share is limit / time. Both are
CUDA-graph replays with a cold L2, in turns with those of the row's other providers (`lab/backward.py`).
Where a provider crashes or hangs the process of its row, or loses the device, each provider of the row gets a
process and a limit of its own. A provider that fails is shown as `err`, with its message in the report.
Without a GPU, it measures errors at small shapes only. Exit status: 0; 3 if a provider failed and no times
were wanted.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from lab import arguments
from lab.arguments import names_of, parse_shapes
from lab.backward import DTYPES, EPS, Case, Result, Row, Task
from lab.measuring import append, measuring
from lab.pool import Broken
from lab.processes import describe
from lab.providers import PROVIDERS
from lab.report import draw_charts, report_text

SHAPES = "4096x4096,8192x4096,32768x4096,32768x768,32768x2048,8192x8192,1000000x256,1048576x128"
EXIT_FAILED = 3


def measured(args: argparse.Namespace) -> list[Row]:
    """A row for each case that was begun in time."""
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "bench.jsonl"
    path.unlink(missing_ok=True)
    rows = {case: Row(case) for case in args.cases}
    until = time.monotonic() + args.deadline
    todo = [Task(case, tuple(args.providers), "cuda" if args.timed else "cpu") for case in args.cases]
    with measuring("lab.backward", todo[0].device, 1, min(8, os.cpu_count() or 1)) as (pool, _):
        while todo:
            alone = []
            for task, result in pool.run(todo, args.time_box * len(args.providers), until):
                if isinstance(result, Broken):
                    ended = f"its process {result.how}, exit code {result.code}"
                    result = Row(task.case, [], {name: Result(error=ended) for name in task.providers}, True)
                if result.lost and len(task.providers) > 1:
                    alone += [dataclasses.replace(task, providers=(name,)) for name in task.providers]
                    continue
                rows[task.case].limit_medians += result.limit_medians
                rows[task.case].results |= result.results
                append(path, dataclasses.asdict(result))
                outcomes = (f"{n} {r.us or r.reason or 'ok'}" for n, r in result.results.items())
                case = task.case
                print(f"{case.norm} {case.dtype} {case.shape}: {', '.join(outcomes)}", file=sys.stderr)
            todo = alone
    return [row for row in rows.values() if row.results or row.limit_medians]


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments; on the CPU the defaults are small shapes and two providers."""
    parser = arguments.parser(__doc__)
    parser.add_argument("--shapes", type=parse_shapes, help=f"default {SHAPES}; 64x96 on the CPU")
    parser.add_argument("--norm", type=names_of(list(EPS)), default=list(EPS))
    parser.add_argument("--dtype", type=names_of(list(DTYPES)), default=["bf16"])
    parser.add_argument("--weight-dtype", choices=DTYPES, help="default: that of x")
    parser.add_argument("--residual", action="store_true", help="dx plus an incoming gradient of x")
    parser.add_argument("--providers", type=names_of(list(PROVIDERS)), help=f"some of {', '.join(PROVIDERS)}")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/bench")))
    parser.add_argument("--cpu-smoke", action="store_true", help="errors on the CPU, no times")
    parser.add_argument("--time-box", type=float, default=120, help="seconds a provider may take")
    parser.add_argument(
        "--deadline", type=float, default=float("inf"), help="start no row after so many seconds"
    )
    args = parser.parse_args(argv)
    args.timed = not args.cpu_smoke and torch.cuda.is_available()
    args.shapes = args.shapes or parse_shapes(SHAPES if args.timed else "64x96")
    usual = [name for name in PROVIDERS if name != "mixorder_tuned"]
    args.providers = args.providers or (usual if args.timed else ["eager", "stock"])
    args.cases = [
        Case(norm, dtype, args.weight_dtype or dtype, *shape, args.residual)
        for dtype in args.dtype
        for norm in args.norm
        for shape in args.shapes
    ]
    args.total = len(args.cases) * len(args.providers)
    return args


def main(argv: Sequence[str]) -> int:
    args = parse_args(argv)
    rows, head = measured(args), describe(not args.timed)
    text = report_text(head, rows, args)
    (args.out / "report.txt").write_text(text + "\n")
    print(text, flush=True)
    try:
        draw_charts(head["device"], rows, args.out)
    except Exception as error:  # a chart is no reason to fail after the measurement
        print(f"no chart: {error}", file=sys.stderr)
    failed = any(r.error and not r.absent for row in rows for r in row.results.values())
    return EXIT_FAILED if failed and not args.timed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
