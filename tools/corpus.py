"""Harvest post-grad graphs of real training, without a GPU: a corpus of what mixorder finds in them.

Families of transformers and timm, with two layers and their own widths, and hand-written loops, each by
several recipes. Every region and every near miss is kept once. A family and recipe runs in a child process
with a time limit. Its result is appended to a file beside FILE that ends in .records.jsonl, so that the same
command continues an interrupted run. At the end, and with --tables alone, the corpus goes to FILE, and
tables in Markdown to a file of its name that ends in .md. With --keep, FILE also has the entries of an older
corpus, unchanged, and of the harvest only the families and recipes that the older one lacks.
Needs a CPU build of torch, transformers and timm, and a C++ compiler. Exit status: 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lab import arguments, pool

RECIPES = ("bf16", "autocast", "fp32", "checkpoint", "dynamic")


def main(argv: Sequence[str]) -> int:
    parser = arguments.parser(__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="the corpus, ending in .jsonl.xz or .jsonl.gz"
    )
    parser.add_argument("--families", default="", help="such as transformers/llama,timm/beit; all if empty")
    parser.add_argument("--recipes", type=arguments.names_of(RECIPES), default=list(RECIPES))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300, help="seconds of one family and recipe")
    parser.add_argument("--again", action="store_true", help="run again what has failed")
    parser.add_argument("--tables", action="store_true", help="only write FILE and the tables anew")
    parser.add_argument("--keep", type=Path, help="a corpus whose entries stay as they are; may be FILE")
    args = parser.parse_args(argv)
    records = args.out.with_name(args.out.name.split(".")[0] + ".records.jsonl")
    if not args.tables:
        harvest(
            records,
            [f for f in args.families.split(",") if f],
            args.recipes,
            args.jobs,
            args.limit,
            args.again,
        )
    from lab import corpus, corpus_tables

    print(corpus_tables.write(records, args.out, corpus.load(args.keep) if args.keep else ()))
    return 0


def harvest(
    records: Path, families: list[str], recipes: list[str], jobs: int, limit: float, again: bool
) -> None:
    """Run what is not in the records yet, and append to them."""
    from lab.families import names

    done = set()
    if records.exists():
        known = map(json.loads, records.read_text().splitlines())
        done = {(r["family"], r["recipe"]) for r in known if not (again and r.get("error"))}
    tasks = [(f, r) for f in families or names() for r in recipes if (f, r) not in done]
    records.parent.mkdir(parents=True, exist_ok=True)
    workers = pool.Pool(jobs, "lab.harvest_process", "work", pool.ENVIRONMENT)
    try:
        with records.open("a") as lines:
            for number, (task, result) in enumerate(workers.run(tasks, limit), 1):
                family, recipe = task
                record = {"family": family, "recipe": recipe}
                if isinstance(result, pool.Broken):
                    record["error"] = f"{result.how} ({result.code})" if result.code else result.how
                else:
                    record = result
                print(json.dumps(record, separators=(",", ":")), file=lines, flush=True)
                said = record.get("error") or f"{len(record['entries'])} entries in {record['seconds']} s"
                print(f"{number}/{len(tasks)} {family} {recipe}: {said}", file=sys.stderr, flush=True)
    finally:
        workers.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
