"""Run modules and functions fused by the interpreted kernels, and compare what they give.

Errors are norms. A fused gradient may be a tenth worse than the unfused one, which rounds at other places,
plus what summing `n` terms in another order costs in the compute dtype: `eps * sqrt(n)` of the result.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from graphs import f32, f64, traced
from torch import nn
from torch._dynamo.utils import counters

from mixorder import pipeline
from mixorder.options import Options
from mixorder.plugin import compile_for_interpreter, prepare_interpreter

ON = Options(enabled=True, strict=True, interpret=True, min_numel=0)
OFF = Options(enabled=False)

Tensors = tuple[torch.Tensor, ...]


def crossed(*values: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Every other combination, in half the time: each value still meets several of every other list."""
    indexed = itertools.product(*(enumerate(v) for v in values))
    return [tuple(v for _, v in one) for one in indexed if sum(i for i, _ in one) % 2 == 0]


def with_options(**changes: Any) -> Options:
    return Options(**{**vars(ON), **changes})


def gradients(module: nn.Module, x: torch.Tensor, dy: torch.Tensor, options: Options) -> Tensors:
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=compile_for_interpreter(options), dynamic=False)
    x = x.detach().requires_grad_()
    y = compiled(x)
    return torch.autograd.grad(y, [x, *module.parameters()], dy)


def exact_gradients(module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> Tensors:
    module = copy.deepcopy(module).double()
    x = x.double().requires_grad_()
    return torch.autograd.grad(module(x), [x, *module.parameters()], dy.double())


def check(ours: Tensors, stock: Tensors, exact: Tensors, terms: int, scale: float = 0.0) -> None:
    for mine, theirs, truth in zip(ours, stock, exact, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert mine.isfinite().all()
        size = float(truth.norm()) + scale
        my_error, their_error = (float((t.double() - truth).norm()) for t in (mine, theirs))
        compute = torch.finfo(f64 if mine.dtype == f64 else f32).eps
        allowed = 1.1 * their_error + 2 * compute * terms**0.5 * size
        if mine.numel() < 1000:  # a few last bits of a few numbers do not average out
            allowed += torch.finfo(mine.dtype).eps / 4 * size
        assert my_error <= allowed, (tuple(truth.shape), my_error, their_error, size)


def run_fused(function: Callable[..., Any], args: Tensors, options: Options = ON) -> Tensors:
    prepare_interpreter()
    graph = traced(function, *[(tuple(a.shape), a.dtype) for a in args])
    before = counters["mixorder"]["fused_regions"]
    pipeline.run(graph, options)
    assert counters["mixorder"]["fused_regions"] > before
    graph.lint()
    return tuple(torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(*args))
