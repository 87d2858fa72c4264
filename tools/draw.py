"""Fresh subgraphs by stock Inductor as shipped and with mixorder, on this GPU: one row of one table.

    python tools/draw.py --out draw                             # draws 300 subgraphs, and times them
    python tools/draw.py --subgraphs draw/subgraphs.jsonl.xz --out draw    # times these, or a corpus
    python tools/draw.py --subgraphs FILE --without region.variants.lighter   # what a rule is worth
    python tools/draw.py --report draw/duels.jsonl --page docs/lab/duels.md   # adds the row; no GPU
    python tools/draw.py --spellings 200 --out spelled          # drawn spellings versus their bases
    python tools/draw.py --spellings 500 --no-times --tracing 900   # their plans alone; no GPU
    python tools/draw.py --every --no-times --out corpus        # every family in every recipe: a corpus

Families come from transformers and timm, by names that no file of this repository has, each with a recipe and
a batch of its own; programs (`support/spellings.py`) from fresh seeds. --page also adds the names to
tools/data/drawn.txt, so that none is drawn again. Without --subgraphs, processes trace the draw first, which
needs no GPU with --no-times. Then they compile side by side, and what runs on the GPU runs alone
(`lab/duel.py`). In --out: `subgraphs.jsonl.xz`; `duels.jsonl`, a line per subgraph as it ends
(`lab/duels.py` has the fields); `duels.md`, the report. Exit status: 0, or 1 if a subgraph has no result.
"""

from __future__ import annotations

import argparse
import lzma
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from lab import ROOT, arguments, duel_report
from lab.duels import Duel, load
from lab.measuring import measured
from lab.pool import ENVIRONMENT, Broken, Pool
from lab.tables import line

DATA = ROOT / "tools" / "data"
DRAWN = DATA / "drawn.txt"
RECIPES = ("bf16", "autocast", "autocast", "fp32", "checkpoint", "dynamic", "channels_last")
OF_PROGRAMS = ("bf16", "autocast", "fp32", "checkpoint")
BATCHES = (0.25, 0.5, 0.625, 0.75, 1)  # of a family's own
EACH = 8  # subgraphs of a family or program, at most
TRACED_S = 150  # a family that takes longer is left out
CPU = "cpu: in Triton's interpreter, for tests"
ENTRY_S, TUNED_S = 120, 600  # an entry that takes longer counts as hung; tuned ones wait for each other
TO_FINISH_S = 45  # from the last start of an entry to the end
TEXT = {".md", ".py", ".sh", ".txt", ".json", ".xz"}
NAME = re.compile(r"(?:transformers|timm|shallow)/([\w.-]+)|[\"'`]([\w.-]+)[\"'`]")


# What is drawn.


def named() -> set[str]:
    """The names in files of this repository, compressed ones too: what stands behind a package, or in
    quotes."""
    names: set[str] = set()
    for path in ROOT.rglob("*"):
        inside = path.relative_to(ROOT).parts
        if path.suffix in TEXT and path.is_file() and not any(p.startswith((".", "build")) for p in inside):
            raw = path.read_bytes()
            text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode(errors="ignore")
            names.update(match[1] or match[2] for match in NAME.finditer(text))
    return names


def fresh(draw: Random) -> Iterator[tuple[str, str]]:
    """Families and recipes without end: of transformers, of timm, and three programs, in turns."""
    import timm
    from lab.families import IMAGES, SEQUENCES, transformers_names

    known = named()
    texts = [name for name in transformers_names() if name.partition("/")[2] not in known]
    draw.shuffle(texts)
    modules = {module: timm.list_models(module=module) for module in timm.list_modules()}
    while True:
        models = [f"{texts.pop()}@{round(SEQUENCES * draw.choice(BATCHES))}"] if texts else []
        if left := [name for name in draw.choice([*modules.values()]) if name not in known]:
            known.add(name := draw.choice(left))
            models.append(f"shallow/{name}@{round(IMAGES * draw.choice(BATCHES))}")
        yield from ((name, draw.choice(RECIPES)) for name in models)
        yield from ((f"programs/{draw.randrange(1 << 31)}", draw.choice(OF_PROGRAMS)) for _ in range(3))


def spelled(draw: Random, count: int) -> Iterator[tuple[str, str]]:
    """The bases, and so many of their spellings."""
    from support.spellings import PAIRS, TRAINED

    bases = [*TRAINED, *PAIRS]
    yield from ((f"spellings/{base}/0", "bf16") for base in bases)
    yield from (
        (f"spellings/{draw.choice(bases)}/{draw.randrange(1, 1 << 31)}", "bf16") for _ in range(count)
    )


def traced(args: argparse.Namespace, draw: Random, path: Path) -> None:
    """Write the subgraphs of a draw, none of which is in a corpus of this repository; of spellings, and of
    every family, all that there are."""
    from lab.corpus import from_dict, load, merged, save
    from lab.families import names

    tasks = spelled(draw, args.spellings) if args.spellings else fresh(draw)
    if args.every:
        tasks = ((family, recipe) for family in names() for recipe in dict.fromkeys(RECIPES))
    whole = args.every or args.spellings
    if args.names:
        tasks = iter([(name, recipe) for name, _, recipe in (spec.partition(":") for spec in args.names)])
    known = set() if whole else {entry.key for entry in load(DATA / "corpus.jsonl.xz")}
    kept: list[Any] = []
    plans: dict[str, tuple[list[str], float]] = {}
    until = time.monotonic() + args.tracing
    pool = Pool(args.workers, "lab.harvest_process", "work", ENVIRONMENT)
    try:
        for (family, recipe), result in pool.run(tasks, TRACED_S, until, ends=until + TO_FINISH_S):
            plain = [] if isinstance(result, Broken) else result["entries"]
            if args.spellings and not isinstance(result, Broken) and not result["error"]:
                plans[family] = result["kernels"], result["us"]
            error = result.how if isinstance(result, Broken) else result["error"]
            entries = [candidate for candidate in map(from_dict, plain) if candidate.key not in known]
            kept += entries if whole else draw.sample(entries, min(EACH, len(entries)))
            print(f"{family} {recipe}: {error or f'{len(entries)} subgraphs'}", file=sys.stderr, flush=True)
            if not whole and len(merged(kept)) >= args.count:
                break
    finally:
        pool.close()
    if args.spellings:
        print(duel_report.planned(plans))
    subgraphs = merged(kept)
    save(path, subgraphs if whole else subgraphs[: args.count])


# Timing.


def run(args: argparse.Namespace) -> None:
    """All subgraphs; a line in the results as each ends."""
    from lab.duel import Task, blank, entries

    def taken(task: Task, result: Any) -> Duel:
        """The record, also of an entry whose process broke."""
        if not isinstance(result, Broken):
            return result.duel
        duel = blank(known[task.key])
        duel.status, duel.message = result.how, f"exit code {result.code}"
        return duel

    known = entries(str(args.subgraphs))
    chosen = [key for key in known if not args.keys or key.startswith(tuple(args.keys))]
    if not args.spellings:  # the bases come first
        Random(0).shuffle(chosen)
    tasks = [Task(key, str(args.subgraphs), args.device, "", args.tuned, args.without) for key in chosen]
    limits = TUNED_S if args.tuned else ENTRY_S, TO_FINISH_S
    measured("lab.duel", tasks, args, args.out / "duels.jsonl", limits, taken, told)


def graphs_of(path: Path) -> Counter[str]:
    """How many subgraphs come from each family."""
    from lab.corpus import load

    return Counter(place.family for entry in load(path) for place in entry.places)


def told(duel: Duel) -> str:
    """A line of progress."""
    if not duel.timed:
        return f"{duel.key[:16]} {duel.status}: {' '.join(duel.message.split())[:200]}"
    times = f"{duel.key[:16]} {duel.stock.us:.1f} -> {duel.ours.us:.1f} us"
    return f"{times}, {sum(duel.locked.values()):.2f} s on the GPU, {duel.waited_s:.1f} s waited"


def added(page: Path, duels: Sequence[Duel]) -> None:
    """Add the row to the table of a page, and the drawn names to the list of those that are used."""
    lines = page.read_text().splitlines()
    end = lines.index(line(duel_report.DRAW)) + 1
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    lines.insert(end, line(duel_report.row(duels)))
    page.write_text("\n".join(lines) + "\n")
    names = sorted({family for duel in duels for family, *_ in duel.where})
    with DRAWN.open("a") as used:
        print(" ".join(names), file=used)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments.parser(__doc__)
    parser.add_argument("--count", type=int, default=300, help="so many subgraphs (default: %(default)s)")
    parser.add_argument("--spellings", type=int, default=0, help="instead: so many spellings, and the bases")
    parser.add_argument("--every", action="store_true", help="instead: every family in every recipe")
    parser.add_argument("--names", nargs="+", help="instead: families and recipes, as programs/7@64:bf16")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the draw (default: the time)")
    parser.add_argument("--subgraphs", type=Path, help="a file of subgraphs, instead of a draw")
    parser.add_argument("--keys", nargs="+", default=[], help="subgraphs by how their keys begin")
    parser.add_argument("--report", nargs="+", type=Path, help="only the report, of these results")
    parser.add_argument("--page", type=Path, help="adds the row of --report to this page")
    parser.add_argument("--no-times", action="store_true", help="only write the subgraphs")
    parser.add_argument("--tracing", type=float, default=150, help="seconds of it (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=300, help="of timing (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=CPU)
    parser.add_argument("--tuned", action="store_true", help="with mixorder_autotune, one at a time")
    parser.add_argument("--without", default="", metavar="RULE", help="mixorder without one of lab/rules.py")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/draw")))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.report:
        if not args.subgraphs:
            args.subgraphs = args.out / "subgraphs.jsonl.xz"
            traced(args, Random(args.seed), args.subgraphs)
        if args.no_times:
            return 0
        run(args)
    paths = args.report or [args.out / "duels.jsonl"]
    duels = duel_report.latest(load([path for path in paths if path.exists()]))
    text = duel_report.report(duels, graphs_of(args.subgraphs) if args.subgraphs else None)
    (args.out / "duels.md").write_text(text + "\n")
    print(text)
    if args.page:
        added(args.page, duels)
    return int(not duels or any(not duel.timed for duel in duels))


if __name__ == "__main__":
    sys.exit(main())
