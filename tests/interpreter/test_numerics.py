"""Gradients through the interpreted kernels, against float64 and against the same graph unfused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f16, f32, f64, pair
from running import ON, Tensors, gradients, run_fused, with_options
from tables.heads import Head
from torch._dynamo.utils import counters

from mixorder.plugin import compile_for_interpreter


def test_every_fresh_buffer_is_poisoned(poisoned: list[int]) -> None:
    dx, dw = run_fused(pair, (torch.randn(5, 7), torch.randn(5, 7)))
    assert len(poisoned) == 3 and poisoned[:2] == [35, 7]
    assert dx.isfinite().all() and dw.isfinite().all()


@pytest.mark.parametrize("dtype", [f32, bf16, f64])
def test_infinite_sums_over_rows_are_those_of_eager(dtype: torch.dtype) -> None:
    """Also where the partial sums are compensated: an infinity minus itself is no correction."""
    infinity = float("inf")
    x = torch.randn(37, 20, dtype=dtype)
    for j, values in enumerate([[infinity], [-infinity], [infinity, -infinity], [3e38] * 3]):
        for i, value in enumerate(values):
            x[3 + 5 * i + j, 7 + j] = value
    dy = torch.ones_like(x)

    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        product = x * dy
        return dy * product.sum(1, keepdim=True), product.sum(0)

    ours = run_fused(function, (x, dy), with_options(split_size=37))
    for mine, theirs in zip(ours, function(x, dy), strict=True):
        torch.testing.assert_close(mine[mine.isfinite()], theirs[theirs.isfinite()], atol=1e-5, rtol=0.02)
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.isinf(), theirs.isinf())


@pytest.mark.parametrize("cols", [64, 100])
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_moments_are_finite_where_a_sum_is_not(dtype: torch.dtype, cols: int) -> None:
    """Inductor's loops update the mean by each element, and so add up no row."""

    def function(x: torch.Tensor) -> Any:
        variance, mean = torch.var_mean(x.to(f32), 1, correction=0, keepdim=True)
        return mean, (x - mean) * torch.rsqrt(variance + 1e-5), x.to(f32).sum(0)

    x = torch.randn(12, cols, dtype=dtype)
    x[:4] = x[:4].clamp(-2, 2) * 8.5e37
    x[4:8] = 8.5e37 + x[4:8] * 1e36
    x[8] = 8.5e37
    mean, normalised, _ = run_fused(function, (x,))
    exact = x.double().mean(1, keepdim=True)
    largest = x.double().abs().amax(1, keepdim=True)
    assert float(((mean.double() - exact).abs() / largest).max()) <= 1e-6
    assert normalised.isfinite().all()


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_emulated_casts_round_where_eager_does(dtype: torch.dtype) -> None:
    """Otherwise the product is rounded once in eager and never here."""

    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        product = x * dy
        scaled = torch.tanh(product + 1.5) * x
        return dy - scaled * product.sum(1, keepdim=True), scaled.sum(0)

    args = torch.randn(37, 20, dtype=dtype), torch.randn(37, 20, dtype=dtype)
    differences = []
    for emulate in (False, True):
        torch._dynamo.reset()
        with torch.no_grad(), torch._inductor.config.patch(emulate_precision_casts=emulate):
            ours = torch.compile(function, backend=compile_for_interpreter(ON), dynamic=False)(*args)
        differences.append(sum(int((a != b).sum()) for a, b in zip(ours, function(*args), strict=True)))
    assert counters["mixorder"] == {"fused_regions": 2}
    assert differences[0] > 50 and differences[1] <= 1  # eager adds up in another order


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_a_statistic_is_that_of_the_values_that_leave_with_it(dtype: torch.dtype) -> None:
    """A softmax's sum, of numbers around 30: exp makes of their rounding 6%, which whoever divides by the sum
    later has in every element. Found by tools/fuzz.py."""

    def function(x: torch.Tensor, r: torch.Tensor) -> Any:
        logits = x - x * r
        largest = logits.float().amax(-1, keepdim=True)
        total = torch.exp(logits.float() - largest).sum(-1, keepdim=True)
        return logits, largest, total, (logits * x).sum(0)

    torch.manual_seed(0)
    x, r = (3 * torch.randn(8, 200)).to(dtype), torch.full((8, 1), -2.9).to(dtype)
    logits, largest, total, _ = run_fused(function, (x, r))
    exact = torch.exp(logits.double() - largest).sum(-1, keepdim=True)
    assert float((total / exact - 1).abs().max()) < 1e-5


def test_where_nothing_wider_leaves_nothing_is_rounded_on_its_way() -> None:
    def function(x: torch.Tensor, r: torch.Tensor) -> Any:
        moved = x - x * r
        total = moved.float().sum(-1, keepdim=True)
        return moved, (x - total).to(bf16), moved.float().sum(0)

    torch.manual_seed(0)
    x, r = torch.randn(64, 40).to(bf16), torch.randn(64, 1).to(bf16)
    *_, sums = run_fused(function, (x, r))
    exact = (x.double() - x.double() * r.double()).sum(0)
    assert float((sums - exact).norm() / exact.norm()) < 1e-6


def test_a_wider_copy_of_what_leaves_is_not_rounded() -> None:
    """As in Inductor's own kernels: duels of GPT-2 and BERT, where an embedding's gradient was rounded."""

    def function(x: torch.Tensor, r: torch.Tensor, kept: torch.Tensor) -> Any:
        moved = x - x * r
        total = (moved.float() * x).sum(-1, keepdim=True)
        dx = (x - total).to(bf16)
        return dx, torch.where(kept, dx.float(), 0.0), moved.float().sum(0)

    torch.manual_seed(0)
    x, r = torch.randn(64, 40).to(bf16), torch.randn(64, 1).to(bf16)
    dx, wide, _ = run_fused(function, (x, r, torch.ones(64, 40, dtype=torch.bool)))
    exact = x.double() - ((x.double() - x.double() * r.double()) * x.double()).sum(-1, keepdim=True)
    assert float((wide - exact).norm() / exact.norm()) < 1e-6
    assert torch.equal(dx, wide.to(bf16))


def test_zero_negated_has_eagers_sign() -> None:
    x, w = torch.zeros(64, 128), torch.randn(128)
    x[:, ::2] = torch.randn(64, 64)

    def function(x: Any, w: Any) -> Any:
        y = x * w.abs()
        return -y, y.sum(-1), y.sum(0)

    ours, *_ = run_fused(function, (x, w))
    assert torch.signbit(function(x, w)[0])[:, 1::2].all()
    assert torch.equal(torch.signbit(ours), torch.signbit(function(x, w)[0]))


def test_zeros_of_both_signs_are_two_constants() -> None:
    def both(x: torch.Tensor, dy: torch.Tensor) -> Tensors:
        dx, dw = pair(x, dy)
        taken = x > 0
        plus, minus = torch.where(taken, 0.0, x), torch.where(taken, -0.0, dy)
        return dx, dw, plus.reciprocal(), minus.reciprocal(), (plus * minus).sum(0)

    args = torch.randn(37, 40), torch.randn(37, 40)
    for mine, eager in zip(run_fused(both, args)[2:4], both(*args)[2:4], strict=True):
        torch.testing.assert_close(mine, eager)
        assert int(mine.isinf().sum()) == int((args[0] > 0).sum())


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_gradients_of_labels_that_are_no_numbers(value: float) -> None:
    """An infinite gradient times the zeros of the other columns is NaN, in the loop and without it."""

    def function(x: Any, labels: Any, scale: Any) -> Any:
        hits = torch.where(torch.arange(300) == labels, -1.0, 0.0) * scale
        dx = hits - x.exp() * hits.sum(1, keepdim=True)
        return dx, dx.sum(0)

    args = torch.randn(64, 300), torch.randint(-2, 302, (64, 1)), torch.randn(64, 1)
    args[2][7] = value
    for mine, theirs in zip(run_fused(function, args), function(*args), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("dtype", [bf16, f32])
def test_products_find_numbers_behind_the_rows(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AMX, torch's product in bfloat16 reads behind a padded row, and multiplies it by zero."""
    original, behind = torch.fx.Interpreter.call_function, list[torch.Tensor]()

    def call_function(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.mm.default:
            real = (t for t in args if type(t) is torch.Tensor and t._is_view())  # it also traces the graph
            behind.extend(t.new_empty(0).set_(t.untyped_storage()) for t in real)
        return original(self, target, args, kwargs)

    monkeypatch.setattr(torch.fx.Interpreter, "call_function", call_function)
    gradients(Head(1099).to(dtype), torch.randn(37, 24, dtype=dtype), torch.randn(37, dtype=dtype), ON)
    assert any(t.numel() > 37 * 1099 for t in behind) and all(t.isfinite().all() for t in behind)
