"""`python -m mixorder demo`: what mixorder does to the training step of a small transformer.

Prints the report of `explain`, on a GPU the times of a step without and with mixorder, and both ways' errors
of gradients against float64. Exit status: 0; 1 if mixorder's gradients are worse or nothing was fused; 2 on
bad arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from mixorder.cli import bench, check
from mixorder.cli.explain import report_of
from mixorder.cli.interpreted import interpret_triton
from mixorder.cli.parser import Parser
from mixorder.cli.values import at_least

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
GPU_SHAPE = {"batch": 8, "seq": 1024, "dim": 1024}
CPU_SHAPE = {"batch": 2, "seq": 16, "dim": 64}

DESCRIPTION = """\
Train one step of a small transformer, compiled without and with mixorder, and compare: what is fused, the
errors of gradients and, on a GPU, times. Without a GPU the Triton interpreter runs the same kernels on CPU
tensors. This shows whether they are right, but not how fast they are."""

EPILOG = """\
examples:
  python -m mixorder demo                                 LayerNorm, bf16
  python -m mixorder demo --norm rms --show-kernel        RMSNorm, and the Triton source of its kernels
  python -m mixorder demo --norm hf --dtype fp16          RMSNorm as Hugging Face models write it
  python -m mixorder demo --batch 4 --seq 4096 --dim 2048 a shape of your own (rows = batch * seq)

terms:
  inner reduction   over the columns of a row; dx needs it
  outer reduction   over the rows; it gives dw and db
  region            the operators that become one main kernel: such reductions, and operators around them"""


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    on_gpu = _choose_device(parser, args.device)
    if not on_gpu:
        interpret_triton(parser)
    defaults = GPU_SHAPE if on_gpu else CPU_SHAPE
    batch, seq, dim = (getattr(args, name) or default for name, default in defaults.items())
    from mixorder.demo_model import example

    blocks = "1 transformer block" if args.layers == 1 else f"{args.layers} transformer blocks"
    print(f"{blocks}, --norm {args.norm}, {args.dtype}, batch {batch} x seq {seq} x dim {dim}\n", flush=True)
    device = "cuda" if on_gpu else "cpu"
    model = example(args.layers, (batch, seq, dim), args.norm, DTYPES[args.dtype], device)
    options = {} if on_gpu else {"mixorder_min_numel": 0}
    report = report_of(parser, model, options, None)
    print(report)
    if args.show_kernel:
        texts = dict.fromkeys(kernel.text for region in report.regions for kernel in region.kernels)
        print("\nKernels", *texts, sep="\n\n")
    if on_gpu:
        print("", bench.versus_predicted(model, options, None, report.totals.saved_us), sep="\n", flush=True)
    result = check.checked(model, options, None, on_gpu)
    print("", check.text(result), sep="\n")
    return check.status(result)


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
