"""Compiles inside a compile, with the real Inductor CPU backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import find
from recorder import Lowered
from torch import nn
from torch._inductor import config
from torch.fx import Graph

from mixorder import pipeline
from mixorder.inductor import stock
from mixorder.inductor.config import without_autograd_cache
from mixorder.rewrite.standalone import standalone
from mixorder.tune.measure import in_own_thread


def compile_regions(graph: Graph, errors: list[float]) -> None:
    """Compile each region of a graph by itself, and compare with the nodes one by one."""
    for region in find(graph):
        by_itself = standalone(region, int)
        likes = [(like.dtype, like.shape, like.stride) for like in by_itself.inputs]

        def run(by_itself: Any = by_itself, likes: Any = likes) -> None:
            compiled = stock.compile_as_shipped(by_itself.module(), likes, torch.device("cpu"))
            inputs = [
                torch.randn(shape).to(dtype).as_strided(shape, stride) for dtype, shape, stride in likes
            ]
            for _ in range(2):
                for mine, theirs in zip(compiled(inputs), by_itself.module()(*inputs), strict=True):
                    errors.append(float((mine - theirs).abs().max()))

        in_own_thread(run)


class Model(nn.Module):
    """A region in the backward, and one in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x))
        return y * y.mean(1, keepdim=True) + y.mean(0)


def gradients(function: Callable[..., Any], model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    return list(torch.autograd.grad(function(x).sin().sum(), [x, *model.parameters()]))


def test_in_the_pass_of_a_forward_and_of_a_backward(
    monkeypatch: pytest.MonkeyPatch, lowered: Lowered
) -> None:
    errors: list[float] = []

    def run(graph: Graph, options: Any) -> list[Any]:
        compile_regions(graph, errors)
        return []

    monkeypatch.setattr(pipeline, "run", run)
    torch.manual_seed(0)
    model, x = Model().double(), torch.randn(512, 64).double()
    torch._dynamo.reset()
    with config.patch(fx_graph_cache=False), without_autograd_cache():
        got = gradients(torch.compile(model, options={"mixorder": True}), model, x)
    for mine, theirs in zip(got, gradients(model, model, x), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert errors and max(errors) < 1e-9
    assert config.triton.mix_order_reduction
    first, forward, *others, backward = lowered
    assert [first, *others] == [(False, False, False)] * (1 + len(others)) and others
    assert [forward, backward] == [(True, False, True)] * 2


def test_settings_are_those_without_mixorder() -> None:
    before = stock.settings()
    with config.patch({"triton.unique_kernel_names": not config.triton.unique_kernel_names}):
        assert stock.settings() != before
    with config.patch(post_grad_custom_post_pass=print, mixorder_min_numel=7):
        assert stock.settings() == before
