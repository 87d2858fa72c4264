"""Differential fuzzing: random programs run by mixorder, by stock Inductor and in eager float64.

    python tools/fuzz.py --device cuda --cases 5000 --time-box 420 --out fuzz        # 14 processes, one GPU
    python tools/fuzz.py --device interpreter --cases 200 --workers 2 --out fuzz     # no GPU

Each case comes from its own seed (`support/programs.py`) and is compared in `support/differential.py`.
In --out: `cases.jsonl`, a line per case as it ends; `failures.json`; for each kind of failure, a test file
that pytest runs from the repository's root; `errors.txt`: the distribution of gradient errors, mixorder's and
stock's. Exit status: 0, or 1 if a case failed, hung or crashed its process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab import arguments
from lab.measuring import append
from lab.pool import ENVIRONMENT, Broken, Pool
from support.programs import NARROWEST, Program, make
from support.sources import last_raised

BAD = ("failed", "hung", "crashed", "invalid")
CASE_LIMIT = 120  # seconds after which a case counts as hung; it takes several compiles, some of 40 s each
STOCK_EVERY = 2  # of the cases that are right, every second one is also run by stock
KINDS = 5  # of failures that become tests
BINS_PER_DECADE = 4
MOST_TOLD = 6000  # characters of an exception's text


@dataclasses.dataclass(frozen=True)
class Task:
    """A program, its device, its seed, and whether stock is run even where mixorder is as exact as eager."""

    program: Program
    device: str
    seed: int
    stock: bool


def work(task: Task) -> Any:
    """Runs in a process of the pool."""
    from support.differential import run

    return run(task.program, task.device, task.stock)


def record(task: Task, result: Any) -> dict[str, Any]:
    """A case and its outcome as plain data."""
    program = task.program
    case: dict[str, Any] = {"seed": task.seed, "dtype": program.dtype, "backward": program.backward}
    if isinstance(result, Broken):
        return case | {"status": result.how, "kind": result.how, "message": f"exit code {result.code}"}
    return case | dataclasses.asdict(result) | {"message": result.message[:MOST_TOLD]}


def tasks(args: argparse.Namespace) -> Iterator[Task]:
    small = args.device == "interpreter"
    for seed in range(args.seed, args.seed + args.cases):
        program = make(seed, small=small, wanted=args.operators)
        yield Task(program, args.device, seed, seed % STOCK_EVERY == 0)


def kind_of(case: dict[str, Any]) -> str:
    """A key by which failures count as the same: for a crash, the last exception."""
    kind = f"{case['status']} {case['kind']}"
    return f"{kind}, {last_raised(case['message'])[:160]}" if case["kind"] == "crash" else kind


TEST = '''"""Found by tools/fuzz.py from seed {seed}: {kind}.

{message}

{source}"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path.cwd() / "tests"))

from support.differential import check
from support.programs import Program, Step

PROGRAM = {program!r}

{mark}
def test_seed_{seed}() -> None:
    check(PROGRAM, {device!r})
'''


def test_file(program: Program, seed: int, kind: str, message: str, device: str) -> str:
    """The text of a test that fails as the program does. Run it from the repository's root."""
    mark = "@pytest.mark.gpu"
    if device != "cuda":
        mark = '@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="interpreted")'
    return TEST.format(
        seed=seed,
        kind=kind,
        message=message.replace("\\", "/").replace('"""', "'''"),
        source=program.source(),
        program=program,
        mark=mark,
        device=device,
    )


def write_tests(args: argparse.Namespace, cases: Sequence[dict[str, Any]]) -> None:
    """Write the failures, and the first one of each kind as a test."""
    failures = [case for case in cases if case["status"] in BAD]
    (args.out / "failures.json").write_text(json.dumps(failures, indent=1))
    first = {kind_of(case): case for case in reversed(failures)}
    for kind, case in list(first.items())[:KINDS]:
        program = make(case["seed"], small=args.device == "interpreter")
        path = args.out / f"test_fuzz_{case['seed']}.py"
        path.write_text(test_file(program, case["seed"], kind, case["message"], args.device))
        print(f"\nseed {case['seed']}, {kind}: {path}\n{program.source()}", flush=True)


def scaled(cases: Sequence[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """By dtype, of mixorder and of stock: relative errors of gradients, in last places of the dtype.

    Not of float64: there the reference is no better.
    """
    errors: dict[str, list[list[float]]] = {}
    for case in cases:
        for pair in case.get("errors", ()) if case["dtype"] != "float64" else ():
            columns = errors.setdefault(case["dtype"], [[], []])
            for column, error in zip(columns, pair, strict=True):
                column.append(error * 2.0 ** NARROWEST[case["dtype"]])
    return errors


def histogram(errors: dict[str, list[list[float]]]) -> str:
    """Counts by size of error, as text: a block per dtype, a line per bin, mixorder versus stock."""
    lines = []
    for dtype, (ours, stock) in sorted(errors.items()):
        lines.append(f"{dtype}: {len(ours)} gradients; relative error against float64, in last places")
        lines.append(f"{'':>12} {'mixorder':>12} {'stock':>12}")
        for name, function in (("median", statistics.median), ("maximum", max)):
            lines.append(f"{name:>12} {function(ours):12.4g} {function(stock):12.4g}")
        counts = [Counter(map(_bin, column)) for column in (ours, stock)]
        most = max(max(c.values()) for c in counts)
        for place in sorted({*counts[0], *counts[1]}):
            label = f"< {10 ** ((place + 1) / BINS_PER_DECADE):.3g}"
            bars = (f"{'#' * math.ceil(24 * c[place] / most):24}" for c in counts)
            lines.append(
                f"{label:>12} {counts[0][place]:12} {counts[1][place]:12}  {' '.join(bars)}".rstrip()
            )
        lines.append("")
    return "\n".join(lines)


def _bin(error: float) -> int:
    return math.floor(BINS_PER_DECADE * math.log10(max(error, 1e-3)))


def summary(cases: Sequence[dict[str, Any]], seconds: float) -> str:
    statuses = Counter(case["status"] for case in cases)
    regions = sum(case.get("fused", 0) for case in cases)
    with_regions = sum(case.get("fused", 0) > 0 for case in cases)
    declined = Counter(reason for case in cases for reason in case.get("declined", ()))
    ways = Counter(way for case in cases for way in case.get("strategies", ()))
    stock = Counter(case["stock"] for case in cases if case.get("stock"))
    return "\n".join(
        [
            f"{len(cases)} cases in {seconds:.0f} s: " + ", ".join(f"{n} {s}" for s, n in statuses.items()),
            f"{regions} regions fused, in {with_regions} cases: {dict(ways)}; declined: {dict(declined)}",
            f"stock by the same measure, beside eager alone: {dict(stock) or 'nothing wrong'}",
        ]
    )


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments.parser(__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    parser.add_argument("--operators", nargs="*", default=(), help="that each program has; drawn without")
    parser.add_argument("--time-box", type=float, default=480, help="seconds in all")
    parser.add_argument("--device", choices=("cuda", "interpreter"), default="cuda")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    if args.device == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"  # the processes import Triton before they get an environment
    pool = Pool(args.workers, "fuzz", "work", ENVIRONMENT)
    cases = list[dict[str, Any]]()
    log = args.out / "cases.jsonl"
    log.unlink(missing_ok=True)
    try:
        until = started + args.time_box - min(CASE_LIMIT, args.time_box / 4)
        for task, result in pool.run(tasks(args), CASE_LIMIT, until):
            cases.append(case := record(task, result))
            append(log, case)
            if case["status"] in BAD:
                told = f"{case['status']}, {case['kind']}: {case['message'][:300]}"
                print(f"seed {case['seed']}: {told}", flush=True)
            if len(cases) % 100 == 0:
                print(f"{len(cases)} cases", flush=True)
        seconds = time.monotonic() - started
    finally:
        pool.close()
    write_tests(args, cases)
    text = f"{summary(cases, seconds)}\n\n{histogram(scaled(cases))}"
    (args.out / "errors.txt").write_text(text)
    print(f"\n{text}")
    return int(any(case["status"] in BAD for case in cases))


if __name__ == "__main__":
    sys.exit(main())
