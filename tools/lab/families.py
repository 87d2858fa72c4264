"""Model families of transformers and timm, and hand-written ones, on the meta device with two layers.

A family of transformers is a model type with its config's defaults, but for the number of layers; one of
timm is a module of `timm.models`, represented by its first plain model, or a model by its own name, whole.
One of torchao or float8 is a recipe of float8 training, of one block by default (`lab/float8_client.py`),
and may end in sizes. One of `shallow` is any model of timm, with few blocks; one of `programs` and
`spellings` is of `support/spellings.py`. One of `whole` is a model at its published depth, with its loss and
a batch that people train it with. A name may end in `@` and a batch.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from support import spellings
from torch import Tensor, nn

LAYERS = 2
TOKENS, SEQUENCES = 2048, 8  # of decoders
SHORT, SHORT_SEQUENCES = 512, 32  # of encoders
IMAGES = 64
COUNT = re.compile(
    r"^(num_|n_)?(\w+_)?(hidden_)?layers?$|^(num_|n_)?\w*(layers|blocks|depth)$|^num_layers\w*$"
)
NO_COUNT = re.compile(
    r"dense|first_k|sparse|step|skip|interval|freq|norm|shared|share|offset|period|drop|every"
)
WELL_KNOWN = (  # these come first
    *("llama", "gpt2", "bert", "vit", "t5", "qwen3", "gemma2", "gemma3_text", "mistral", "qwen2", "gemma"),
    *("gpt_neox", "roberta", "opt", "phi", "olmo2", "swin", "convnext", "deit", "whisper"),
)

# Kinds of model in transformers, by their mappings. Of several with a model type, the first counts.
KINDS = ("SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM", "IMAGE_CLASSIFICATION")


def names() -> list[str]:
    """All families, such as `transformers/llama`: the well-known ones first, then both packages in turns."""
    known = [f"transformers/{name}" for name in WELL_KNOWN]
    in_turns = itertools.zip_longest(transformers_names(), _of_timm())
    every = [*known, *_by_hand(), *_of_float8(), *(name for pair in in_turns for name in pair if name)]
    return list(dict.fromkeys(every))


def _by_hand() -> Iterator[str]:
    from lab.loops import LOOPS

    yield from (f"loops/{name}" for name in LOOPS)


def _of_float8() -> Iterator[str]:
    from lab.float8_client import BY_HAND, RECIPES

    yield from (f"float8/{name}" for name in BY_HAND)
    if importlib.util.find_spec("torchao") is not None:
        yield from (f"torchao/{name}" for name in RECIPES)


def transformers_names() -> Iterator[str]:
    for kind in KINDS:
        for name in _mapping(kind):
            yield f"transformers/{name}"


def _of_timm() -> Iterator[str]:
    import timm

    yield from (f"timm/{name}" for name in timm.list_modules() if timm.list_models(module=name))


SEED = 68
MODELS = {  # by recipe
    "bf16": "demo/hf transformers/llama loops/mla loops/moe",
    "autocast": "demo/layer transformers/gpt2 loops/dit loops/qk_layer_norm",
    "fp32": "loops/nanogpt",
    "checkpoint": "loops/qk_norm transformers/gpt_neox",
    "dynamic": "loops/tiny loops/torch_rms transformers/bert",
    "channels_last": "loops/unet loops/nnunet transformers/resnet",
}


def replayed() -> Iterator[tuple[str, str]]:
    """The families and recipes whose whole graphs `tools/replay.py` has: the cases, some with a dynamic batch
    as well, casts of one, spellings and programs that are drawn, programs that were written, a block with
    float8 products, and models."""
    from support.cases import CASES
    from support.quantised import RECIPES

    from lab.written import PROGRAMS

    draw = Random(SEED)
    yield from ((f"cases/{name}", "bf16") for name in CASES)
    yield from ((f"cases/{name}", "dynamic") for name in [*CASES][::4])
    yield from ((f"casts/{name}", "dynamic") for name in [*RECIPES][1::9])
    for base in (*spellings.TRAINED, *spellings.PAIRS):
        yield f"spellings/{base}/{draw.randrange(1, 1 << 31)}", "bf16"
    for _ in range(24):
        yield f"programs/{draw.randrange(1 << 31)}", draw.choice(("bf16", "autocast", "fp32", "checkpoint"))
    for name, make in PROGRAMS.items():
        with torch.device("meta"):
            dtype = make().inputs[0].dtype
        yield f"written/{name}", "fp32" if dtype is torch.float32 else "bf16"
    yield "float8/blocks_of_128@4x4096x4096x1", "bf16"
    yield from ((name, recipe) for recipe, names in MODELS.items() for name in names.split())


def build(name: str, device: str = "meta") -> tuple[nn.Module, dict[str, Any]]:
    """The model and its keyword arguments on a device. Raises what the package raises."""
    package, _, family = name.partition("/")
    of_batch = re.fullmatch(r"(.*)@(\d+)", family)
    family, batch = of_batch.groups() if of_batch else (family, "")
    makers: dict[str, Callable[[str], tuple[nn.Module, dict[str, Any]]]] = {
        "transformers": _transformers,
        "timm": _timm,
        "loops": _loop,
        "torchao": _float8,
        "float8": _float8,
        "diffusers": _diffusers,
        "shallow": _few_blocks,
        "programs": lambda seed: spellings.composed(int(seed)),
        "spellings": _spelled,
        "cases": _case,
        "demo": _demo,
        "casts": _cast,
        "written": _written,
        "whole": lambda name: WHOLE[name][1](),
    }
    with torch.device(device):
        model, inputs = makers[package](family)
        return model, {name: _of_batch(x, int(batch)) if batch else x for name, x in inputs.items()}


def _of_batch(x: Any, batch: int) -> Any:
    if not isinstance(x, Tensor):
        return x
    return torch.zeros(batch, *x.shape[1:], dtype=x.dtype, requires_grad=x.requires_grad)


def _spelled(family: str) -> tuple[nn.Module, dict[str, Any]]:
    """A base, by name, and the seed of its spelling; 0 for the base's own."""
    base, _, seed = family.partition("/")
    return spellings.spelled(base, spellings.numbers(Random(seed)) if seed != "0" else {})


class Called(nn.Module):
    """A case's function, of tensors by name. Parameters of a module are its own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, **inputs: Any) -> Any:
        return self.function(*inputs.values())


def _case(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """A case of the family at its training shape."""
    from support.cases import CASES

    case = CASES[name]
    shape = case.shapes.training
    inputs = [torch.zeros(shape, dtype=dtype or torch.get_default_dtype()) for dtype in case.inputs]
    inputs = [x.contiguous(memory_format=case.memory_format) for x in inputs]
    if case.training:
        inputs = [x.requires_grad_() for x in inputs]
    return Called(case.make(*shape)), {f"x{i}": x for i, x in enumerate(inputs)}


def _cast(name: str) -> tuple[nn.Module, dict[str, Any]]:
    from support.quantised import RECIPES

    recipe = RECIPES[name]
    inputs = [torch.zeros(shape, dtype=dtype) for shape, dtype in recipe.like(4096, 4096)]
    return Called(lambda *x: recipe.function(*x)), {f"x{i}": x for i, x in enumerate(inputs)}


def _demo(norm: str) -> tuple[nn.Module, dict[str, Any]]:
    from mixorder.demo_model import Transformer

    return Called(Transformer(2, 768, norm)), {"x": torch.zeros(32, 512, 768, requires_grad=True)}


def _written(name: str) -> tuple[nn.Module, dict[str, Any]]:
    from lab.written import PROGRAMS

    program = PROGRAMS[name]()
    return Called(program.module), {f"x{i}": x for i, x in enumerate(program.inputs)}


def _loop(family: str) -> tuple[nn.Module, dict[str, Any]]:
    from lab.loops import LOOPS

    return LOOPS[family]()


def _float8(family: str) -> tuple[nn.Module, dict[str, Any]]:
    from lab.float8_client import build

    return build(family)


# diffusers.

DIFFUSERS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = {  # class, config, inputs
    "vae": (
        "AutoencoderKL",
        {
            "block_out_channels": (128, 256, 512, 512),
            "down_block_types": ("DownEncoderBlock2D",) * 4,
            "up_block_types": ("UpDecoderBlock2D",) * 4,
            "layers_per_block": 2,
        },
        {"sample": (4, 3, 256, 256)},
    ),
    "ddpm": (
        "UNet2DModel",
        {
            "block_out_channels": (128, 256, 256, 512),
            "down_block_types": ("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        },
        {"sample": (32, 3, 64, 64), "timestep": (32,)},
    ),
    "stable_diffusion": (
        "UNet2DConditionModel",
        {"layers_per_block": 1},
        {"sample": (8, 4, 64, 64), "timestep": (8,), "encoder_hidden_states": (8, 77, 1280)},
    ),
    "stable_diffusion_1.5": (
        "UNet2DConditionModel",
        {"cross_attention_dim": 768},
        {"sample": (8, 4, 64, 64), "timestep": (8,), "encoder_hidden_states": (8, 77, 768)},
    ),
    "dit_xl_2": (
        "DiTTransformer2DModel",
        {"out_channels": 8},  # the noise and its variance
        {"hidden_states": (32, 4, 32, 32), "timestep": (32,), "class_labels": (32,)},
    ),
}


def _diffusers(name: str) -> tuple[nn.Module, dict[str, Any]]:
    import diffusers

    kind, config, inputs = DIFFUSERS[name]
    model = getattr(diffusers, kind)(**config)
    return model, {
        key: _ids(*shape) if len(shape) == 1 else torch.zeros(shape) for key, shape in inputs.items()
    }


# transformers.


def _mapping(kind: str) -> dict[str, Any]:
    from transformers.models.auto import modeling_auto

    return dict(getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES"))


def _transformers(family: str) -> tuple[nn.Module, dict[str, Any]]:
    import transformers
    from transformers.models.auto import modeling_auto

    kind = next(kind for kind in KINDS if family in _mapping(kind))
    config = shrunk(transformers.CONFIG_MAPPING[family])
    if hasattr(config, "use_cache"):
        config.use_cache = False
    mapping = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING")
    model_class = mapping[type(config)]
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    model = model_class._from_config(config) if hasattr(model_class, "_from_config") else model_class(config)
    return model, _inputs(model, config, kind)


def shrunk(config_class: Any) -> Any:
    """A config with its defaults, but two layers wherever it counts layers; nested configs as well."""
    default = config_class()
    values = default.to_dict()
    changes: dict[str, Any] = {}
    if isinstance(values.get("depths"), list | tuple):  # of stages; a count is of these
        changes["depths"] = [min(LAYERS, n) for n in values["depths"]]
    else:
        changes = {name: LAYERS for name, value in values.items() if _counts_layers(name, value)}
        changes |= _of_two_layers(values, {values[name] for name in changes})
    for name in values:
        if hasattr(part := getattr(default, name, None), "to_dict") and type(part) is not config_class:
            changes[name] = shrunk(type(part)).to_dict()
    return config_class(**changes)


def _of_two_layers(values: dict[str, Any], counts: set[int]) -> dict[str, Any]:
    """The lists with something for each layer, for the first layer and the first that differs from it."""
    lists = {name: v for name, v in values.items() if isinstance(v, list | tuple) and len(v) in counts}
    differing = (
        i for n in counts for i in range(1, n) if any(v[i] != v[0] for v in lists.values() if len(v) == n)
    )
    second = next(differing, 1)
    return {name: [v[0], v[second] if second < len(v) else v[1]] for name, v in lists.items()}


def _counts_layers(name: str, value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > LAYERS
    return whole and bool(COUNT.match(name)) and not NO_COUNT.search(name)


def _inputs(model: nn.Module, config: Any, kind: str) -> dict[str, Any]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    takes = inspect.signature(model.forward).parameters
    longest = next((n for a in ("max_position_embeddings", "n_positions") if (n := _size(text, a))), TOKENS)
    decoder = kind == "CAUSAL_LM"
    positions = [m for m in model.modules() if isinstance(m, nn.Embedding) and m.num_embeddings == longest]
    first = max((m.padding_idx + 1 for m in positions if m.padding_idx is not None), default=0)
    tokens = min(longest - first, TOKENS if decoder else SHORT)  # RoBERTa counts from behind the padding
    sequences = SEQUENCES if decoder else SHORT_SEQUENCES
    main = getattr(model, "main_input_name", "input_ids")
    if main == "pixel_values":
        return {main: torch.zeros(IMAGES, _size(config, "num_channels") or 3, *_side(config))} | (
            {"labels": _ids(IMAGES)} if "labels" in takes else {}
        )
    inputs: dict[str, Any] = {}
    if main == "input_features":
        bins = _size(config, "num_mel_bins") or _size(config, "input_feat_per_channel") or 80
        frames = 2 * (_size(config, "max_source_positions") or 1500)
        sequences = 8
        long = "whisper" in type(model).__module__
        inputs[main] = torch.zeros((sequences, bins, frames) if long else (sequences, frames, bins))
        tokens = min(tokens, _size(config, "max_target_positions") or tokens)
    elif main == "input_values":
        inputs[main] = torch.zeros(SEQUENCES, 16000 * 10)
    else:
        inputs["input_ids"] = _ids(sequences, tokens)
    if "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = _ids(sequences, tokens)
    if "labels" in takes:
        inputs["labels"] = _ids(sequences, tokens)
    return inputs


def _ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long)


def _size(config: Any, name: str) -> int:
    value = getattr(config, name, 0)
    return value if isinstance(value, int) else 0


def _side(config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", None) or 224
    return (size, size) if isinstance(size, int) else (size[0], size[1])


# timm.


def _timm(family: str) -> tuple[nn.Module, dict[str, Any]]:
    import timm

    if timm.is_model(family):
        model = timm.create_model(family)
        return model, {"x": torch.zeros(IMAGES, *_input_size(model))}
    choice = timm.list_models(module=family)
    plain = [name for name in choice if "base" in name or "_b" in name or "small" in name] or choice
    name = min(plain, key=len)
    return _few_blocks(name)


def _few_blocks(name: str) -> tuple[nn.Module, dict[str, Any]]:
    model, size = _shallow(name)
    return model, {"x": torch.zeros(IMAGES, *size)}


def _shallow(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A model of timm with few blocks, if its class takes `depth` or `depths`; else as it is."""
    import timm

    whole = timm.create_model(name)
    size = _input_size(whole)
    for change in _fewer(whole):
        try:
            return timm.create_model(name, **change), size
        except Exception:  # noqa: BLE001, S112  the class takes no such argument
            continue
    return whole, size


def _input_size(model: nn.Module) -> tuple[int, ...]:
    given = model.default_cfg
    return tuple(given["input_size"] if isinstance(given, dict) else given.input_size)  # type: ignore[index, union-attr]


def _fewer(model: nn.Module) -> Iterator[dict[str, Any]]:
    takes = inspect.signature(type(model).__init__).parameters
    if "depth" in takes:
        yield {"depth": LAYERS}
    for key in ("depths", "layers"):
        default = takes[key].default if key in takes else None
        if isinstance(default, list | tuple) and all(isinstance(n, int) for n in default):
            yield {key: tuple(min(LAYERS, n) for n in default)}


# Whole models.


class Classifier(nn.Module):
    """A model of timm, and the cross entropy of its logits (images, classes)."""

    classes = 1000

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x).float(), labels)


class Denoiser(nn.Module):
    """A model of diffusers, and the squared error of its noise (images, 4, height, width)."""

    classes = 1000  # and as many steps of time

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, noise: Tensor, **inputs: Tensor) -> Tensor:
        predicted = self.model(**inputs).sample[:, : noise.shape[1]]
        return F.mse_loss(predicted.float(), noise.float())


def _classifier(name: str, images: int) -> tuple[nn.Module, dict[str, Any]]:
    import timm

    model = timm.create_model(name)
    return Classifier(model), {"x": torch.zeros(images, *_input_size(model)), "labels": _ids(images)}


def _denoiser(name: str) -> tuple[nn.Module, dict[str, Any]]:
    model, inputs = _diffusers(name)
    return Denoiser(model), {"noise": torch.zeros_like(next(iter(inputs.values()))), **inputs}


def _decoder(name: str, shape: tuple[int, int], **sizes: Any) -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    config = transformers.CONFIG_MAPPING[name](use_cache=False, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.loss_type = "ForCausalLM"  # GPT-2's is missing: the warning of it breaks the graph
    return model, {"input_ids": _ids(*shape), "labels": _ids(*shape)}


LLAMA_1B = {  # of Llama 3.2
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}


def _liger() -> tuple[nn.Module, dict[str, Any]]:
    """The Llama with what Liger replaces by default: RMSNorms, SwiGLU, rotary embeddings, and the head with
    its loss, whose logits it computes in chunks. Liger also changes transformers for the rest of the process.
    """
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    model, inputs = _decoder("llama", (4, 2048), **LLAMA_1B)
    apply_liger_kernel_to_llama(model=model)
    return model, {**inputs, "return_dict": True}  # else it asks the config, whose warning breaks the graph


WHOLE: dict[str, tuple[str, Callable[[], tuple[nn.Module, dict[str, Any]]]]] = {  # recipe, builder
    "stable_diffusion_1.5": ("channels_last", lambda: _denoiser("stable_diffusion_1.5")),
    "convnext_b": ("autocast", lambda: _classifier("convnext_base", 64)),
    "dit_xl_2": ("bf16", lambda: _denoiser("dit_xl_2")),
    "llama_1b": ("checkpoint", lambda: _decoder("llama", (4, 2048), **LLAMA_1B)),
    "llama_1b_liger": ("checkpoint", _liger),
    "gpt2": ("autocast", lambda: _decoder("gpt2", (16, 1024))),
    "vit_b": ("bf16", lambda: _classifier("vit_base_patch16_224", 128)),
    "resnet50": ("channels_last", lambda: _classifier("resnet50", 256)),
}


def whole() -> list[tuple[str, str]]:
    """The whole models and their recipes, those first that compile longest."""
    return [(f"whole/{name}", recipe) for name, (recipe, _) in WHOLE.items()]
