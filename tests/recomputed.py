"""What a checkpointed function gives in its forward, and what its backward finds by recomputing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Kept(torch.autograd.Function):
    """Gives what its backward finds of `y` as the gradient of `probe`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, probe: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return y + probe

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return grad, y * 1


def both(function: Callable[[Tensor], Tensor], x: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """To be checkpointed: the function's result, and what saves it for the backward."""
    y = function(x)
    return y.detach().clone(), Kept.apply(y, probe)


def forward_and_recomputed(step: Callable[[Tensor, Tensor], Any], x: Tensor) -> tuple[Tensor, Tensor]:
    """The result of checkpointed `both` in the forward, and as its backward computes it."""
    probe = torch.zeros_like(x, requires_grad=True)
    first, result = step(x.requires_grad_(), probe)
    second, _ = torch.autograd.grad(result, [probe, x], torch.randn_like(x))
    return first, second
