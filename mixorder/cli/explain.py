"""`python -m mixorder explain package.module:factory`: what mixorder would do to a model. Needs no GPU.

Prints the report of `mixorder.explain`; with --time and --check it also runs the compiled model. Exit
status: 0; 1 where nothing is fused, or rounding does not explain the errors of gradients; 2 on bad arguments
or, with --time, without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mixorder.cli import bench, check
from mixorder.cli.factory import HELP, Example, add_factory, make
from mixorder.cli.interpreted import interpret_triton
from mixorder.cli.parser import Parser
from mixorder.cli.values import at_least, new_file
from mixorder.errors import in_a_line
from mixorder.options import Options

if TYPE_CHECKING:
    from mixorder.inspection.explanation import Report
    from mixorder.inspection.findings import GraphRecord

DESCRIPTION = """\
Predict how much time a training step saves with mixorder. The report says which operators of which modules
become one kernel (a region), what is left to Inductor, why, and what to change.

The model runs once, operator by operator. Without --time and --check, no kernel is compiled or run. Without a
GPU, schedules are chosen for an H200. With --device meta nothing is computed, so the model may have any size.

The exit status is 0 if something is fused, and 1 if nothing is, or if --check finds a wrong gradient."""

EPILOG = f"""\
{HELP}

examples:
  python -m mixorder explain train:factory
  python -m mixorder explain train:factory --device meta --html report.html
  python -m mixorder explain train:factory --details         how each kernel runs
  python -m mixorder explain train:factory --kernel 0        the Triton source of region 0
  python -m mixorder explain train:factory --min-numel 0     whatever the size
  python -m mixorder explain train:factory --time            on a GPU: a step without and with mixorder
  python -m mixorder explain train:factory --check           every gradient versus Inductor's and float64"""


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    import torch

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this torch finds no GPU (leave it out, or try --device meta)")
    _check_arguments(parser, args, device)
    from mixorder.errors import CannotExplain
    from mixorder.inspection.capture import check_versions

    options = {} if args.min_numel is None else {"mixorder_min_numel": args.min_numel}
    dynamic = True if args.dynamic else None
    try:
        check_versions()  # before a model is made, which may take long
        example = make(parser, args.factory, device)
        report = report_of(parser, example, options, dynamic)
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
        print(report.to_json() if args.json else report.details if args.details else report)
    if args.html:
        print(f"Written: {report.html(args.html)}", file=sys.stderr)
    if args.time:
        print("", bench.versus_predicted(example, options, dynamic, report.totals.saved_us), sep="\n")
    if args.check:
        try:
            result = check.checked(example, options, dynamic, device == "cuda")
        except CannotExplain as error:
            parser.error(str(error))
        print("", check.text(result), sep="\n")
        return check.status(result)
    return 0 if report.regions else 1


def report_of(parser: Parser, example: Example, options: dict[str, int], dynamic: bool | None) -> Report:
    """The report of a model; ends with status 2 if the model fails by itself. Raises `CannotExplain`."""
    from mixorder.errors import CannotExplain
    from mixorder.inspection.capture import explain

    function, inputs, named = example
    print("Running forward and backward once, and analysing their graphs.", file=sys.stderr, flush=True)
    try:
        return explain(function, options, dynamic, _seen)(*inputs, **named)
    except CannotExplain:
        raise
    except Exception as error:
        try:
            function(*inputs, **named)
        except Exception as stock_error:
            hint = "" if inputs or named else " (the factory gave a model and no inputs)"
            parser.error(f"the model fails without mixorder as well: {in_a_line(stock_error)}{hint}")
        raise error


def _check_arguments(parser: Parser, args: argparse.Namespace, device: str) -> None:
    """End with status 2 where --time or --check cannot be done; prepare Triton's interpreter for --check."""
    if (args.time or args.check) and (args.json or args.kernel is not None or args.graph is not None):
        parser.error("--json, --kernel and --graph print one thing: leave them out with --time and --check")
    if args.time and device != "cuda":
        parser.error(
            f"--time: {bench.NO_GPU}" if args.device is None else f"--time needs --device cuda, not {device}"
        )
    if args.check and device == "meta":
        parser.error("--check computes gradients, and on the meta device there are only sizes")
    if args.check and device == "cpu":
        interpret_triton(parser)
        print(check.SLOW, file=sys.stderr, flush=True)


def _seen(graph: GraphRecord) -> None:
    """Print that a graph has been analysed."""
    from mixorder.errors import Decline

    misses = sum(isinstance(record, Decline) for record in graph.records)
    fused = len(graph.records) - misses
    summary = f"{graph.num_nodes} nodes, {fused} fused, {misses} near {'miss' if misses == 1 else 'misses'}"
    print(f"  {graph.kind}: {summary}", file=sys.stderr, flush=True)


def _parser() -> Parser:
    parser = Parser("python -m mixorder explain", DESCRIPTION, EPILOG)
    add_factory(parser)
    add = parser.add_argument
    device_help = "device of the factory's tensors (default: a GPU if there is one)"
    add("--device", choices=("cpu", "cuda", "meta"), help=device_help)
    add("--dynamic", action="store_true", help="as torch.compile(dynamic=True)")
    add(
        "--min-numel",
        type=at_least(0),
        metavar="N",
        help=f"do not fuse regions with fewer elements (default: {Options.min_numel})",
    )
    what = parser.add_mutually_exclusive_group()
    details = "also print how each region's kernels run"
    what.add_argument("--details", action="store_true", help=details)
    what.add_argument("--json", action="store_true", help="print the whole report as JSON")
    what.add_argument("--kernel", type=at_least(0), metavar="I", help="print the Triton source of region I")
    what.add_argument(
        "--graph", type=at_least(0), metavar="I", help="print the loops of region I, before and after fusion"
    )
    add("--time", action="store_true", help="on a GPU: also time a step without and with mixorder")
    check_help = "also compare all gradients with Inductor's and with eager float64 (slow without a GPU)"
    add("--check", action="store_true", help=check_help)
    add("--html", type=new_file, metavar="FILE", help="write a page with loops and kernels as well")
    return parser
