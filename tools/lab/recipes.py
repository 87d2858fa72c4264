"""Ways to train: dtypes, autocast, activation checkpointing, a dynamic batch, autocast in channels-last."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

RECIPES = ("bf16", "autocast", "fp32", "checkpoint", "dynamic", "channels_last")


class Step(nn.Module):
    """A model with a recipe: `forward` gives the loss, or the output that gradients start from."""

    def __init__(self, model: nn.Module, autocast: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.autocast, self.dtype = model, autocast, dtype

    def forward(self, **inputs: Any) -> Any:
        cast = {
            name: x.to(self.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
            for name, x in inputs.items()
        }
        if self.autocast:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return result_of(self.model(**cast))
        return result_of(self.model(**cast))


def result_of(output: Any) -> Any:
    """The loss, else the first tensors of an output: what a training step starts its backward from."""
    loss = getattr(output, "loss", None)
    if loss is not None or isinstance(output, Tensor):
        return output if loss is None else loss
    for name in ("logits", "last_hidden_state", "sample"):
        if isinstance(tensor := getattr(output, name, None), Tensor):
            return tensor
    return output


def cast(model: nn.Module, recipe: str) -> None:
    """Give parameters and buffers the recipe's dtype, and weights of convolutions its order."""
    if recipe in ("bf16", "checkpoint", "dynamic"):
        model.bfloat16()
    if recipe == "channels_last":
        for weight in model.parameters():
            _channels_last(weight)


def step(model: nn.Module, recipe: str) -> nn.Module:
    """The training step of a model that is cast already."""
    model.train()
    if recipe == "checkpoint":
        checkpointed(model)
    autocast = recipe in ("autocast", "channels_last")
    return Step(model, autocast, torch.float32 if autocast or recipe == "fp32" else torch.bfloat16)


def mark(inputs: Any, recipe: str) -> None:
    """What a recipe says of inputs: the batch, the first dim of every one, is dynamic; images have their
    channels last."""
    for x in tree_leaves(inputs):
        if recipe == "dynamic" and isinstance(x, Tensor) and x.dim():
            torch._dynamo.maybe_mark_dynamic(x, 0)
        if recipe == "channels_last" and isinstance(x, Tensor):
            _channels_last(x)


def _channels_last(x: Tensor) -> None:
    """Lay images or volumes so in memory. Not by `Module.to`: it fails on volumes, and on fake tensors."""
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if order is not None:
        x.data = x.data.contiguous(memory_format=order)


def checkpointed(model: nn.Module) -> None:
    """Switch activation checkpointing on, by the model's own method or around the blocks of its longest list.

    Raises ValueError for a model without blocks.
    """
    if getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    elif hasattr(model, "set_grad_checkpointing"):
        try:
            model.set_grad_checkpointing(True)  # type: ignore[operator]
        except AssertionError as error:
            raise ValueError("it has no activation checkpointing") from error
    else:
        lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)]
        if not lists:
            raise ValueError("it has no list of blocks to checkpoint")
        for block in max(lists, key=len):
            _wrap(block)


def _wrap(block: nn.Module) -> None:
    inner = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(inner, *args, use_reentrant=False, **kwargs)

    block.forward = forward  # type: ignore[method-assign]
