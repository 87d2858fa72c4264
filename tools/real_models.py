"""Norms of real models: how many there are, how many are in a region, and why not the others.

Hugging Face's Llama, Qwen3 (QK-norm), Gemma, GPT-2, BERT and T5, timm's ViT, ConvNeXt and Swin: module code
as published, random weights, parameters in bf16, no dropout. For each: the normalisation modules, those in a
region, and the reason for each of the others (by `mixorder.explain`). On a GPU also the largest error of a
norm's gradient against eager float64, for stock and mixorder, and the milliseconds of forward and backward,
timed in turns.
Without a GPU models are small, and only norms are counted. Models of a missing package are listed as absent.
Tables in Markdown go to stdout and, with --out, to real_models.md.
Exit status: 0; 1 if a model failed.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from lab import arguments
from lab.errors import largest_error
from lab.tables import line, table
from lab.zoo import Spec, batch_of, build
from torch import Tensor, nn

import mixorder
from mixorder.cli.bench import Way, cuda_clock, measure
from mixorder.inspection.findings import Findings

GPU = torch.cuda.is_available()


LAYERS, WIDTH = (4, 2048) if GPU else (2, 64)


def specs() -> dict[str, Spec]:
    """The models at their sizes; sizes of image models are in proportion."""
    heads, batch, tokens, vocabulary = (16, 8, 1024, 32000) if GPU else (2, 2, 32, 128)
    images, pixels, classes = (128, 224, 1000) if GPU else (2, 224, 10)

    def text(kind: str) -> Spec:
        return Spec(kind, LAYERS, WIDTH, heads, batch, tokens, vocabulary)

    def vision(kind: str, part: int) -> Spec:
        return Spec(kind, LAYERS, WIDTH // part, max(1, heads // 2), images, pixels, classes)

    names = {
        "Llama": "llama",
        "Qwen3": "qwen3",
        "Gemma": "gemma",
        "GPT-2": "gpt2",
        "BERT": "bert",
        "T5": "t5",
    }
    found = {name: text(kind) for name, kind in names.items()}
    parts = {"ViT": 2, "ConvNeXt": 16, "Swin": 16}
    return found | {name: vision(name.lower(), part) for name, part in parts.items()}


# What is looked at.


@dataclasses.dataclass
class Row:
    """A model's line; errors and milliseconds are None without a GPU."""

    model: str
    source: str = ""
    report: Findings | None = None
    error: str = ""
    stock_error: float | None = None
    our_error: float | None = None
    stock_ms: float | None = None
    our_ms: float | None = None


def look_at(name: str, spec: Spec, steps: int) -> Row:
    """Everything about a model that this device can measure. Raises ImportError without its package."""
    device = "cuda" if GPU else "cpu"
    training, inputs = build(spec, device), batch_of(spec, device)
    row = Row(name, training.source)
    options = {} if GPU else {"mixorder_min_numel": 0}
    row.report = mixorder.explain(training, options=options)(*inputs)
    if GPU:
        truth = exact(training, inputs)
        ways = [Way("stock", {"mixorder": False}), Way("mixorder", {"mixorder": True})]
        measure(ways, (training, inputs), steps, cuda_clock)
        row.stock_ms, row.our_ms = (way.median(1) for way in ways)
        row.stock_error, row.our_error = (worst(training, way, truth) for way in ways)
    return row


def exact(training: nn.Module, inputs: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Gradients from eager in float64, by the parameter's name."""
    double = copy.deepcopy(training).double()
    x = inputs[0].double() if inputs[0].is_floating_point() else inputs[0]
    double(x, inputs[1]).backward()
    return {name: p.grad for name, p in double.named_parameters() if p.grad is not None}


def worst(training: nn.Module, way: Way, truth: dict[str, Tensor]) -> float:
    """The largest ||g - ref|| / ||ref|| over the parameters of norms, whose gradients mixorder computes."""
    norms = {path for path, m in training.named_modules() if "norm" in type(m).__name__.lower()}
    names = {id(p): name for name, p in training.named_parameters()}
    pairs = []
    for parameter, g in zip(way.parameters, way.gradients, strict=True):
        name = names.get(id(parameter), "")
        if g is not None and name in truth and name.rpartition(".")[0] in norms:
            pairs.append((g, truth[name]))
    return largest_error(pairs)


def _problem(error: Exception) -> str:
    """`absent` without the model's package, or with a torchvision of another torch; else `failed`."""
    if isinstance(error, ImportError) or "torchvision::" in str(error):
        return f"absent: {error}"
    traceback.print_exception(error)
    return f"failed: {type(error).__name__}: {error}"[:200].replace("\n", " ")


# Text.

HEAD = (
    "model",
    "from",
    "norms",
    "in a region",
    "regions",
    "near misses",
    "error, stock / mixorder",
    "step, ms",
)


def text(rows: Sequence[Row]) -> str:
    """The table, and below it the reasons of the norms that are in no region."""
    device = torch.cuda.get_device_name() if GPU else "no GPU: small models, schedules as for an H200"
    about = f"{device}, torch {torch.__version__}; {LAYERS} layers, {WIDTH} wide, bf16"
    notes = []
    for row in rows:
        left = [norm for norm in row.report.norms if norm.reason] if row.report else []
        counts = Counter(f"{norm.kind}: {norm.reason}" for norm in left)
        notes += [f"- {row.model}: {count} x {reason}" for reason, count in counts.items()]
    return "\n".join([about, "", table(HEAD, map(cells, rows)), *([""] if notes else []), *notes])


def cells(row: Row) -> list[str]:
    """A model's line of the table."""
    if row.report is None:
        return [row.model, row.error, *[""] * 6]
    norms, misses = row.report.norms, Counter(miss.reason.value for miss in row.report.misses)
    return [
        row.model,
        row.source,
        str(len(norms)),
        str(sum(not norm.reason for norm in norms)),
        str(len(row.report.regions)),
        ", ".join(f"{reason} {n}" for reason, n in misses.items()) or "0",
        "-" if row.our_error is None else f"{row.stock_error:.2e} / {row.our_error:.2e}",
        "-" if row.our_ms is None else f"{row.stock_ms:.2f} -> {row.our_ms:.2f}",
    ]


def main(argv: Sequence[str]) -> int:
    models = specs()
    parser = arguments.parser(__doc__)
    parser.add_argument("--models", default=",".join(models), help="of %(default)s")
    parser.add_argument("--steps", type=int, default=30, help="timed steps")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="a folder for the table")
    args = parser.parse_args(argv)
    rows = []
    for name in args.models.split(","):
        try:
            rows.append(look_at(name, models[name], args.steps))
        except Exception as error:  # the other models go on
            rows.append(Row(name, error=_problem(error)))
        print(line(cells(rows[-1])), file=sys.stderr, flush=True)
        gc.collect()
        torch._dynamo.reset()
        if GPU:
            torch.cuda.empty_cache()
    print(text(rows))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "real_models.md").write_text(text(rows) + "\n")
    return int(any(row.error.startswith("failed") for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
