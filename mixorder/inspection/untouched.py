"""Run a model once, and restore it: random state, buffers, gradients, and calls compiled in place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from ..inductor.tensors import detect_fake_mode
from .calls import modules_of


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that `torch.compile` was given, for one that it returned; else the function itself."""
    for name in ("_orig_mod", "_torchdynamo_orig_callable"):
        function = getattr(function, name, None) or function
    return function


@contextlib.contextmanager
def as_it_was(function: Callable[..., Any], tensors: Sequence[Tensor]) -> Iterator[list[str]]:
    """Restore the state at the end. The list gets a remark for each thing that cannot be restored.

    Until then, calls of modules that `module.compile()` has compiled run uncompiled.
    """
    modules = [module for _, module in modules_of(function)]
    said: list[str] = []
    with _uncompiled_calls(modules), contextlib.ExitStack() as stack:
        if detect_fake_mode(tensors) is None:
            devices = sorted({t.device.index or 0 for t in tensors if t.is_cuda})
            stack.enter_context(torch.random.fork_rng(devices))
            stack.enter_context(_buffers_restored(modules))
            parameters = [p for module in modules for p in module.parameters(recurse=False)]
            stack.enter_context(_gradients_restored([*tensors, *parameters], said))
        yield said


@contextlib.contextmanager
def _uncompiled_calls(modules: Sequence[nn.Module]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module in modules:
            if module._compiled_call_impl is not None:
                stack.enter_context(mock.patch.object(module, "_compiled_call_impl", None))
        yield


@contextlib.contextmanager
def _gradients_restored(tensors: Sequence[Tensor], said: list[str]) -> Iterator[None]:
    """Restore `.grad`, which a training step fills. Parameters, which an optimizer writes, are not copied."""
    leaves = list(
        {id(t): t for t in tensors if t.is_leaf and t.requires_grad and not t.is_inference()}.values()
    )
    saved = [(t, t.grad, t._version) for t in leaves]
    for leaf in leaves:
        leaf.grad = None  # else autograd would add to the saved ones in place
    try:
        yield
    finally:
        for leaf, gradient, _ in saved:
            leaf.grad = gradient
        if any(leaf._version != version for leaf, _, version in saved):
            said.append(
                "the function changed its parameters (an optimizer's step?); these changes are not undone"
            )


@contextlib.contextmanager
def _buffers_restored(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Restore buffers, which a forward may update, such as running statistics."""
    buffers = [buffer for module in modules for buffer in module.buffers(recurse=False)]
    saved = [buffer.detach().clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, saved, strict=True):
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
