"""`python -m mixorder explain package.module:factory`: what mixorder would do to a model. Needs no GPU.

Prints the report of `mixorder.explain`. Exit status: 0; 1 where nothing is fused; 2 on bad arguments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixorder.cli.factory import HELP, add_factory, make
from mixorder.cli.values import at_least, new_file

if TYPE_CHECKING:
    from mixorder.inspection.findings import GraphRecord

DESCRIPTION = """\
Show what mixorder would do to a model's forward and backward: each region that it fuses, from which modules,
with which kernels, and each pair that it leaves alone, with the reason and what to change.

The model runs once, op by op; no kernel of mixorder's is compiled or run. Without a GPU schedules are chosen
as for an H200. With --device meta nothing is computed at all, so that a model of any size will do."""

EPILOG = f"""\
{HELP}

examples:
  python -m mixorder explain train:factory
  python -m mixorder explain train:factory --device meta --html report.html
  python -m mixorder explain train:factory --kernel 0        the Triton text of region 0
  python -m mixorder explain train:factory --min-numel 0     whatever the size"""


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    import torch

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this torch finds no GPU (leave it out, or try --device meta)")
    function, inputs, named = make(parser, args.factory, device)
    from mixorder.errors import CannotExplain
    from mixorder.inspection.capture import explain

    options = {} if args.min_numel is None else {"mixorder_min_numel": args.min_numel}
    print("Running forward and backward once, and looking at their graphs.", file=sys.stderr, flush=True)
    try:
        report = explain(function, options, True if args.dynamic else None, _seen)(*inputs, **named)
    except CannotExplain as error:
        parser.error(str(error))
    for i in (args.kernel, args.graph):
        if i is not None and i >= len(report.regions):
            parser.error(f"there is no region {i}: {len(report.regions)} were fused")
    if args.kernel is not None:
        print(report.kernel(args.kernel))
    elif args.graph is not None:
        print(report.graph(args.graph))
    else:
        print(report.to_json() if args.json else report)
    if args.html:
        print(f"Written: {report.html(args.html)}", file=sys.stderr)
    return 0 if report.regions else 1


def _seen(graph: GraphRecord) -> None:
    """Print that a graph has been analysed."""
    found = f"{graph.num_nodes} nodes, {len(graph.records)} regions and near misses"
    print(f"  {graph.kind}: {found}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mixorder explain",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_factory(parser)
    add = parser.add_argument
    device_help = "where the factory's tensors go (default: a GPU if there is one)"
    add("--device", choices=("cpu", "cuda", "meta"), help=device_help)
    add("--dynamic", action="store_true", help="as torch.compile(dynamic=True)")
    add(
        "--min-numel",
        type=at_least(0),
        metavar="N",
        help="leave regions of fewer elements alone (default: 65536)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="print everything there is, as JSON")
    what.add_argument("--kernel", type=at_least(0), metavar="I", help="print region I's Triton text")
    what.add_argument(
        "--graph", type=at_least(0), metavar="I", help="print region I's loops, before and after"
    )
    add("--html", type=new_file, metavar="FILE", help="write a page with pictures as well")
    return parser
