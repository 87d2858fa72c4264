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

IMAGES = ("vit", "convnext", "swin")


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
        return self.kind in IMAGES

    def __str__(self) -> str:
        what = "px" if self.of_images else "tokens"
        return f"{self.layers} layers, {self.width} wide, {self.batch} x {self.extent} {what}, bf16"


class Training(nn.Module):
    """A model and its loss. `forward` takes inputs and integer targets, and gives the mean loss in at least
    fp32. An encoder-decoder gets the same tokens twice. `source`: the model's package and its version."""

    def __init__(self, model: nn.Module, spec: Spec) -> None:
        super().__init__()
        self.model, self.twice = model, spec.kind == "t5"
        package = type(model).__module__.split(".")[0]
        try:
            self.source = f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            self.source = package

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = self.model(inputs, decoder_input_ids=inputs) if self.twice else self.model(inputs)
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


def qwen3(s: Spec) -> nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_llama_sizes(s), head_dim=s.width // s.heads))


def gemma(s: Spec) -> nn.Module:
    from transformers import GemmaConfig, GemmaForCausalLM

    return GemmaForCausalLM(GemmaConfig(**_llama_sizes(s), head_dim=s.width // s.heads))


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


def bert(s: Spec) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=s.classes, max_position_embeddings=s.extent, **_encoder_sizes(s))
    return BertForMaskedLM(config)


def t5(s: Spec) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=s.classes,
        d_model=s.width,
        d_kv=s.width // s.heads,
        d_ff=4 * s.width,
        num_layers=s.layers,
        num_heads=s.heads,
        dropout_rate=0.0,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config)


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


def convnext(s: Spec) -> nn.Module:
    from timm.models.convnext import ConvNeXt

    dims = tuple(s.width * factor for factor in (1, 2, 4, 8))
    return ConvNeXt(num_classes=s.classes, depths=(2, 2, s.layers, 2), dims=dims)


def swin(s: Spec) -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    sizes = {"embed_dim": s.width, "depths": (2, 2, s.layers, 2), "num_heads": (2, 4, 8, 16)}
    return SwinTransformer(img_size=s.extent, num_classes=s.classes, drop_path_rate=0.0, **sizes)


MAKERS: dict[str, Callable[[Spec], nn.Module]] = {
    f.__name__: f for f in (llama, qwen3, gemma, gpt2, bert, t5, vit, convnext, swin)
}


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
