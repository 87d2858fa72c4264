"""Tensors scaled along rows and columns: stock Inductor, mixorder and the limit, on this GPU.

    python tools/quantise.py --out quantise                  # all recipes and sizes, versus eager's bits
    python tools/quantise.py --recipes mx_both --shapes 16384x4096 --schedules 16
    python tools/quantise.py --device cpu                    # in Triton's interpreter, small, nothing timed
    python tools/quantise.py --report quantise/quantise.jsonl --keep fff69f41    # in tools/data/casts.jsonl

The limit is `torch.add` in bf16 that moves as many bytes as one read of each tensor and one write of each
result. Times are medians of CUDA-graph replays with a cold L2, in turns. Processes compile side by side; what
runs on the GPU runs alone. In --out: `quantise.jsonl`, a line for each recipe and size as it ends, and
`quantise.md`. --keep adds the outcomes to those that docs/quantise.md shows, with the commit that was
measured. Exit status: 0; 1 if a recipe has no result, or one that is to be eager's is not.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab import arguments
from lab.measuring import append, known, measured, of_commit, read
from lab.pool import Broken
from lab.tables import table

KEPT = Path(__file__).resolve().parent / "data" / "casts.jsonl"
SHAPES = "16384x4096,4096x4096,131072x7168,8192x28672"
SMALL = "256x512"
TASK_S = 240  # a task that takes longer counts as hung
TO_FINISH_S = 30


def run(args: argparse.Namespace) -> list[Any]:
    """An outcome for each recipe and size, in the order in which they end."""
    from lab.quantising import Outcome, Task

    def taken(task: Task, result: Any) -> Outcome:
        if isinstance(result, Broken):
            message = f"{result.how}, exit code {result.code}"
            return Outcome(task.recipe, task.rows, task.cols, message=message)
        return result

    path = args.out / "quantise.jsonl"
    path.unlink(missing_ok=True)
    tasks = [
        Task(name, *shape, args.device, "", args.schedules) for shape in args.shapes for name in args.recipes
    ]
    return measured("lab.quantising", tasks, args, path, (TASK_S, TO_FINISH_S), taken, told)


def load(paths: Iterable[Path]) -> list[Any]:
    """The last outcome of each recipe and size."""
    from lab.quantising import Outcome

    outcomes = [Outcome(**known(Outcome, plain)) for plain in read(paths)]
    return list({outcome.name: outcome for outcome in outcomes}.values())


def told(outcome: Any) -> str:
    """A line of progress, and a line for each schedule that was timed."""
    if outcome.message:
        return f"{outcome.name} FAILED: {outcome.message}"
    lines = [f"{outcome.name}, {outcome.seconds:.0f} s: {', '.join(outcome.fused) or 'not fused'}"]
    limit = outcome.us.get("limit", 0.0)
    for name, us in sorted(outcome.schedules.items(), key=lambda entry: entry[1]):
        lines.append(f"    {name}: {us:.1f} us, {100 * limit / us:.1f}%")
    return "\n".join(lines)


def report(outcomes: Sequence[Any]) -> str:
    """The table: percent of the limit, launches, and results that are not eager's."""
    from support.quantised import RECIPES

    rows = []
    for outcome in sorted(outcomes, key=lambda o: (o.cols, o.rows, list(RECIPES).index(o.recipe))):
        recipe = RECIPES[outcome.recipe]
        limit = outcome.us.get("limit", 0.0)
        shares = [
            f"{100 * limit / outcome.us[n]:.1f}" if n in outcome.us else "-" for n in ("stock", "mixorder")
        ]
        launches = " -> ".join(str(outcome.launches.get(n, "-")) for n in ("stock", "mixorder"))
        off = sum(count for count, _ in outcome.differing)
        whole = sum(n for _, n in outcome.differing)
        bits = "FAILED" if outcome.message else "all" if not off else f"all but {off} of {whole}"
        bar = "" if recipe.bar is None else str(recipe.bar)
        size = f"{outcome.rows}x{outcome.cols}"
        rows.append([size, recipe.title, f"{limit:.1f}", *shares, bar, launches, bits, outcome.chosen])
    head = [
        "M x N",
        "recipe",
        "limit, us",
        "stock, %",
        "mixorder, %",
        "bar, %",
        "launches",
        "as eager",
        "tile",
    ]
    return table(head, rows)


def is_wrong(outcome: Any) -> bool:
    """Whether there is no result, or one that is to be eager's bit by bit is not."""
    from support.quantised import RECIPES

    recipe = RECIPES[outcome.recipe]  # what is not tiled is Inductor's
    differs = any(count for count, _ in outcome.differing)
    return bool(outcome.message) or (recipe.exact and recipe.tiled and differs)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    from support.quantised import RECIPES

    parser = arguments.parser(__doc__)
    names = arguments.names_of(list(RECIPES))
    parser.add_argument("--recipes", type=names, default=list(RECIPES), help="some of " + ", ".join(RECIPES))
    parser.add_argument("--shapes", type=arguments.parse_shapes, help=f"default: {SHAPES}; cpu: {SMALL}")
    parser.add_argument("--report", nargs="+", type=Path, help="only the report, of these outcomes")
    parser.add_argument("--keep", metavar="COMMIT", help="also keep the outcomes, of this commit")
    parser.add_argument("--schedules", type=int, default=0, help="time so many other tiles of each")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=540, help="in all (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/quantise")))
    args = parser.parse_args(argv)
    args.shapes = args.shapes or arguments.parse_shapes(SHAPES if args.device == "cuda" else SMALL)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    outcomes = load(args.report) if args.report else run(args)
    text = report(outcomes)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "quantise.md").write_text(text + "\n")
    print(text)
    for outcome in outcomes if args.keep else []:
        append(KEPT, dataclasses.asdict(outcome) | {"on": of_commit(outcome.on, args.keep)})
    missing = 0 if args.report else len(args.recipes) * len(args.shapes) - len(outcomes)
    return int(bool(missing) or any(map(is_wrong, outcomes)))


if __name__ == "__main__":
    sys.exit(main())
