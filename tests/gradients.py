"""Gradients of x and a module's parameters: of a compiled function, and in eager float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def grads(function: Callable[..., Any], module: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x), [x, *module.parameters()], dy)


def exact(module: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    wide = copy.deepcopy(module).double()
    return grads(wide, wide, x.double(), dy.double())
