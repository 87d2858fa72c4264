"""Programs as people write them (`lab/written.py`) on this GPU, by stock Inductor and mixorder: the backward.

    python tools/written.py [--programs sinks | --unseen | --by-hand | --kept] [--out written.json]

Prints, per program, microseconds of the backward (CUDA-graph replay, L2 flushed, medians, in turns) and of an
addition of as many bytes as it has to read and write (the limit), the share of the limit that mixorder has,
what was fused and why the rest was not, and the largest relative error of a gradient against float64. Last,
geometric means of the shares. Exit status 1 if a program fails, or is slower or less accurate than stock.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from lab import arguments
from lab.stopwatch import Call, Stopwatch, stopwatch
from lab.tables import head, line
from lab.written import BY_HAND, KEPT, PROGRAMS, UNSEEN, Written
from support.compilers import OURS, STOCK, inductor
from torch._functorch import config as functorch

from mixorder.errors import Decline
from mixorder.inspection.accuracy import largest_error
from mixorder.inspection.backward import gradients, roots_of
from mixorder.report import collect

DEVICE = "cuda"
SLACK = 1.03, 1.0  # two medians of the same kernels differ by up to this factor, or these microseconds
HEAD = (
    "program",
    "limit, us",
    "stock, us",
    "mixorder, us",
    "%",
    "stock, %",
    "error, stock / mixorder",
    "fused",
)


def leaves(program: Written) -> list[torch.Tensor]:
    return [*program.inputs, *(p for p in program.module.parameters() if p.requires_grad)]


def backward(program: Written, module: Any, tangents: list[torch.Tensor]) -> Call:
    """A backward of a forward that has run."""
    roots, into = roots_of(module(*program.inputs)), leaves(program)
    while len(tangents) < len(roots):  # the same for each way
        tangents.append(torch.randn_like(roots[len(tangents)]))

    def call() -> Any:
        return torch.autograd.grad(roots, into, tangents[: len(roots)], retain_graph=True)

    return call


def exact(program: Written, tangents: list[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients in float64, by eager."""
    module = copy.deepcopy(program.module).double()
    inputs = [x.detach().double().requires_grad_() for x in program.inputs]
    into = [*inputs, *(p for p in module.parameters() if p.requires_grad)]
    results = gradients(roots_of(module(*inputs)), into, [t.double() for t in tangents])
    return [g for g in results if g is not None]


def measured(name: str, watch: Stopwatch) -> dict[str, Any]:
    """One program, both ways."""
    torch.manual_seed(0)
    with torch.device(DEVICE):
        program = (PROGRAMS | UNSEEN | BY_HAND | KEPT)[name]()
    tangents: list[torch.Tensor] = []
    calls: dict[str, Call] = {}
    row: dict[str, Any] = {"fused": [], "left": []}
    for way, options in (("stock", STOCK), ("mixorder", OURS)):
        # What is donated may not be reread.
        with watch.running(), functorch.patch(donated_buffer=False), collect() as records:
            module = inductor(options)(program.module)
            calls[way] = backward(program, module, tangents)
            calls[way]()
        row["fused"] = [str(r.space) for r in records if not isinstance(r, Decline)]
        row["left"] = [f"{r.reason.value}" for r in records if isinstance(r, Decline)]
    truth = exact(program, tangents)
    for way in ("stock", "mixorder"):
        row[f"{way}_error"] = largest_error(zip(calls[way](), truth, strict=True))
    del truth
    limit = watch.limit(program.backward_bytes(tangents))
    timed = watch.time(calls | ({"limit": limit} if limit else {}))
    row |= {f"{way}_us": result.times.median_us for way, result in timed.items()}
    row["launches"] = [sum((timed[way].launches or {}).values()) for way in ("stock", "mixorder")]
    return row


def cells(name: str, row: dict[str, Any]) -> list[str]:
    """A line of the table."""
    limit, stock, ours = (row.get(f"{way}_us", float("nan")) for way in ("limit", "stock", "mixorder"))
    errors = f"{row['stock_error']:.1e} / {row['mixorder_error']:.1e}"
    told = "; ".join([*row["fused"], *(f"left: {r}" for r in row["left"])]) or "no pair"
    share = [f"{100 * limit / us:.0f}" for us in (ours, stock)]
    return [name, f"{limit:.1f}", f"{stock:.1f}", f"{ours:.1f}", *share, errors, told]


def main() -> int:
    parser = arguments.parser(__doc__)
    parser.add_argument("--programs", nargs="+", default=[*PROGRAMS], metavar="NAME")
    parser.add_argument("--unseen", action="store_true", help="those that no test compiles")
    parser.add_argument("--out", type=Path, default=Path("written.json"))
    parser.add_argument("--by-hand", action="store_true", help="norms written by hand")
    parser.add_argument("--kept", action="store_true", help="norms whose reduction groups fit a program")
    args = parser.parse_args()
    of_names = {args.unseen: UNSEEN, args.by_hand: BY_HAND, args.kept: KEPT}
    chosen = of_names.get(True, args.programs)
    watch, rows, bad = stopwatch(DEVICE), dict[str, Any](), list[str]()
    print(f"{torch.cuda.get_device_name() if DEVICE == 'cuda' else 'no GPU'}, torch {torch.__version__}")
    print(head(HEAD))
    for name in chosen:
        try:
            row = rows[name] = measured(name, watch)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            print(line([name, f"{type(error).__name__}: {str(error)[:120]!r}", *[""] * (len(HEAD) - 2)]))
            bad.append(name)
            continue
        print(line(cells(name, row)), flush=True)
        args.out.write_text(json.dumps(rows, indent=1))
        factor, us = SLACK
        slower = row["mixorder_us"] > max(row["stock_us"] * factor, row["stock_us"] + us)
        if slower or not row["mixorder_error"] <= row["stock_error"] * 1.05 + 1e-6:
            bad.append(name)
        watch.free()
    for way in ("stock", "mixorder"):
        shares = [row["limit_us"] / row[f"{way}_us"] for row in rows.values() if "limit_us" in row]
        if shares:
            print(f"{way}: {100 * statistics.geometric_mean(shares):.0f}% of the limit")
    if bad:
        print(f"failed, slower or less accurate: {', '.join(bad)}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
