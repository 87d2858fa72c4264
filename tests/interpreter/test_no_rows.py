"""Kernels made for some rows and launched with none read nothing outside, whatever the strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import f32, pair, traced_rows
from running import ON
from torch import nn
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental import _config as fx_config
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpreterBuilder

from mixorder import pipeline
from mixorder.plugin import compile_for_interpreter, prepare_interpreter
from mixorder.report import RegionRecord, collect
from mixorder.strategies import STRATEGIES, Strategy
from mixorder.strategies.short_sums import SHORT_SUMS

COLS = 64


def two_stages(x: Any, dy: Any) -> Any:
    q = x * (1 / (x.abs().amax(-1, keepdim=True) + 1))
    return dy - q * (q * dy).sum(-1, keepdim=True), (dy * q).sum(0)


def counted(x: Any, dy: Any) -> Any:
    dx, dw = pair(x, dy)
    return dx, dw, (dx > 0).sum(0), (dx > 0).any(1)


def averaged(x: Any, dy: Any) -> Any:
    dx, _ = pair(x, dy)
    return dx, (x * dy).mean(0)


def columns(x: Any, dy: Any) -> Any:
    """Without a reduction along a row."""
    gradient = x * dy
    return gradient, gradient.sum(0)


@pytest.fixture
def words_are_inside(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each record that a program reads lies in the memory of one of its kernel's arguments."""
    prepare_interpreter()
    original, run = InterpreterBuilder.create_inline_asm, Autotuner.run
    memory: list[tuple[int, int]] = []
    inside: list[bool] = []

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        memory[:] = [(t.data_ptr(), t.numel() * t.element_size()) for t in tensors]
        return run(self, *args, **kwargs)

    def create_inline_asm(self: Any, text: str, constraints: str, values: list[Any], *rest: Any) -> Any:
        if "mixorder_peek" in text or "mixorder_total" in text:
            address = int(values[0].data.flat[0])
            inside.append(any(start <= address < start + size for start, size in memory))
        return original(self, text, constraints, values, *rest)

    monkeypatch.setattr(Autotuner, "run", recorded)
    monkeypatch.setattr(InterpreterBuilder, "create_inline_asm", create_inline_asm)
    return inside


@pytest.mark.parametrize(
    ("strategy", "function"),
    [
        (strategy, function)
        for strategy in STRATEGIES
        if not strategy.blocked and strategy is not SHORT_SUMS  # whose sizes are static
        for function in (
            [columns] if strategy.name == "blocks of columns" else [pair, two_stages, counted, averaged]
        )
    ],
    ids=lambda one: one.name if isinstance(one, Strategy) else None,
)
def test_a_kernel_for_some_rows_runs_with_none(
    strategy: Strategy,
    function: Callable[..., Any],
    plan_with: Callable[..., None],
    words_are_inside: list[bool],
) -> None:
    prepare_interpreter()
    plan_with(strategies=(strategy, *(s for s in STRATEGIES if s is not strategy)))
    cols = 96 if function is columns else COLS  # where blocks leave no lane idle
    graph = traced_rows(function, ((40, cols), f32), ((40, cols), f32))
    with collect() as records:
        pipeline.run(graph, ON)
    fused = [r for r in records if isinstance(r, RegionRecord)]
    assert fused and (fused[0].strategy.startswith(strategy.name) or function is counted)
    module = GraphModule({}, graph)
    for rows in (0, 1, 41):
        x, dy = (torch.randn(rows, cols) for _ in range(2))
        ours = Interpreter(module).run(x, dy)
        for mine, truth in zip(ours, function(x, dy), strict=True):
            assert (mine.shape, mine.dtype) == (truth.shape, truth.dtype)
            torch.testing.assert_close(mine, truth, rtol=1e-5, atol=1e-4, equal_nan=True)
    assert all(words_are_inside) and bool(words_are_inside) == fused[0].strategy.startswith("cooperative")


@pytest.mark.parametrize("first", [0, 1, 6])
def test_a_module_compiled_for_any_number_of_rows(first: int) -> None:
    """`backed_size_oblivious` is one of the ways by which 0 and 1 reach a symbolic graph."""
    module = nn.RMSNorm(COLS)
    torch._dynamo.reset()
    with fx_config.patch(backed_size_oblivious=True):
        compiled = torch.compile(module, backend=compile_for_interpreter(ON))
        for batch in (first, 0, 1, 5):
            x = torch.randn(batch, 7, COLS, requires_grad=True)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            dy = torch.randn(batch, 7, COLS)
            inputs = [x, module.weight]
            ours = torch.autograd.grad(compiled(x), inputs, dy)
            for mine, truth in zip(ours, torch.autograd.grad(module(x), inputs, dy), strict=True):
                torch.testing.assert_close(mine, truth)
