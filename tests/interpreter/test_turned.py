"""Results that are turned while they are cast: every byte is eager's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f16, f32, f64
from running import ON, compiled, run_fused
from support import quantised
from support.quantised import F8, RECIPES, different, inputs

from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import H200
from mixorder.schedule.plan import Plan, in_tiles
from mixorder.strategies.persistent import PERSISTENT
from mixorder.strategies.tile import TILE

Function = Callable[..., Any]


def fused(function: Function, *args: torch.Tensor) -> list[RegionRecord]:
    """The records of a function that is run fused. Asserts that its results are eager's bit by bit."""
    with collect() as records:
        ours = run_fused(lambda *x: function(*x), args)
    for mine, eager in zip(ours, function(*args), strict=True):
        assert different(mine, eager) == 0
    found = [r for r in records if isinstance(r, RegionRecord)]
    assert len(found) == len(records)
    return found


def turned(function: Function, *args: torch.Tensor) -> RegionRecord:
    """The record of the one region of a function, which is turned."""
    (record,) = fused(function, *args)
    assert record.strategy == TILE.name and not record.inner and not record.outer
    assert len(record.kernels) == 1
    return record


def wide(rows: int, cols: int, dtype: torch.dtype = bf16) -> torch.Tensor:
    """Numbers of rows that differ by many powers of two; also zeros, infinities and NaN."""
    x = (torch.randn(rows, cols) * torch.exp2(torch.randint(-10, 10, (rows, 1)))).to(dtype)
    x[3, 5], x[7, -1], x[-1, 2], x[9] = float("nan"), float("inf"), -float("inf"), 0
    return x


def scales(*shape: int) -> torch.Tensor:
    return torch.exp2(torch.randint(-4, 5, shape)).float()


def cast(x: Any, factor: Any, dtype: torch.dtype = F8) -> Any:
    most = torch.finfo(dtype).max
    return (x.float() * factor).clamp(-most, most).to(dtype)


@pytest.mark.parametrize(("rows", "cols"), [(256, 512), (96, 416), (1000, 72)])
def test_the_recipe_rowwise(rows: int, cols: int) -> None:
    """A pair, then the cast by its scales of columns: nothing is left to Inductor."""
    recipe = RECIPES["rowwise_both"]
    x = inputs(recipe, rows, cols, "cpu") if rows > 255 and cols > 255 else [wide(rows, cols)]
    first, second = fused(recipe.function, *x)
    assert first.strategy == PERSISTENT.name and second.strategy == TILE.name
    assert [t.name for t in second.inputs][0] == first.inputs[0].name and len(second.outputs) == 1


@pytest.mark.parametrize("turn", [lambda y: y, lambda y: y.contiguous()])
def test_the_recipe_rowwise_of_a_transposed_tensor(turn: Function) -> None:
    """The scales of the rows of `x.t()` are those of the columns of x: a pair."""

    def function(x: Any) -> Any:
        data, factors = quantised.whole(x, -1)
        others, more = quantised.whole(turn(x.t()), -1)
        return data, factors, others.contiguous(), more

    first, second = fused(function, wide(256, 512))
    assert first.strategy == PERSISTENT.name and (first.inner_ops, first.outer_ops) == (("amax",), ("amax",))
    assert second.strategy == TILE.name


def test_as_compiled() -> None:
    x = wide(256, 512)
    with collect() as records:
        ours = compiled(ON)(quantised.rowwise_both)(x)
    assert [r.strategy for r in records if isinstance(r, RegionRecord)] == [PERSISTENT.name, TILE.name]
    for mine, eager in zip(ours, quantised.rowwise_both(x), strict=True):
        assert different(mine, eager) == 0 and mine.stride() == eager.stride()


@pytest.mark.parametrize(
    ("rows", "cols"), [(64, 1024), (1024, 64), (200, 328), (2048, 16), (16, 2048), (65, 1025)]
)
def test_sizes(rows: int, cols: int) -> None:
    turned(lambda x, s: (cast(x, s).t().contiguous(),), wide(rows, cols), scales(1, cols))


@pytest.mark.parametrize("dtype", [f16, f32, f64])
def test_dtypes_that_are_read(dtype: torch.dtype) -> None:
    turned(lambda x, s: (cast(x, s).t().contiguous(),), wide(128, 256, dtype), scales(1, 256))


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.int8, torch.uint8, torch.bool])
def test_dtypes_that_are_written(dtype: torch.dtype) -> None:
    def function(x: Any, s: Any) -> Any:
        if dtype is torch.float8_e5m2:
            return (cast(x, s, dtype).t().contiguous(),)
        low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        return ((x * s).clamp(low, high).round().to(dtype).t().contiguous(),)

    turned(function, torch.randn(128, 256) * 50, scales(128, 1))


def test_both_orders_in_one_kernel() -> None:
    """Different casts of one tensor, one by scales of rows and one by scales of columns, and a mask."""

    def function(x: Any, rows: Any, columns: Any) -> Any:
        return cast(x, rows), cast(x, columns).t().contiguous(), (x > rows).t().contiguous()

    record = turned(function, wide(256, 512), scales(256, 1), scales(1, 512))
    assert len(record.outputs) == 3 and len(record.inputs) == 3


@pytest.mark.parametrize("largest", ["amax", "max", "aminmax"])
def test_the_largest_of_all_elements_beside_the_casts(largest: str) -> None:
    """Delayed scaling: the scale is known, and the maximum is for a later one. What is left of it outside is
    a row of maxima."""

    def function(x: Any, s: Any) -> Any:
        data = cast(x, s)
        extrema = (x.amax(), x.amin()) if largest == "aminmax" else (getattr(x.abs(), largest)(),)
        return data, data.t().contiguous(), *extrema

    for x in (wide(200, 328), torch.randn(256, 512).to(bf16) * 50):
        (record,) = fused(function, x, torch.tensor(3.0))
        assert record.strategy == TILE.name and len(record.kernels) == 2
        maxima = [t for t in record.outputs if t.shape == (1, x.shape[1])]
        assert len(maxima) == len(record.outputs) - 2 == 1 + (largest == "aminmax")


def test_a_bias_gradient_and_the_largest_element_beside_the_casts() -> None:
    def function(x: Any, dy: Any, s: Any) -> Any:
        dx = x * dy
        data = cast(dx, s)
        return data, data.t().contiguous(), dx.abs().amax(), dx.amax(0)

    (record,) = fused(function, wide(256, 512), wide(256, 512), torch.tensor(3.0))
    assert record.strategy == TILE.name and len(record.outputs) == 4


def test_what_comes_before_is_in_the_same_kernel() -> None:
    """A product that is stored too; products are rounded as eager rounds them."""

    def function(x: Any, z: Any, s: Any) -> Any:
        product = x * z + x
        return product, cast(product, s).t().contiguous()

    record = turned(function, wide(256, 512), wide(256, 512), scales(1, 512))
    assert len(record.outputs) == 2 and len(record.inputs) == 3


def test_operands_of_both_orders() -> None:
    """One operand lies column by column: the sum is turned for it, whichever way it is stored."""

    def function(x: Any, z: Any) -> Any:
        return (cast(x + z.t(), 1.0),)

    turned(function, wide(256, 512), wide(512, 256))


def test_three_and_four_dims() -> None:
    turned(
        lambda x, s: (cast(x, s).permute(0, 2, 1).contiguous(),),
        wide(512, 128).view(4, 128, 128),
        scales(128),
    )
    images = torch.randn(4, 32, 16, 24)
    turned(lambda x, s: (cast(x, s).contiguous(memory_format=torch.channels_last),), images, scales(32, 1, 1))


def test_a_half_of_a_wider_tensor() -> None:
    turned(lambda x, s: (cast(x[:, 256:], s).t().contiguous(),), wide(256, 512), scales(1, 256))


@pytest.mark.parametrize("backwards", [False, True])
def test_tiles_in_any_order(backwards: bool, plan_with: Callable[..., None]) -> None:
    def choose(*args: Any) -> Plan:
        walk = in_tiles(args[0].sizes, (64, 32))
        chosen = dataclasses.replace(TILE.choose(*args), walk=walk)
        return chosen.changed(backwards=backwards)

    plan_with(strategies=(dataclasses.replace(TILE, choose=choose),))
    record = turned(lambda x, s: (cast(x, s).t().contiguous(),), wide(200, 328), scales(1, 328))
    assert record.kernels[0].grid == 44
    assert ("(43 - " in record.kernels[0].text) == backwards


@pytest.mark.parametrize("saturates", [True, False])
def test_devices_whose_casts_saturate_and_others(saturates: bool, plan_with: Callable[..., None]) -> None:
    plan_with(device=dataclasses.replace(H200, saturates=saturates))
    turned(lambda x, s: (cast(x, s).t().contiguous(),), wide(256, 512) * 1000, scales(1, 512))
