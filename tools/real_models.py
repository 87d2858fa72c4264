"""Norms of real models: how many there are, how many mixorder has, and why not the others.

Hugging Face's Llama, Qwen3 (QK-norm), Gemma, GPT-2, BERT and T5, timm's ViT, ConvNeXt and Swin: module code
as published, random weights, parameters in bf16, no dropout. For each: the normalisation modules, those that
a region has, and the reason for each other one (by `mixorder.explain`); on a GPU also the largest error of a
norm's gradient against eager float64, stock beside mixorder, and the milliseconds of forward and backward,
the two in turns.
Without a GPU models are small, and the norms are all that is looked at. A package that is missing costs its
models a line. Tables in Markdown on stdout and, with --out, in real_models.md.
Exit status: 0; 1 if a model failed.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gc
import importlib.metadata
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mixorder
from mixorder.cli.bench import Way, cuda_clock, measure
from mixorder.inspection.findings import Findings

GPU = torch.cuda.is_available()


@dataclasses.dataclass(frozen=True)
class Scale:
    """Sizes that all models take theirs from: `tokens` per sample, or `pixels` of an image's side."""

    layers: int
    dim: int
    heads: int
    batch: int
    tokens: int
    vocabulary: int
    images: int
    pixels: int
    classes: int


FULL = Scale(4, 2048, 16, 8, 1024, 32000, 128, 224, 1000)
SMALL = Scale(2, 64, 2, 2, 32, 128, 2, 224, 10)


class Loss(nn.Module):
    """A model's loss: integer targets for each of its logits (..., classes)."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = self.call(self.model, inputs)
        logits = logits if isinstance(logits, Tensor) else logits.logits
        loss_dtype = torch.promote_types(logits.dtype, torch.float32)  # float64 in the reference
        return F.cross_entropy(logits.flatten(0, -2).to(loss_dtype), targets.flatten())


def once(model: nn.Module, inputs: Tensor) -> Any:
    return model(inputs)


def to_and_fro(model: nn.Module, tokens: Tensor) -> Any:
    """An encoder and a decoder on the same tokens."""
    return model(input_ids=tokens, decoder_input_ids=tokens)


# The models.


def _llama_sizes(s: Scale) -> dict[str, Any]:
    return {
        "vocab_size": s.vocabulary,
        "hidden_size": s.dim,
        "intermediate_size": s.dim * 11 // 4,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.heads,
        "max_position_embeddings": s.tokens,
        "use_cache": False,
    }


def llama(s: Scale) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_llama_sizes(s)))


def qwen3(s: Scale) -> nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_llama_sizes(s), head_dim=s.dim // s.heads))


def gemma(s: Scale) -> nn.Module:
    from transformers import GemmaConfig, GemmaForCausalLM

    return GemmaForCausalLM(GemmaConfig(**_llama_sizes(s), head_dim=s.dim // s.heads))


def gpt2(s: Scale) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": s.layers, "n_embd": s.dim, "n_head": s.heads, "n_positions": s.tokens}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    no_ids = {"bos_token_id": None, "eos_token_id": None}  # the defaults lie outside a small vocabulary
    return GPT2LMHeadModel(GPT2Config(vocab_size=s.vocabulary, use_cache=False, **no_ids, **sizes, **dropout))


def bert(s: Scale) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    config = BertConfig(
        vocab_size=s.vocabulary,
        hidden_size=s.dim,
        intermediate_size=4 * s.dim,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        max_position_embeddings=s.tokens,
        **dropout,
    )
    return BertForMaskedLM(config)


def t5(s: Scale) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=s.vocabulary,
        d_model=s.dim,
        d_kv=s.dim // s.heads,
        d_ff=4 * s.dim,
        num_layers=s.layers,
        num_heads=s.heads,
        dropout_rate=0.0,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config)


def vit(s: Scale) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"embed_dim": s.dim // 2, "depth": s.layers, "num_heads": s.heads // 2}
    return VisionTransformer(img_size=s.pixels, num_classes=s.classes, **sizes)


def convnext(s: Scale) -> nn.Module:
    from timm.models.convnext import ConvNeXt

    dims = tuple(s.dim // 16 * factor for factor in (1, 2, 4, 8))
    return ConvNeXt(num_classes=s.classes, depths=(2, 2, s.layers, 2), dims=dims)


def swin(s: Scale) -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    sizes = {"embed_dim": s.dim // 16, "depths": (2, 2, s.layers, 2), "num_heads": (2, 4, 8, 16)}
    return SwinTransformer(img_size=s.pixels, num_classes=s.classes, drop_path_rate=0.0, **sizes)


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a model is made and called; on tokens, or on images."""

    make: Callable[[Scale], nn.Module]
    call: Callable[[nn.Module, Tensor], Any] = once
    images: bool = False


MODELS = {
    "Llama": Kind(llama),
    "Qwen3": Kind(qwen3),
    "Gemma": Kind(gemma),
    "GPT-2": Kind(gpt2),
    "BERT": Kind(bert),
    "T5": Kind(t5, to_and_fro),
    "ViT": Kind(vit, images=True),
    "ConvNeXt": Kind(convnext, images=True),
    "Swin": Kind(swin, images=True),
}


def build(kind: Kind, scale: Scale, device: str) -> tuple[Loss, tuple[Tensor, Tensor]]:
    """The model's loss in bf16, and its inputs and targets; the same on every call."""
    torch.manual_seed(0)
    with torch.device(device):
        model = kind.make(scale).train()
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
        if kind.images:
            model.bfloat16()  # buffers as well: masks are added to what attention computes
            x = torch.randn(scale.images, 3, scale.pixels, scale.pixels).bfloat16()
            return Loss(model, kind.call), (x, torch.randint(scale.classes, (scale.images,)))
        tokens, targets = torch.randint(scale.vocabulary, (2, scale.batch, scale.tokens))
    return Loss(model, kind.call), (tokens, targets)


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


def look_at(name: str, scale: Scale, steps: int) -> Row:
    """All of a model that can be seen here. Raises ImportError without its package."""
    device = "cuda" if GPU else "cpu"
    training, inputs = build(MODELS[name], scale, device)
    package = type(training.model).__module__.split(".")[0]
    row = Row(name, f"{package} {_version(package)}")
    options = {} if GPU else {"mixorder_min_numel": 0}
    row.report = mixorder.explain(training, options=options)(*inputs)
    if GPU:
        truth = exact(training, inputs)
        ways = [Way("stock", {"mixorder": False}), Way("mixorder", {"mixorder": True})]
        measure(ways, (training, inputs), steps, cuda_clock)
        row.stock_ms, row.our_ms = (way.median(1) for way in ways)
        row.stock_error, row.our_error = (worst(training, way, truth) for way in ways)
    return row


def exact(training: Loss, inputs: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Gradients from eager in float64, by the parameter's name."""
    double = copy.deepcopy(training).double()
    x = inputs[0].double() if inputs[0].is_floating_point() else inputs[0]
    double(x, inputs[1]).backward()
    return {name: p.grad for name, p in double.named_parameters() if p.grad is not None}


def worst(training: Loss, way: Way, truth: dict[str, Tensor]) -> float:
    """The largest ||g - ref|| / ||ref|| over the parameters of norms, whose gradients mixorder computes."""
    norms = {path for path, m in training.named_modules() if "norm" in type(m).__name__.lower()}
    names = {id(p): name for name, p in training.named_parameters()}
    errors = []
    for parameter, g in zip(way.parameters, way.gradients, strict=True):
        name = names.get(id(parameter), "")
        ref = truth.get(name)
        if g is not None and ref is not None and name.rpartition(".")[0] in norms and ref.norm() > 0:
            errors.append(float((g.double() - ref).norm() / ref.norm()))
    return max(errors, default=0.0)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _problem(error: Exception) -> str:
    """`absent` without the model's package, or with a torchvision of another torch; else `failed`."""
    if isinstance(error, ImportError) or "torchvision::" in str(error):
        return f"absent: {error}"
    traceback.print_exception(error)
    return f"failed: {type(error).__name__}: {error}"[:200].replace("\n", " ")


# Text.

HEAD = "| model | from | norms | in a region | regions | near misses | error, stock / mixorder | step, ms |"


def text(rows: Sequence[Row], scale: Scale) -> str:
    """The table, and below it what became of the norms that no region has."""
    device = torch.cuda.get_device_name() if GPU else "no GPU: small models, schedules as for an H200"
    about = f"{device}, torch {torch.__version__}; {scale.layers} layers, {scale.dim} wide, bf16"
    lines = [about, "", HEAD, "| --- " * HEAD.count(" |") + "|", *map(line, rows)]
    for row in rows:
        left = [norm for norm in row.report.norms if norm.reason] if row.report else []
        for reason, count in Counter(f"{norm.kind}: {norm.reason}" for norm in left).items():
            lines += [""] if lines[-1].startswith("|") else []
            lines.append(f"- {row.model}: {count} x {reason}")
    return "\n".join(lines)


def line(row: Row) -> str:
    """A model's line of the table."""
    if row.report is None:
        return f"| {row.model} | {row.error} | | | | | | |"
    norms, misses = row.report.norms, Counter(miss.reason.value for miss in row.report.misses)
    cells = [
        row.model,
        row.source,
        str(len(norms)),
        str(sum(not norm.reason for norm in norms)),
        str(len(row.report.regions)),
        ", ".join(f"{reason} {n}" for reason, n in misses.items()) or "0",
        "-" if row.our_error is None else f"{row.stock_error:.2e} / {row.our_error:.2e}",
        "-" if row.our_ms is None else f"{row.stock_ms:.2f} -> {row.our_ms:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS), help="of %(default)s")
    parser.add_argument("--steps", type=int, default=30, help="timed steps")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="a folder for the table")
    args = parser.parse_args(argv)
    rows, scale = [], FULL if GPU else SMALL
    for name in args.models.split(","):
        try:
            rows.append(look_at(name, scale, args.steps))
        except Exception as error:  # the other models go on
            rows.append(Row(name, error=_problem(error)))
        print(line(rows[-1]), file=sys.stderr, flush=True)
        gc.collect()
        torch._dynamo.reset()
        if GPU:
            torch.cuda.empty_cache()
    print(text(rows, scale))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "real_models.md").write_text(text(rows, scale) + "\n")
    return int(any(row.error.startswith("failed") for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
