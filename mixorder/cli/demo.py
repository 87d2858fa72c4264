"""`python -m mixorder demo`: what mixorder does to the training step of a small transformer.

Compiles the same forward and backward without and with mixorder, and prints the regions that it
fused or left alone, what a step costs each way, and each way's gradient error against float64.
Exit status: 0; 1 if mixorder's gradients are worse or nothing was fused; 2 on bad arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mixorder.cli.interpreted import interpret_triton
from mixorder.cli.parser import Parser
from mixorder.cli.values import at_least

if TYPE_CHECKING:
    from torch import Tensor

    from mixorder.demo_model import Problem
    from mixorder.errors import Decline
    from mixorder.report import RegionRecord

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
GPU_SHAPE = {"batch": 8, "seq": 1024, "dim": 1024}
PACKAGES = ("mixorder", "torch", "triton")
CPU_SHAPE = {"batch": 2, "seq": 16, "dim": 64}

DESCRIPTION = """\
Train one step of a small transformer, compiled without and with mixorder, and compare.

On a GPU it prints how many kernels the backward launches, times, compile times and the errors of gradients.
Without a GPU the Triton interpreter runs the same kernels on CPU tensors. That shows whether they are right,
and not how fast they are."""

EPILOG = """\
examples:
  python -m mixorder demo                                 LayerNorm, bf16
  python -m mixorder demo --norm rms --show-kernel        RMSNorm, and the Triton source of its kernels
  python -m mixorder demo --norm hf --dtype fp16          RMSNorm as Hugging Face models write it
  python -m mixorder demo --batch 4 --seq 4096 --dim 2048 a shape of your own (rows = batch * seq)

terms:
  inner reduction   over the columns of a row; dx needs it
  outer reduction   over the rows; it gives dw and db
  region            the operators that become one main kernel: such reductions, and the work around them"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Results of one way of compiling. The figures that need a GPU are None without one."""

    records: list[RegionRecord | Decline]
    errors: dict[str, float]
    nodes_fused: int | None = None
    kernels: tuple[str, ...] | None = None
    backward_ms: float | None = None
    step_ms: float | None = None
    compile_s: float | None = None

    @property
    def worst(self) -> tuple[str, float]:
        """The gradient with the largest error; one that is not a number counts as the largest."""
        return max(self.errors.items(), key=lambda e: float("inf") if e[1] != e[1] else e[1])


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    on_gpu = _choose_device(parser, args.device)
    if not on_gpu:
        interpret_triton(parser)
    for name, default in (GPU_SHAPE if on_gpu else CPU_SHAPE).items():
        setattr(args, name, getattr(args, name) or default)
    from mixorder.demo_model import Problem

    shape = (args.batch, args.seq, args.dim)
    device = "cuda" if on_gpu else "cpu"
    problem = Problem.create(args.layers, shape, args.norm, DTYPES[args.dtype], device)
    print(_heading(args, problem), flush=True)
    exact = problem.exact_gradients()
    measure = _measure_on_gpu if on_gpu else _measure_interpreted
    stock, ours = (measure(problem, exact, enabled) for enabled in (False, True))
    print(_regions_text(ours.records))
    print(_comparison_text(stock, ours))
    if args.show_kernel:
        print(_kernels_text(ours.records))
    return _verdict(stock, ours)


# Arguments and set-up.


def _parser() -> Parser:
    parser = Parser("python -m mixorder demo", DESCRIPTION, EPILOG)
    add = parser.add_argument
    norm_help = "LayerNorm, RMSNorm, or Hugging Face style RMSNorm (default: %(default)s)"
    add("--norm", choices=("layer", "rms", "hf"), default="layer", help=norm_help)
    dtype_help = "of input and parameters (default: %(default)s)"
    add("--dtype", choices=tuple(DTYPES), default="bf16", help=dtype_help)
    add("--layers", type=at_least(1), default=2, help="transformer blocks (default: %(default)s)")
    for name, meaning in {"batch": "sequences", "seq": "tokens each", "dim": "model width"}.items():
        default = f"{GPU_SHAPE[name]} on a GPU, {CPU_SHAPE[name]} without"
        add(f"--{name}", type=at_least(1), metavar="N", help=f"{meaning} (default: {default})")
    device_help = "interpreter: CPU tensors, no GPU needed (default: a GPU if there is one)"
    add("--device", choices=("auto", "cuda", "interpreter"), default="auto", help=device_help)
    add("--show-kernel", action="store_true", help="print the Triton source of the kernels")
    return parser


def _choose_device(parser: Parser, device: str) -> bool:
    """Whether to run on a GPU."""
    import torch

    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        parser.error("--device cuda: this torch finds no GPU (try --device interpreter)")
    return available and device != "interpreter"


# Measurements.


def _measure_interpreted(problem: Problem, exact: Sequence[Tensor], enabled: bool) -> Outcome:
    import torch

    from mixorder.inductor.config import fresh_cache
    from mixorder.options import Options
    from mixorder.plugin import compile_for_interpreter
    from mixorder.report import RegionRecord, collect

    torch.compiler.reset()
    options = Options(enabled, strict=True, interpret=True, min_numel=0)
    with fresh_cache(), collect() as records:
        compiled = torch.compile(problem.module, backend=compile_for_interpreter(options))
        grads = problem.gradients(compiled)
    fused = sum(record.num_nodes for record in records if isinstance(record, RegionRecord))
    return Outcome(records, problem.errors(grads, exact), nodes_fused=fused)


def _measure_on_gpu(problem: Problem, exact: Sequence[Tensor], enabled: bool) -> Outcome:
    import torch

    from mixorder.inductor.config import fresh_cache
    from mixorder.report import collect

    options = {"mixorder": True, "mixorder_strict": True} if enabled else {"mixorder": False}
    _warm_up_compiler(options)
    torch.compiler.reset()
    with fresh_cache():
        with collect() as records:
            start = time.perf_counter()
            compiled = torch.compile(problem.module, options=options)
            grads = problem.gradients(compiled)
            torch.cuda.synchronize()
            compile_s = time.perf_counter() - start
        errors = problem.errors(grads, exact)
        backward_ms, step_ms = problem.times_ms(compiled)
        kernels = problem.backward_kernels(compiled)
    return Outcome(records, errors, None, kernels, backward_ms, step_ms, compile_s)


def _warm_up_compiler(options: dict[str, bool]) -> None:
    """Import everything and start compile workers before a compile is timed."""
    import torch

    from mixorder.demo_model import Problem
    from mixorder.inductor.config import fresh_cache

    small = Problem.create(1, (2, 64, 64), "layer", "float32", "cuda")
    with fresh_cache():
        small.gradients(torch.compile(small.module, options={**options, "mixorder_min_numel": 0}))
        torch.cuda.synchronize()


# Text.


def _heading(args: argparse.Namespace, problem: Problem) -> str:
    import torch

    from mixorder.inductor.versions import package_versions

    device = torch.cuda.get_device_name() if problem.x.is_cuda else "CPU, Triton interpreter"
    versions = [f"{name} {version}" for name, version in package_versions(*PACKAGES).items()]
    rows = [
        ("versions", ", ".join([*versions, f"Python {platform.python_version()}"])),
        ("device", device),
        ("model", f"{args.layers} transformer blocks, --norm {args.norm}, {args.dtype}"),
        ("input", f"batch {args.batch} x seq {args.seq} x dim {args.dim}"),
    ]
    return _table(rows)


def _regions_text(records: Sequence[RegionRecord | Decline]) -> str:
    from mixorder.errors import Decline

    rows = [("region", "rows x cols", "computes in", "inner", "outer", "schedule", "main kernel")]
    left = []
    for record in records:
        if isinstance(record, Decline):
            left.append(f"  {record}. {record.reason.explanation}")
            continue
        schedule, tile = record.schedule, record.schedule.tile
        chosen = f"programs {schedule.num_splits}, tile {tile.xblock} x {schedule.r0_block}"
        chosen += f" in {schedule.chunks} chunks, " if schedule.chunks > 1 else ", "
        chosen += f"warps {tile.num_warps}, stages {tile.num_stages}"
        shape = f"{record.rows} x {record.cols}"
        reductions = (str(len(record.inner)), str(len(record.outer)))
        dtype = record.dtype.removeprefix("torch.")
        rows.append((record.name, shape, dtype, *reductions, chosen, record.kernels[0].name))
    fused = _table(rows) if len(rows) > 1 else "  none"
    timed = [r for r in records if not isinstance(r, Decline) and r.tuning is not None]
    fused = "\n".join([fused, *(f"  {record.name} {record.tuning}" for record in timed)])
    declined = "\n".join(left) or "  none"
    title = "Regions fused (inner, outer: number of reductions)"
    return f"\n{title}\n{fused}\n\nLeft to Inductor\n{declined}"


def _comparison_text(stock: Outcome, ours: Outcome) -> str:
    def row(label: str, show: Callable[[Outcome], str]) -> tuple[str, str, str]:
        return label, show(stock), show(ours)

    def count(outcome: Outcome, prefix: str) -> str:
        return str(sum(name.startswith(prefix) for name in outcome.kernels or ()))

    rows = [("", "without mixorder", "with mixorder")]
    if ours.kernels is None:
        rows.append(row("FX nodes computed in mixorder's kernels", lambda o: str(o.nodes_fused)))
    else:
        rows += [
            row("kernels launched by one backward", lambda o: count(o, "")),
            row("  of which Triton", lambda o: count(o, "triton_")),
            row("  of which mixorder's", lambda o: count(o, "triton_mixorder_")),
            row("backward", lambda o: f"{o.backward_ms:.3f} ms"),
            row("training step (forward, backward)", lambda o: f"{o.step_ms:.3f} ms"),
            row("compile time, cold", lambda o: f"{o.compile_s:.1f} s"),
        ]
    rows.append(row("largest gradient error", lambda o: f"{o.worst[1]:.3e}"))
    rows.append(row("  in the gradient of", lambda o: o.worst[0]))
    text = "\nOne training step\n" + _table(rows)
    if ours.kernels is None:
        text += "\n  Launches are counted, and times taken, on a GPU only."
    return text + "\n  Error: ||g - ref|| / ||ref||, ref from eager in float64; input and every parameter."


def _kernels_text(records: Sequence[RegionRecord | Decline]) -> str:
    from mixorder.report import RegionRecord

    fused = [record for record in records if isinstance(record, RegionRecord)]
    texts = dict.fromkeys(kernel.text for record in fused for kernel in record.kernels)
    return "\nKernels\n\n" + "\n\n".join(texts)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text with their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _verdict(stock: Outcome, ours: Outcome) -> int:
    """Print the conclusion; the exit status."""
    from mixorder.errors import Decline

    if all(isinstance(record, Decline) for record in ours.records):
        print("\nFAILED: no region was fused.")
        return 1
    limit = stock.worst[1] * 1.1 + 1e-6
    if not ours.worst[1] <= limit:
        print(f"\nFAILED: mixorder's largest error is {ours.worst[1]:.3e}, allowed is {limit:.3e}.")
        return 1
    print("\nOK: regions were fused, and the gradients are as accurate as without mixorder.")
    return 0
