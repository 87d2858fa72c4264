"""Gradients through the interpreted kernels, against float64 and against the same graph unfused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f16, f32, f64, pair, traced
from running import OFF, ON, Tensors, check, crossed, exact_gradients, gradients, run_fused, with_options
from torch import nn
from torch._dynamo.utils import counters

from mixorder import pipeline
from mixorder.options import Options
from mixorder.plugin import compile_for_interpreter, prepare_interpreter


def fused_and_right(module: nn.Module, x: torch.Tensor, options: Options = ON) -> Tensors:
    dy = torch.randn_like(x)
    ours = gradients(module, x, dy, options)
    # A space of one column may be left alone: each of its reductions fits both sides.
    assert counters["mixorder"]["fused_regions"] == 1 or x.shape[-1] == 1
    stock = gradients(module, x, dy, OFF)
    exact = exact_gradients(module, x, dy)
    # With one column a LayerNorm's gradients are rounding noise around zero.
    scale = float(dy.double().norm()) if x.shape[-1] == 1 else 0.0
    check(ours, stock, exact, max(x.shape[-1], x.numel() // x.shape[-1]), scale)
    return ours


def norm(name: str, cols: int, dtype: torch.dtype) -> nn.Module:
    return graphs.randomised(graphs.NORMS[name](cols), dtype)


@pytest.mark.parametrize("dtype", [f32, f16, bf16, f64])
@pytest.mark.parametrize("name", graphs.PAIRED_NORMS)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    fused_and_right(norm(name, 100, dtype), torch.randn(3, 11, 100, dtype=dtype))


@pytest.mark.parametrize(
    ("rows", "cols"),
    [(300, 1), (67, 7), (129, 64), (41, 100), (13, 768), (9, 1024), (3, 4097), (2, 768), (5, 1)],
)
@pytest.mark.parametrize("name", ["layer", "rms"])
def test_shapes(name: str, rows: int, cols: int) -> None:
    fused_and_right(norm(name, cols, f32), torch.randn(rows, cols))


@pytest.mark.parametrize(("name", "cols"), crossed(graphs.PAIRED_NORMS, [7, 100, 768]))
def test_one_row(name: str, cols: int) -> None:
    """Fused or left alone, it is right."""
    module, x, dy = norm(name, cols, f32), torch.randn(1, cols), torch.randn(1, cols)
    ours = gradients(module, x, dy, ON)
    check(ours, gradients(module, x, dy, OFF), exact_gradients(module, x, dy), cols)


@pytest.mark.parametrize("leading", [(37,), (2, 19), (2, 3, 7), (1, 37, 1)])
@pytest.mark.parametrize("name", ["layer", "hf"])
def test_leading_dims(name: str, leading: tuple[int, ...]) -> None:
    fused_and_right(norm(name, 64, bf16), torch.randn(*leading, 64, dtype=bf16))


@pytest.mark.parametrize("name", ["layer", "rms", "hf"])
@pytest.mark.parametrize(("x", "weight"), [(bf16, f32), (f32, bf16), (f16, f32)])
def test_weights_of_another_dtype(name: str, x: torch.dtype, weight: torch.dtype) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm(name, 96, weight)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            promoted = torch.promote_types(value.dtype, weight)
            return self.norm(value.to(promoted)).to(value.dtype)

    fused_and_right(Mixed(), torch.randn(5, 7, 96, dtype=x))


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("make", [nn.LayerNorm, nn.RMSNorm, graphs.HFRMSNorm])
def test_block(make: Any, dtype: torch.dtype) -> None:
    block = graphs.randomised(graphs.Block(48, make), dtype)
    with torch.no_grad():
        for p in block.parameters():
            p.mul_(0.2)
    x, dy = (torch.randn(2, 17, 48, dtype=dtype) for _ in range(2))
    ours = gradients(block, x, dy, ON)
    assert counters["mixorder"]["fused_regions"] == 4  # three norms, and a bias gradient on its own
    stock, exact = gradients(block, x, dy, OFF), exact_gradients(block, x, dy)
    # The three norms and the matmuls between them each add an error of the stored dtype.
    for mine, theirs, truth in zip(ours, stock, exact, strict=True):
        my_error, their_error = (float((t.double() - truth).norm()) for t in (mine, theirs))
        assert my_error <= 1.1 * their_error + torch.finfo(dtype).eps * float(truth.norm())


@pytest.mark.parametrize("name", ["layer", "rms"])
def test_checkpointed_norm(name: str) -> None:
    """The backward recomputes the statistics: inner reductions that depend on each other."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm(name, 64, f32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(lambda v: self.norm(v.tanh()), x, use_reentrant=False)

    module, x, dy = Checkpointed(), torch.randn(37, 64), torch.randn(37, 64)
    ours = gradients(module, x, dy, ON)
    check(ours, gradients(module, x, dy, OFF), exact_gradients(module, x, dy), 64)


@pytest.mark.parametrize("split_size", [1, 3, 1000])
@pytest.mark.parametrize("name", ["layer", "rms"])
def test_split_sizes(name: str, split_size: int) -> None:
    options = with_options(split_size=split_size)
    fused_and_right(norm(name, 100, bf16), torch.randn(23, 100, dtype=bf16), options=options)


@pytest.mark.parametrize("name", graphs.PAIRED_NORMS)
def test_gradients_are_bitwise_reproducible(name: str) -> None:
    module, x = norm(name, 100, bf16), torch.randn(67, 100, dtype=bf16)
    dy = torch.randn_like(x)
    for first, again in zip(gradients(module, x, dy, ON), gradients(module, x, dy, ON), strict=True):
        assert torch.equal(first, again)


def test_every_fresh_buffer_is_poisoned(poisoned: list[int]) -> None:
    dx, dw = run_fused(pair, (torch.randn(5, 7), torch.randn(5, 7)))
    assert len(poisoned) == 3 and poisoned[:2] == [35, 7]
    assert dx.isfinite().all() and dw.isfinite().all()


@pytest.mark.parametrize(
    ("name", "where", "value"),
    crossed(graphs.PAIRED_NORMS, ["x", "dy"], [float("nan"), float("inf"), float("-inf")]),
)
def test_a_bad_row_poisons_what_it_does_in_eager(name: str, where: str, value: float) -> None:
    module, x, dy = norm(name, 100, f32), torch.randn(13, 100), torch.randn(13, 100)
    (x if where == "x" else dy)[7, 31] = value
    ours = gradients(module, x, dy, ON)
    assert counters["mixorder"]["fused_regions"] == 1
    eager_x = x.clone().requires_grad_()
    eager = torch.autograd.grad(module(eager_x), [eager_x, *module.parameters()], dy)
    dx = ours[0]
    assert dx[:7].isfinite().all() and dx[8:].isfinite().all() and not dx[7].isfinite().all()
    for mine, theirs in zip(ours, eager, strict=True):
        assert torch.equal(mine.isfinite(), theirs.isfinite())


@pytest.mark.parametrize("dtype", [f32, bf16, f64])
@pytest.mark.parametrize(
    "values", [[float("inf")], [float("-inf")], [float("inf"), float("-inf")], [3e38] * 3]
)
def test_infinite_sums_over_rows_are_those_of_eager(values: list[float], dtype: torch.dtype) -> None:
    """Also where the partial sums are compensated: an infinity minus itself is no correction."""
    x = torch.randn(37, 20, dtype=dtype)
    for i, value in enumerate(values):
        x[3 + 5 * i, 7] = value
    dy = torch.ones_like(x)

    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        product = x * dy
        return dy * product.sum(1, keepdim=True), product.sum(0)

    ours = run_fused(function, (x, dy), with_options(split_size=37))
    for mine, theirs in zip(ours, function(x, dy), strict=True):
        torch.testing.assert_close(mine[mine.isfinite()], theirs[theirs.isfinite()], atol=1e-5, rtol=0.02)
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.isinf(), theirs.isinf())


# Plain functions: masked lanes, other reductions, random programs.

PROLOGUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "plus": lambda t: t + 3,
    "minus": lambda t: t - 3,
    "cos": torch.cos,
    "reciprocal": lambda t: 1 / (t.abs() + 0.5),
}


# The interpreter combines extremes in Python, element by element: small tiles for those.
SHAPES = {"sum": [(13, 100), (5, 7), (1030, 3), (129, 64)], "amax": [(5, 20), (9, 3)], "amin": [(5, 20)]}


@pytest.mark.parametrize(("kind", "shape"), [(k, s) for k, shapes in SHAPES.items() for s in shapes])
@pytest.mark.parametrize("prologue", PROLOGUES)
def test_masked_lanes_hold_the_identity(prologue: str, kind: str, shape: tuple[int, int]) -> None:
    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        value = PROLOGUES[prologue](x)
        row, col = getattr(value, kind)(1, keepdim=True), getattr(value, kind)(0)
        return dy * row, row, col

    args = torch.randn(shape), torch.randn(shape)
    for mine, theirs, truth in zip(
        run_fused(function, args), function(*args), function(*(a.double() for a in args)), strict=True
    ):
        error = float((mine.double() - truth).norm())
        bound = 2 * torch.finfo(f32).eps * max(shape) ** 0.5 * float(truth.norm())
        assert error <= 1.1 * float((theirs.double() - truth).norm()) + bound


@pytest.mark.parametrize("kind", ["amax", "amin"])
@pytest.mark.parametrize("side", [0, 1])
def test_extremes_of_negative_and_positive_rows_are_exact(kind: str, side: int) -> None:
    """With a zero for a masked lane the maximum of negative numbers would be zero."""

    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        return dy * getattr(x, kind)(1, keepdim=True), getattr(x, kind)(0)

    sign = -1 if kind == "amax" else 1
    x = sign * (torch.rand(5, 20) + 1)
    for mine, theirs in zip(run_fused(function, (x, x)), function(x, x), strict=True):
        assert torch.equal(mine, theirs)
    assert run_fused(function, (x, x))[side].isfinite().all()


@pytest.mark.parametrize("kind", ["amax", "amin"])
def test_nan_wins_in_extremes(kind: str) -> None:
    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        return dy * getattr(x, kind)(1, keepdim=True), getattr(x, kind)(0)

    x = torch.randn(5, 20)
    x[3, 11] = float("nan")
    for mine, theirs in zip(
        run_fused(function, (x, x.nan_to_num())), function(x, x.nan_to_num()), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


def test_strided_input() -> None:
    graph = traced(pair, ((13, 100), f32), ((13, 100), f32))
    x = torch.randn(13, 128)[:, :100]
    node = graphs.node(graph, "x_1")
    with node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty_strided((13, 100), (128, 1))
    pipeline.run(graph, ON)
    assert counters["mixorder"]["fused_regions"] == 1
    dy = torch.randn(13, 100)
    ours = torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(x, dy)
    for mine, theirs in zip(ours, pair(x, dy), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_bool_and_integer_inputs() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor) -> Any:
        value = torch.where(mask, x, 0.0) * scale
        return x * value.sum(1, keepdim=True), value.sum(0)

    args = torch.randn(13, 100), torch.rand(13, 100) > 0.5, torch.randint(-3, 4, (13, 100))
    for mine, theirs in zip(run_fused(function, args), function(*args), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [f32, f64])
def test_square_root(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        return dy * torch.sqrt(x.square().mean(1, keepdim=True) + 0.1), (x * dy).sum(0)

    args = torch.randn(13, 100, dtype=dtype), torch.randn(13, 100, dtype=dtype)
    for mine, theirs in zip(run_fused(function, args), function(*args), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    """Whatever regions a program has, its results are those of the program, and none is poisoned."""
    function = graphs.random_function(seed, 10, 12)
    specs = [((10, 12), f32)] * 2 + [((12, 12), f32)]
    graph = traced(function, *specs)
    prepare_interpreter()
    pipeline.run(graph, ON)
    args = torch.randn(10, 12), torch.randn(10, 12), torch.randn(12, 12) / 4
    ours = torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(*args)
    exact, stock = function(*(a.double() for a in args)), function(*args)
    for mine, theirs, truth in zip(ours, stock, exact, strict=True):
        error, reference = ((t.double() - truth).abs().max() for t in (mine, theirs))
        assert error <= 2 * reference + 1e-5
        assert mine.stride() == theirs.stride()


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
