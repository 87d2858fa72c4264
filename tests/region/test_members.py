"""What a region writes for nodes outside that could read something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, find, only, traced

from mixorder.region.region import Region

FULL, SQUARE = ((512, 256), bf16), ((256, 256), bf16)
F8 = torch.float8_e4m3fn


def scaled(x: Any, dim: int) -> tuple[Any, Any]:
    """A float32 tensor as float8, and one scale for each row or column."""
    scale = 448 / x.abs().amax(dim, keepdim=True)
    return (x * scale).to(F8), scale


def full_outputs(region: Region) -> list[str]:
    found = (n.meta["val"] for n in region.outputs)
    return sorted(str(val.dtype) for val in found if val.numel() == 512 * 256)


@pytest.mark.parametrize("returned", [True, False])
def test_a_cast_outside_reads_the_narrower_tensor(returned: bool) -> None:
    """The columns' cast comes after the region. It reads what float32 was computed from."""

    def function(x: Any, y: Any, z: Any) -> Any:
        total = x + y + z
        wide = total.float()
        return *scaled(wide, 1), *scaled(wide, 0), *([total] if returned else [])

    assert full_outputs(only(traced(function, FULL, FULL, FULL))) == ["torch.bfloat16", str(F8)]


def test_what_costs_as_much_is_written() -> None:
    """A sum of two tensors takes two reads outside, and a write and a read if it is written."""

    def function(x: Any, y: Any) -> Any:
        total = x + y
        wide = total.float().sin()
        return *scaled(wide, 1), *scaled(wide, 0)

    assert full_outputs(only(traced(function, FULL, FULL))) == ["torch.bfloat16", str(F8)]


def test_what_a_product_reads_is_written() -> None:
    def function(x: Any, y: Any, z: Any, w: Any) -> Any:
        total = (x + y + z).float()
        return *scaled(total, 1), *scaled(total, 0), total @ w

    region = only(traced(function, FULL, FULL, FULL, ((256, 256), f32)))
    assert full_outputs(region) == ["torch.float32", str(F8)]


def test_a_scale_that_a_later_norm_reads_keeps_no_cast_outside() -> None:
    """The product of float8 numbers is divided by the rows' scales, and goes into a norm's backward."""

    def function(x: Any, w: Any, one: Any, dy: Any) -> Any:
        wide = x.float()
        data, scale = scaled(wide, 1)
        product = torch._scaled_mm(data, w.t(), one, one, out_dtype=bf16)
        norm = product / scale * dy.float()
        return *scaled(wide, 0), norm - norm.sum(1, keepdim=True), norm.sum(0)

    first, second = find(traced(function, FULL, ((256, 256), F8), ((), f32), FULL))
    assert full_outputs(first) == [str(F8)] and full_outputs(second) == ["torch.float32"]
