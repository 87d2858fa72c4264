"""The one nest of a region whose reductions all end within a tile: what is not rounded, and its axes.

Results are compared in tests/transform/test_results.py.
"""

from __future__ import annotations

from typing import Any

import torch
from graphs import bf16, f16, f32, lowered_tile
from support import quantised

from mixorder.ir.program import Compute, LoopProgram
from mixorder.ir.verify import Form, verify


def lowered(function: Any, *specs: Any) -> LoopProgram:
    return verify(lowered_tile(function, *specs), Form.TILE_LOCAL)


def casts_to(program: LoopProgram, dtype: torch.dtype) -> int:
    """How many values are rounded to a dtype and computed with further."""
    found = [s for s in program.nests[0].body if isinstance(s, Compute) and s.op == "to_dtype"]
    return sum(s.args[1] == dtype and ("use_compute_types", False) in s.kwargs for s in found)


def test_results_in_half_precision_are_rounded_once() -> None:
    """Products are; maxima, absolute values and what is loaded have that precision anyway."""

    def function(x: Any, z: Any) -> Any:
        return quantised.mx_both((x * z).relu())

    for dtype, count in ((bf16, 1), (f16, 1), (f32, 0)):
        assert casts_to(lowered(function, *[((256, 512), dtype)] * 2), dtype) == count


def test_sums_in_half_precision_are_rounded_only_before_results_of_one_byte() -> None:
    def function(x: Any) -> Any:
        rows, columns = x.view(256, 16, 32), x.view(8, 32, 512)
        return rows / rows.sum(2, keepdim=True), columns / columns.amax(1, keepdim=True)

    def cast(x: Any) -> Any:
        rows, columns = function(x)
        return rows.to(torch.float8_e4m3fn), columns

    assert casts_to(lowered(cast, ((256, 512), bf16)), bf16) == 3
    assert casts_to(lowered(function, ((256, 512), bf16)), bf16) == 0


def test_a_value_is_rounded_where_it_is_compared_with_a_stored_one() -> None:
    """Other results have their digits, as the results of Inductor have."""

    def function(x: Any, w: Any, most: Any) -> Any:
        product, other = x * w, x + w
        chosen = torch.where((product == most).view(16, 16, 32, 16), other.view(16, 16, 32, 16), 0)
        return chosen / chosen.abs().amax((1, 3), keepdim=True), chosen.abs().amax((1, 3))

    half = ((256, 512), bf16)
    assert casts_to(lowered(function, half, half, half), bf16) == 1


def test_pixels_of_two_dims_are_one_axis() -> None:
    """A norm over channels leaves the pixels' two dims apart, and no tensor tells them apart."""

    def function(x: Any) -> Any:
        x = x.permute(0, 2, 3, 1)
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return ((x - mean) * torch.rsqrt(variance + 1e-6)).contiguous()

    program = lowered(function, ((8, 64, 28, 28), f32))
    assert [int(axis.size) for axis in program.nests[0].loops] == [8, 64, 784]
