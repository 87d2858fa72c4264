"""Models as published, with random weights: module code of transformers and timm, at chosen sizes.

Parameters are in bf16, attention is scaled_dot_product_attention, there is no dropout. Knows nothing of how
models are compiled or measured.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Spec:
    """A model by its sizes: `extent` is tokens per sample, or an image's side in pixels; `classes` is the
    size of the vocabulary, or the number of labels."""

    kind: str
    layers: int
    width: int
    heads: int
    batch: int
    extent: int
    classes: int

    @property
    def of_images(self) -> bool:
        return self.kind == "vit"

    def __str__(self) -> str:
        what = "px" if self.of_images else "tokens"
        return f"{self.layers} layers, {self.width} wide, {self.batch} x {self.extent} {what}, bf16"


class Training(nn.Module):
    """A model and its loss. `forward` takes inputs and integer targets, and gives the mean loss in at least
    fp32. `source`: the model's package and its version."""

    def __init__(self, model: nn.Module, spec: Spec) -> None:
        super().__init__()
        self.model = model
        package = type(model).__module__.split(".")[0]
        try:
            self.source = f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            self.source = package

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = self.model(inputs)
        logits = logits if isinstance(logits, Tensor) else logits.logits
        dtype = torch.promote_types(logits.dtype, torch.float32)  # float64 in a reference
        return F.cross_entropy(logits.flatten(0, -2).to(dtype), targets.flatten())


def _llama_sizes(s: Spec) -> dict[str, Any]:
    """The MLP is 2.75 times as wide as the model, as in Llama's small relatives."""
    return {
        "vocab_size": s.classes,
        "hidden_size": s.width,
        "intermediate_size": s.width * 11 // 4,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.heads,
        "max_position_embeddings": s.extent,
        "use_cache": False,
    }


def llama(s: Spec) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_llama_sizes(s)))


def gpt2(s: Spec) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": s.layers, "n_embd": s.width, "n_head": s.heads, "n_positions": s.extent}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    no_ids = {"bos_token_id": None, "eos_token_id": None}  # the defaults lie outside a small vocabulary
    return GPT2LMHeadModel(GPT2Config(vocab_size=s.classes, use_cache=False, **no_ids, **sizes, **dropout))


def _encoder_sizes(s: Spec) -> dict[str, Any]:
    sizes = {"num_hidden_layers": s.layers, "num_attention_heads": s.heads}
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return {**sizes, "hidden_size": s.width, "intermediate_size": 4 * s.width, **dropout}


def vit(s: Spec) -> nn.Module:
    """timm's, or transformers' where timm cannot be imported (it needs torchvision)."""
    try:
        from timm.models.vision_transformer import VisionTransformer
    except (ImportError, RuntimeError):
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(image_size=s.extent, num_labels=s.classes, **_encoder_sizes(s))
        return ViTForImageClassification(config)
    sizes = {"depth": s.layers, "embed_dim": s.width, "num_heads": s.heads}
    return VisionTransformer(img_size=s.extent, num_classes=s.classes, **sizes)


MAKERS: dict[str, Callable[[Spec], nn.Module]] = {f.__name__: f for f in (llama, gpt2, vit)}


def build(spec: Spec, device: str) -> Training:
    """The model on `device`, the same weights in every process. Raises ImportError without its package."""
    torch.manual_seed(0)
    with torch.device(device):
        model = MAKERS[spec.kind](spec)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    if spec.of_images:
        model.bfloat16()  # buffers as well: masks are added to what attention computes
    return Training(model.train(), spec)


def batch_of(spec: Spec, device: str) -> tuple[Tensor, Tensor]:
    """Inputs, token ids (batch, extent) or bf16 images (batch, 3, extent, extent), and their targets."""
    generator = torch.Generator(device).manual_seed(1)
    shape = (spec.batch,) if spec.of_images else (spec.batch, spec.extent)
    ids, targets = (torch.randint(spec.classes, shape, device=device, generator=generator) for _ in range(2))
    if not spec.of_images:
        return ids, targets
    side = (spec.batch, 3, spec.extent, spec.extent)
    return torch.randn(side, device=device, generator=generator).bfloat16(), targets
