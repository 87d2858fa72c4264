"""PyTorch's own samples of reductions, norms and losses, with row and column sums, against stock and eager.

    python tools/torch_cases.py --device cuda --out cases                            # 14 processes, one GPU
    python tools/torch_cases.py --device interpreter --workers 2 --out cases         # no GPU
    python tools/torch_cases.py --device interpreter --only 'any/bool/forward' --out cases

A case is an op of `op_db` or a module of `module_db`, a dtype, and a direction. `support/torch_cases.py`
makes a few samples of each; `support/torch_trial.py` runs them with mixorder (strict), in eager, in eager
float64, and by stock Inductor where eager is more exact. In --out: `cases.jsonl`, a line per ended case;
`summary.txt`.
Exit status: 0, or 1 if a sample failed, or a case hung or crashed its process. Needs expecttest.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab import arguments
from lab.pool import Broken, Pool
from support.sources import last_raised
from support.torch_cases import Case, cases

CASE_LIMIT = 90  # seconds after which a case counts as hung
SAMPLES = 1  # of a case, in addition to the enlarged ones


@dataclasses.dataclass(frozen=True)
class Task:
    """A case, and where it runs."""

    case: Case
    device: str


def work(task: Task) -> Any:
    """Runs in a process of the pool."""
    from support.torch_trial import run_case

    return run_case(task.case, task.device, SAMPLES)


def record(task: Task, result: Any) -> dict[str, Any]:
    """The result of a case, as plain data."""
    one: dict[str, Any] = {"case": str(task.case), **dataclasses.asdict(task.case), "status": "ok"}
    if isinstance(result, Broken):
        return one | {"status": result.how, "units": [], "fused": 0, "declined": [], "code": result.code}
    one |= dataclasses.asdict(result)
    for unit in one["units"]:
        if unit["status"] in ("ok", "invalid"):
            del unit["source"]
    return one


def told(one: dict[str, Any]) -> Iterable[str]:
    """A line for each failure of a case."""
    if one["status"] != "ok":
        yield f"{one['case']}: {one['status']} {one['code']}"
    for unit in one["units"]:
        if unit["status"] == "failed":
            line = last_raised(unit["message"]) if unit["kind"] == "crash" else unit["message"]
            yield f"{one['case']}, {unit['label']}: {unit['kind']}: {line[:240]}"


def kinds(found: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """By kind of failure (for a crash, with the exception) and op: the cases and samples."""
    ways: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in found:
        if one["status"] != "ok":
            ways[one["status"], one["name"]].append(one["case"])
        for unit in one["units"]:
            if unit["status"] == "failed":
                kind = unit["kind"]
                if kind == "crash":
                    kind += f" {last_raised(unit['message'])[:160]}"
                ways[kind, one["name"]].append(f"{one['case']}, {unit['label']}")
    return dict(sorted(ways.items()))


def summary(found: Sequence[dict[str, Any]], seconds: float, of: int) -> str:
    units = [unit for one in found for unit in one["units"]]
    statuses = Counter(unit["status"] for unit in units)
    held = {one["name"] for one in found if any(u["held"] for u in one["units"])}
    never = sorted({one["name"] for one in found} - held)
    declined = Counter(reason for one in found for reason in one["declined"])
    left = [u for u in units if u["status"] in ("torch", "invalid")]
    raised = Counter(last_raised(u["message"])[:120] for u in left)
    fused = [one for one in found if one["fused"]]
    holding = [one for one in found if any(u["held"] for u in one["units"])]
    lines = [
        f"{len(found)} of {of} cases in {seconds:.0f} s, {sum(not one['units'] for one in found)} of them"
        " without a sample that has rows and columns",
        f"{len(units)} samples: " + ", ".join(f"{n} {s}" for s, n in statuses.most_common()),
        f"{sum(one['fused'] for one in found)} regions fused, in {len(fused)} cases; a region held the op in"
        f" {len(holding)} cases, {sum(u['held'] for u in units)} samples; declined: {dict(declined)}",
        f"ops that no region held: {', '.join(never) or 'none'}",
        f"not compiled without mixorder either, or not run by eager: {dict(raised) or 'none'}",
    ]
    ways = kinds(found)
    lines.append(f"failures: {sum(map(len, ways.values()))}")
    for (kind, name), where in ways.items():
        lines.append(f"  {kind}: {name}, {len(where)}: {'; '.join(where[:3])}")
    return "\n".join(lines)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments.parser(__doc__)
    parser.add_argument("--device", choices=("cuda", "interpreter"), default="cuda")
    parser.add_argument("--only", default="", help="a regular expression that a case's name has to match")
    parser.add_argument("--start", type=int, default=0, help="leave out so many cases: what a run before did")
    parser.add_argument("--time-box", type=float, default=400, help="seconds; no case begins in the last 30")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    todo = [Task(c, args.device) for c in cases(args.device) if re.search(args.only, str(c))][args.start :]
    pool = Pool.of_compiles(args.workers, "torch_cases", args.device)
    try:
        until = started + args.time_box - min(30, args.time_box / 4)
        found = pool.logged(todo, CASE_LIMIT, until, args.out / "cases.jsonl", record, told)
    finally:
        pool.close()
    text = summary(found, time.monotonic() - started, len(todo))
    (args.out / "summary.txt").write_text(f"{text}\n")
    print(f"\n{text}")
    return int(bool(kinds(found)) or not found)


if __name__ == "__main__":
    sys.exit(main())
