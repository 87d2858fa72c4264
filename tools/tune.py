"""Time schedules of the fused kernels on this GPU, without Inductor around them.

For each shape and norm, or for each region of the given cases of `support/cases.py`, this script lowers the
real backward graph once, and times the kernels of many schedules (`lab/sweep.py`) by CUDA-graph replays with
a flushed L2. Adds a line of JSON with all of them to a file, and prints the best few with the limit:
`torch.add(x, dy, out=dx)` on the same shape, or on tensors of as many bytes as the region moves; at the end,
how much longer the choices take than the best.

Times are medians in microseconds; a candidate's time includes its finalisation.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import triton
from lab.arguments import parse_shapes
from lab.backward import DTYPES
from lab.measuring import append
from lab.sweep import Measured, tune
from lab.tables import table
from lab.targets import Target, case_targets, entry_targets, norm_target

from mixorder.options import source_hash
from mixorder.schedule.device import device_info

SHAPES = "4096x4096,32768x4096,32768x768,32768x2048,8192x8192,1000000x256,1048576x128"


HEAD = ("of limit", "us", "strategy", "parts x columns", "depth", "chunks", "xblock", "warps", "stages")
HEAD += ("splits", "final", "registers", "spills", "shared", "")


def report(target: Measured, best: int) -> str:
    """The best few schedules, and the rules' choice."""
    first, ran = target.rows[0], sorted((r for r in target.rows if r.us), key=lambda r: r.us or 0)
    lines = []
    for row in [*ran[:best], *([first] if first not in ran[:best] else [])]:
        s, launch, us = row.schedule, row.schedule.launch, row.us or math.inf
        run = (f"{100 * target.limit_us / us:.1f}%", f"{us:.1f}", row.strategy, f"{s.group} x {s.lanes}")
        chosen = (s.lag, s.chunks, s.tile_rows, launch.num_warps, launch.num_stages, s.splits)
        use = (f"{s.second.block}/{s.second.warps}", row.registers, row.spills, row.shared)
        lines.append([*map(str, (*run, *chosen, *use)), "heuristic" if row is first else ""])
    of = f"limit {target.limit_us:.1f} us, {len(ran)}/{len(target.rows)} candidates ran"
    return f"\n{target.name} {target.dtype}: {of}\n\n{table(HEAD, lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument(
        "--norms", default="rms,layer", help="rms, layer, gelu, gelu-tanh, relu; rms+residual"
    )
    parser.add_argument("--cases", help="instead of shapes: names of cases, separated by semicolons")
    parser.add_argument("--entries", nargs="+", help="instead: entries of --corpus, by how their keys begin")
    parser.add_argument("--corpus", type=Path, default=Path("tools/data/corpus.jsonl.xz"))
    parser.add_argument("--candidates", type=int, default=150, help="schedules of each strategy")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--reps", type=int, default=25)
    parser.add_argument("--best", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no target begins later")
    parser.add_argument("--out", type=Path, default=Path("tune.jsonl"))
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    both: dict[str, tuple[float, float] | None] = {}
    for target in targets(args):
        if time.monotonic() > until:
            break
        print(f"[{target.name}]", file=sys.stderr, flush=True)
        measured, both[target.name] = tune(target, args.candidates, args.reps)
        print(report(measured, args.best), flush=True)
        append(args.out, meta() | dataclasses.asdict(measured))
    print(f"\n{regrets(both)}")


def regrets(both: Mapping[str, tuple[float, float] | None]) -> str:
    """How much longer choices take than the best of their sweeps, from microseconds of both. A choice that
    did not run has no figure, and is named."""
    ran = {name: us for name, us in both.items() if us}
    shares = {name: max(0.0, chosen / best - 1) for name, (chosen, best) in ran.items()}
    worst = sorted(ran, key=lambda name: -shares[name])
    lines = [[name, *(f"{us:.1f}" for us in ran[name]), f"{100 * shares[name]:.1f}"] for name in worst]
    parts = [table(["target", "choice us", "best us", "longer by %"], lines)]
    parts += [f"did not run: {name}" for name in both if name not in ran]
    if ran:
        mean = 100 * statistics.mean(shares.values())
        parts.append(f"{len(ran)} targets: the choices take {mean:.2f}% longer than the best of their sweeps")
    return "\n".join(parts)


def meta() -> dict[str, Any]:
    """The versions and the device of the figures."""
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": datetime.date.today().isoformat(),
        "source": source_hash(),
        "device_info": dataclasses.asdict(device_info(torch.device("cuda"))),
    }


def targets(args: argparse.Namespace) -> Iterator[Target]:
    dtype = DTYPES[args.dtype]
    for name in args.cases.split(";") if args.cases else ():
        yield from case_targets(name, dtype)
    for prefix in args.entries or ():
        yield from entry_targets(args.corpus, prefix)
    for shape, norm in itertools.product(parse_shapes(args.shapes), args.norms.split(",")):
        if not (args.cases or args.entries):
            yield norm_target(norm, *shape, dtype)


if __name__ == "__main__":
    main()
