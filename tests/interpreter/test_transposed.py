"""Results that are transposed while they are cast: every byte is eager's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f16, f32, f64
from running import exactly_fused, wide
from support import quantised
from support.quantised import F8

from mixorder.report import RegionRecord
from mixorder.schedule.plan import Plan, in_tiles
from mixorder.strategies.persistent import PERSISTENT
from mixorder.strategies.tile import TILE

Function = Callable[..., Any]


def transposed_record(function: Function, *args: torch.Tensor) -> RegionRecord:
    """The record of the one region of a function, which transposes."""
    (record,) = exactly_fused(function, *args)
    assert record.strategy == TILE.name and not record.inner and not record.outer
    assert len(record.kernels) == 1
    return record


def scales(*shape: int) -> torch.Tensor:
    return torch.exp2(torch.randint(-4, 5, shape)).float()


def cast(x: Any, factor: Any, dtype: torch.dtype = F8) -> Any:
    most = torch.finfo(dtype).max
    return (x.float() * factor).clamp(-most, most).to(dtype)


def transposed_cast(x: Any, s: Any) -> Any:
    return (cast(x, s).t().contiguous(),)


@pytest.mark.parametrize("layout", [lambda y: y, lambda y: y.contiguous()])
def test_the_recipe_rowwise_of_a_transposed_tensor(layout: Function) -> None:
    """The scales of the rows of `x.t()` are those of the columns of x: a pair."""

    def function(x: Any) -> Any:
        data, factors = quantised.whole(x, -1)
        others, more = quantised.whole(layout(x.t()), -1)
        return data, factors, others.contiguous(), more

    first, second = exactly_fused(function, wide(256, 512, special=True))
    assert first.strategy == PERSISTENT.name and [one.op for one in (*first.inner, *first.outer)] == [
        "amax",
        "amax",
    ]
    assert second.strategy == TILE.name


SIZES = [(64, 1024), (1024, 64), (200, 328), (2048, 16), (16, 2048), (65, 1025)]


@pytest.mark.parametrize(
    ("rows", "cols", "dtype"), [(*size, bf16) for size in SIZES] + [(128, 256, d) for d in (f16, f32, f64)]
)
def test_sizes_and_dtypes_that_are_read(rows: int, cols: int, dtype: torch.dtype) -> None:
    transposed_record(transposed_cast, wide(rows, cols, dtype, special=True), scales(1, cols))


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.int8, torch.uint8, torch.bool])
def test_dtypes_that_are_written(dtype: torch.dtype) -> None:
    def function(x: Any, s: Any) -> Any:
        if dtype is torch.float8_e5m2:
            return (cast(x, s, dtype).t().contiguous(),)
        low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        return ((x * s).clamp(low, high).round().to(dtype).t().contiguous(),)

    transposed_record(function, torch.randn(128, 256) * 50, scales(128, 1))


def both_orders(x: Any, rows: Any, columns: Any) -> Any:
    """Different casts of one tensor, one by scales of rows and one by scales of columns, and a mask."""
    return cast(x, rows), cast(x, columns).t().contiguous(), (x > rows).t().contiguous()


def behind_a_product(x: Any, z: Any, s: Any) -> Any:
    """The product is stored too; products are rounded as eager rounds them."""
    product = x * z + x
    return product, cast(product, s).t().contiguous()


def of_both_orders(x: Any, z: Any) -> Any:
    """One operand lies column by column: the sum is transposed for it, whichever way it is stored."""
    return (cast(x + z.t(), 1.0),)


def of_three_dims(x: Any, s: Any) -> Any:
    return (cast(x.view(4, 128, 128), s).permute(0, 2, 1).contiguous(),)


def of_images(x: Any, s: Any) -> Any:
    return (cast(x.view(4, 32, 16, 24), s).contiguous(memory_format=torch.channels_last),)


def of_a_half(x: Any, s: Any) -> Any:
    return (cast(x[:, 256:], s).t().contiguous(),)


FORMS: dict[Function, Callable[[], tuple[torch.Tensor, ...]]] = {
    both_orders: lambda: (wide(256, 512, special=True), scales(256, 1), scales(1, 512)),
    behind_a_product: lambda: (*(wide(256, 512, special=True) for _ in range(2)), scales(1, 512)),
    of_both_orders: lambda: (wide(256, 512, special=True), wide(512, 256, special=True)),
    of_three_dims: lambda: (wide(512, 128, special=True), scales(128)),
    of_images: lambda: (wide(128, 384, f32, special=True), scales(32, 1, 1)),
    of_a_half: lambda: (wide(256, 512, special=True), scales(1, 256)),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: Function) -> None:
    args = FORMS[form]()
    record = transposed_record(form, *args)
    assert len(record.outputs) == len(form(*args)) and len(record.inputs) == len(args)


@pytest.mark.parametrize("largest", ["amax", "max", "aminmax"])
def test_the_largest_of_all_elements_beside_the_casts(largest: str) -> None:
    """Delayed scaling: the scale is known, and the maximum is for a later one. What is left of it outside is
    a row of maxima."""

    def function(x: Any, s: Any) -> Any:
        data = cast(x, s)
        extrema = (x.amax(), x.amin()) if largest == "aminmax" else (getattr(x.abs(), largest)(),)
        return data, data.t().contiguous(), *extrema

    for x in (wide(200, 328, special=True), torch.randn(256, 512).to(bf16) * 50):
        (record,) = exactly_fused(function, x, torch.tensor(3.0))
        assert record.strategy == TILE.name and len(record.kernels) == 2
        maxima = [t for t in record.outputs if t.shape == (1, x.shape[1])]
        assert len(maxima) == len(record.outputs) - 2 == 1 + (largest == "aminmax")


@pytest.mark.parametrize("backwards", [False, True])
def test_tiles_in_any_order(backwards: bool, plan_with: Callable[..., None]) -> None:
    def choose(*args: Any) -> Plan:
        walk = in_tiles(args[0].sizes, (64, 32))
        chosen = dataclasses.replace(TILE.choose(*args), walk=walk)
        return chosen.changed(backwards=backwards)

    plan_with(strategies=(dataclasses.replace(TILE, choose=choose),))
    record = transposed_record(transposed_cast, wide(200, 328, special=True), scales(1, 328))
    assert record.kernels[0].grid == 44
    assert ("(43 - " in record.kernels[0].text) == backwards
