"""Whole models: families of the corpus in its recipes, trained by stock Inductor and mixorder, on this GPU.

    python tools/real_models.py --limit 40 --out models              # as many as --seconds allows
    python tools/real_models.py --out more --skip models/models.jsonl
    python tools/real_models.py --profile --families torchao/rowwise --recipes bf16
    python tools/real_models.py --train                              # whole models, as people train them
    python tools/real_models.py --report models/models.jsonl more/models.jsonl
    python tools/real_models.py --report models/models.jsonl --keep c292d97c    # in tools/data/whole.jsonl

Module code as published, random weights, few layers (`lab/families.py`). Per model and way: milliseconds of
forward and backward, time of its kernels, time outside matrix products, attention and convolutions, peak
memory, processor seconds of the compile, errors of gradients (`lab/whole.py`). Processes build and compile
side by side; what runs on the GPU runs alone. In --out: `models.jsonl`, a line per model as it ends, so that
a run that is cut off loses nothing; `models.md`, the report; `models.png`, of models with an optimizer.
--profile adds `FAMILY_RECIPE.md`: each kernel outside libraries, who made it, its calls, time and bytes in a
step, and its percent of the bandwidth of an add in the same run. A family that cannot be built here is listed
as absent.

--train: the models of `families.WHOLE` at their published depth and batch, each in its recipe, with a step of
AdamW (eager, fused). Adds tokens or images a second, all memory held at the peak, seconds of the first step
(caches empty, waits for the GPU left out), and losses of both ways, which start from the same weights and
have the same random numbers. The batch is the same in each step, of random numbers. Errors of gradients are
left out. --keep adds the records to those that pages show (`tests/tools/test_real_models.py` compares), with
the commit that was measured. Exit status: 0; 1 if a model failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab import arguments, matches
from lab.matches import Match
from lab.measuring import append, measured
from lab.pool import Broken

KEPT = Path(__file__).resolve().parent / "data" / "whole.jsonl"  # the last record of a model counts
WORKERS = 10  # each holds a model on the processor's side and one on the GPU
MODEL_S = 400  # a model that takes longer counts as hung: it also waits for the others
TO_FINISH_S = 100  # from the last start of a model to the end


def chosen(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Family and recipe of each, in order: first every family once, in recipes that alternate, then in the
    next recipe. A whole model has its own recipe unless --recipes names others."""
    from lab import families
    from lab.recipes import RECIPES

    done = {(match.family, match.recipe) for match in matches.load(args.skip)}
    whole = dict(families.whole())
    names = args.families or (list(whole) if args.train else families.names())
    recipes = [args.recipes or ([whole[n]] if n in whole else RECIPES[:-1]) for n in names]
    every = dict.fromkeys(
        (name, its[(i + turn) % len(its)])
        for turn in range(max(map(len, recipes)))
        for i, (name, its) in enumerate(zip(names, recipes, strict=True))
    )
    return [pair for pair in every if pair not in done][: args.limit]


def run(args: argparse.Namespace) -> None:
    """All models; a line in the results as each ends."""
    from lab.whole import Task

    exact = not (args.no_errors or args.train)
    tasks = [Task(*pair, args.device, "", exact, args.profile, args.train) for pair in chosen(args)]
    path, limits = args.out / "models.jsonl", (MODEL_S, TO_FINISH_S)
    measured("lab.whole", tasks, args, path, limits, taken, told, args.threads)


def taken(task: Any, result: Any) -> Match:
    """The record, also of a model whose process broke."""
    if not isinstance(result, Broken):
        return result.match
    return Match(task.family, task.recipe, result.how, f"exit code {result.code}")


def told(match: Match) -> str:
    """A line of progress."""
    if not match.timed:
        return f"{match.name} {match.status}: {' '.join(match.message.split())[:200]}"
    times = f"{match.name} {match.stock.step_ms:.2f} -> {match.ours.step_ms:.2f} ms"
    locked = ", ".join(f"{name} {seconds:.1f}" for name, seconds in match.locked.items())
    return f"{times}; {match.seconds:.0f} s, waited {match.waited_s:.0f}; on the GPU: {locked}"


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    from lab.recipes import RECIPES

    parser = arguments.parser(__doc__)
    parser.add_argument("--report", nargs="+", type=Path, help="only the report, of these files")
    parser.add_argument("--keep", metavar="COMMIT", help="also keep the records, of this commit")
    parser.add_argument("--families", nargs="+", help="such as transformers/llama (default: all)")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, help="default: all but the last")
    parser.add_argument("--limit", type=int, help="so many models at most")
    parser.add_argument("--seconds", type=float, default=540, help="in all (default: %(default)s)")
    parser.add_argument("--skip", nargs="+", type=Path, default=[], help="results whose models are left out")
    parser.add_argument("--workers", type=int, default=WORKERS, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="that compile; processor seconds lack theirs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: for tests")
    parser.add_argument("--no-errors", action="store_true", help="without the errors of gradients")
    parser.add_argument("--profile", action="store_true", help="with a table of each model's kernels")
    parser.add_argument("--train", action="store_true", help="with an optimizer; by default, whole models")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/models")))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    if not args.report:
        run(args)
    paths = args.report or [args.out / "models.jsonl"]
    if not all(path.exists() for path in paths):
        print("no results", file=sys.stderr)
        return 1
    results = matches.load(paths)
    text = matches.report(results)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "models.md").write_text(text + "\n")
    matches.draw(results, args.out / "models.png")
    for match in (m for m in results if m.stock.moved or m.ours.moved):
        name = re.sub(r"[^\w.-]+", "_", match.name)
        (args.out / f"{name}.md").write_text(matches.profile(match) + "\n")
    for match in results if args.keep else []:
        append(KEPT, dataclasses.asdict(match.brief(args.keep)))
    print(text)
    return int(any(match.status not in ("ok", "absent") for match in results))


if __name__ == "__main__":
    sys.exit(main())
