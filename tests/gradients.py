"""Norms on a GPU, and gradients of x and their parameters: of a compiled function, and in eager float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from graphs import HFRMSNorm, randomised
from torch import Tensor, nn

Tensors = tuple[Tensor, ...]

# A given eps: by default RMSNorm's is that of the dtype, and the reference in fp64 another function.
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": lambda n: nn.RMSNorm(n, eps=1e-6),
    "hf": HFRMSNorm,
}


def case(
    norm: Callable[[int], nn.Module], shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[nn.Module, Tensor, Tensor]:
    """A norm with random weights, its input and the gradient of its result."""
    x, dy = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
    return randomised(norm(shape[-1]), dtype).cuda(), x, dy


def grads(function: Callable[..., Any], module: nn.Module, x: Tensor, dy: Tensor | None) -> Tensors:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x), [x, *module.parameters()], dy)


def exact(module: nn.Module, x: Tensor, dy: Tensor) -> Tensors:
    wide = copy.deepcopy(module).double()
    return grads(wide, wide, x.double(), dy.double())


def errors(found: Sequence[Tensor], truths: Sequence[Tensor]) -> list[float]:
    """Relative, as norms."""
    return [float((g.double() - t).norm() / t.norm()) for g, t in zip(found, truths, strict=True)]


def as_exact(
    ours: Sequence[Tensor], stock: Sequence[Tensor], truths: Sequence[Tensor], factor: float, more: float
) -> None:
    """Errors are at most `factor` times stock's, and `more`."""
    for mine, theirs in zip(errors(ours, truths), errors(stock, truths), strict=True):
        assert mine <= factor * theirs + more


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether each has the bits of the other."""
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(one, other, strict=True))
