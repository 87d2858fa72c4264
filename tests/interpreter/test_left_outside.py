"""What a region cannot compute stays outside of it, and the rest of the region is fused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import f32, f64
from grids import crossed
from running import ON, Tensors

from mixorder.plugin import compile_for_interpreter
from mixorder.report import RegionRecord, collect

ROWS, COLS = 60, 24


def run(function: Callable[..., Any], *args: torch.Tensor) -> tuple[Tensors, list[RegionRecord]]:
    torch._dynamo.reset()
    with collect() as records:
        results = torch.compile(function, backend=compile_for_interpreter(ON))(*args)
    return results, [r for r in records if isinstance(r, RegionRecord)]


def scaled(x: Any, y: Any, factor: Any) -> Any:
    z = factor * (x * y).sum(-1, keepdim=True)
    return z, (z * y).sum(0)


def power(x: Any, y: Any) -> Any:
    return scaled(x, y, x.abs() ** 2.7)


def ldexp(x: Any, y: Any) -> Any:
    return scaled(x, y, torch.ldexp(x, (y * 3).int()))


def integer_power(x: Any, y: Any) -> Any:
    """Inductor gives it to a kernel of ATen's."""
    return scaled(x, y, (x * 4).int() ** (y * 4).int().abs())


def by_the_root_of_a_size(x: Any, y: Any) -> Any:
    return scaled(x, y, x / math.sqrt(x.shape[0]))


def by_a_share_of_a_size(x: Any, y: Any) -> Any:
    return scaled(x, y, x / (x.shape[0] / 7))


@pytest.mark.parametrize(
    ("function", "dtype", "dynamic"),
    crossed(
        [power, ldexp, integer_power, by_the_root_of_a_size, by_a_share_of_a_size], [f32, f64], [False, True]
    ),
)
def test_an_operator_without_a_loop(function: Callable[..., Any], dtype: torch.dtype, dynamic: bool) -> None:
    x, y = (torch.randn(ROWS, COLS, dtype=dtype) for _ in range(2))
    if dynamic:
        for t in (x, y):
            torch._dynamo.mark_dynamic(t, 0)
    ours, fused = run(function, x, y)
    assert fused or (dynamic and function is by_a_share_of_a_size)
    for mine, truth in zip(ours, function(x, y), strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-4, atol=1e-4)


def scales(x: Any, y: Any) -> Any:
    """A dtype of eight bits that Triton has no type for."""
    z = x * (x * y).sum(-1, keepdim=True)
    return z.abs().to(torch.float8_e8m0fnu), z, (z * y).sum(0)


def test_a_dtype_that_triton_has_not() -> None:
    x, y = (torch.randn(ROWS, COLS) for _ in range(2))
    ours, fused = run(scales, x, y)
    assert fused and not any("e8m0" in t.dtype for r in fused for t in r.outputs)
    assert torch.equal(ours[0].view(torch.uint8), ours[1].abs().to(torch.float8_e8m0fnu).view(torch.uint8))


def other_axes(x: Any) -> Any:
    """The sum over two axes lies above the sum over one that a row is made of."""
    y = x * x.sum((1, 2), keepdim=True)
    return x.sum(-1), y.sum((0, 1))


def norm_over_two_axes(x: Any) -> Any:
    z = x * x.amax(-1, keepdim=True)
    z = z * torch.rsqrt(z.square().mean((1, 2), keepdim=True) + 0.1)
    return z.sum(-1), z.sum((0, 1)), z


@pytest.mark.parametrize("function", [other_axes, norm_over_two_axes])
def test_a_reduction_over_other_axes_is_read(function: Callable[..., Any]) -> None:
    x = torch.randn(4, 20, COLS)
    ours, _ = run(function, x)
    for mine, truth in zip(ours, function(x), strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-4, atol=1e-4)
