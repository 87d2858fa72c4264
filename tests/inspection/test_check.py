"""Gradients by mixorder versus stock's: what is allowed, what is found wrong, and what is restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mixorder.errors import CannotExplain
from mixorder.inspection.check import Checked, check


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def checked(model: Any, *args: Any, ours: Callable[..., Any] = eager) -> Checked:
    return check(model, args, {}, eager, ours)


class Model(nn.Module):
    """Its result is a norm's: with ones as its gradient, all other gradients would be rounding errors."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)
        self.register_buffer("calls", torch.zeros(()))
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.norm(self.mix(x) + x)


def inputs(dtype: torch.dtype) -> Tensor:
    return torch.randn(24, 32, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_gradients_are_compared_and_nothing_is_changed(dtype: torch.dtype) -> None:
    model, x = Model(dtype), inputs(dtype)
    found = checked(model, x)
    names = {one.name for one in found.compared}
    assert names == {"result 0", "input 0", "mix.weight", "mix.bias", "norm.weight", "norm.bias"}
    assert found.regions == 0 and found.reference == "eager float64" and found.notes == ()
    assert not any(one.wrong for one in found.compared)
    assert all(0 <= one.stock < 10 * torch.finfo(dtype).eps for one in found.compared)
    assert [one.excess for one in found.compared] == sorted((o.excess for o in found.compared), reverse=True)
    assert model.calls == 0 and x.grad is None and all(p.grad is None for p in model.parameters())


class Off(torch.autograd.Function):
    """The identity, with a gradient that is off."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.factor, None


@pytest.mark.parametrize("factor", [1.05, float("nan"), 0.0])
def test_a_wrong_gradient_is_found(factor: float) -> None:
    model = Model(torch.bfloat16)

    def ours(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Tensor) -> Tensor:
            model.calls.add_(1)
            bias = Off.apply(model.norm.bias, factor)
            y = model.mix(x) + x
            return nn.functional.layer_norm(y, (32,), model.norm.weight, bias)

        return run

    found = checked(model, inputs(torch.bfloat16), ours=ours)
    assert [one.name for one in found.compared if one.wrong] == ["norm.bias"] == [found.compared[0].name]


def test_random_numbers_leave_stock_as_the_reference() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Dropout(), nn.LayerNorm(32))
    found = checked(model, inputs(torch.float32))
    assert found.reference == "stock" and "draws random numbers" in found.notes[0]
    assert all(one.ours == 0 and not one.wrong for one in found.compared)


def test_a_model_that_is_not_deterministic_is_told() -> None:
    calls = iter(range(10))
    weight = torch.ones(8, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        return (x * weight * (1 + next(calls) / 100)).sum()

    found = checked(function, torch.randn(4, 8))
    assert "the model is not deterministic" in found.notes[0] and "by 9." in found.notes[0]
    assert not any(one.wrong for one in found.compared)


def test_where_float64_fails_the_models_dtype_is_the_reference() -> None:
    class Named(Model):
        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.mix(x.float()))

    found = checked(Named(torch.float32), inputs(torch.float32))
    assert found.reference == "eager in the model's dtype" and "in float64 it fails" in found.notes[0]


def test_what_has_no_gradients_to_check_is_told() -> None:
    with pytest.raises(CannotExplain, match="no gradients to check"):
        checked(torch.sin, torch.randn(4))

    def step(x: Tensor) -> Tensor:
        loss = (x * x).sum()
        loss.backward()
        return loss

    with pytest.raises(CannotExplain, match="runs a backward itself"):
        checked(step, torch.randn(4, requires_grad=True))
