"""The one nest of a region whose reductions all end within a tile."""

from __future__ import annotations

from typing import Any

import torch
from expecttest import TestCase
from graphs import bf16, f16, f32, traced, within_tile
from support import quantised

from mixorder.ir.program import Compute, LoopProgram, Reduce
from mixorder.ir.verify import Form, verify
from mixorder.lowering.tile import lower_tile


def lowered(function: Any, *specs: Any) -> LoopProgram:
    return verify(lower_tile(within_tile(traced(lambda *x: function(*x), *specs))), Form.BLOCKED)


def casts_to(program: LoopProgram, dtype: torch.dtype) -> int:
    """How many values are rounded to a dtype and computed with further."""
    found = [s for s in program.nests[0].body if isinstance(s, Compute) and s.op == "to_dtype"]
    return sum(s.args[1] == dtype and ("use_compute_types", False) in s.kwargs for s in found)


class TestWhole(TestCase):
    maxDiff = None

    def test_blocks_along_rows_and_transposed_columns(self) -> None:
        program = lowered(lambda x: quantised.blocks_both(x, 64), ((256, 512), bf16))
        self.assertExpectedInline(
            str(program),
            """\
in0: bf16[256, 512]
out0: f32[2048, 1]
out1: f8e4m3fn[2048, 64]
out2: f32[2048, 1]
out3: f8e4m3fn[2048, 64]
for i in batch(4):
  for x in row(64):
    for j in batch(8):
      for y in column(64):
        %arg0_1: f32 = load in0[32768*i + 64*j + 512*x + y]
        %abs_1: f32 = abs(%arg0_1)
      %getitem: f32 = amax[y](%abs_1)
      %convert_element_type: f64 = to_dtype(%getitem, f64, src_dtype=bf16, use_compute_types=True)
      %clamp_min: f64 = constant(1e-12, f64)
      %clamp_min.1: f64 = maximum(%convert_element_type, %clamp_min)
      %reciprocal: f64 = reciprocal(%clamp_min.1)
      %mul: f64 = constant(448, f64)
      %mul.1: f64 = mul(%reciprocal, %mul)
      %convert_element_type_1: f32 = to_dtype(%mul.1, f32, src_dtype=f64, use_compute_types=True)
      store out0[512*i + j + 8*x] = %convert_element_type_1
      for y in column(64):
        %mul_1: f32 = mul(%arg0_1, %convert_element_type_1)
        %clamp_min_1: f32 = constant(-448, f32)
        %clamp_min_1.1: f32 = maximum(%mul_1, %clamp_min_1)
        %clamp_max: f32 = constant(448, f32)
        %clamp_max.1: f32 = minimum(%clamp_min_1.1, %clamp_max)
        %convert_element_type_3: f8e4m3fn = to_dtype(%clamp_max.1, f8e4m3fn, src_dtype=f32, use_compute_types=True)
        store out1[32768*i + 64*j + 512*x + y] = %convert_element_type_3
        %getitem_2: f32 = amax[x](%abs_1)
        %convert_element_type_4: f64 = to_dtype(%getitem_2, f64, src_dtype=bf16, use_compute_types=True)
        %clamp_min_2: f64 = maximum(%convert_element_type_4, %clamp_min)
        %reciprocal_1: f64 = reciprocal(%clamp_min_2)
        %mul_2: f64 = mul(%reciprocal_1, %mul)
        %convert_element_type_5: f32 = to_dtype(%mul_2, f32, src_dtype=f64, use_compute_types=True)
        store out2[i + 256*j + 4*y] = %convert_element_type_5
        %mul_3: f32 = mul(%arg0_1, %convert_element_type_5)
        %clamp_min_3: f32 = maximum(%mul_3, %clamp_min_1)
        %clamp_max_1: f32 = minimum(%clamp_min_3, %clamp_max)
        %convert_element_type_7: f8e4m3fn = to_dtype(%clamp_max_1, f8e4m3fn, src_dtype=f32, use_compute_types=True)
        store out3[64*i + 16384*j + x + 256*y] = %convert_element_type_7""",  # noqa: E501
        )


def test_squares_are_reduced_over_two_axes() -> None:
    program = lowered(quantised.squares, ((256, 512), bf16))
    (largest,) = (s for s in program.nests[0].body if isinstance(s, Reduce))
    assert {str(s) for s in largest.axes} == {"x", "u"} and [str(b) for b in program.buffers] == [
        "in0: bf16[256, 512]",
        "out0: f32[2, 1, 4, 1]",
        "out1: f8e4m3fn[2, 128, 4, 128]",
    ]


def test_results_in_half_precision_are_rounded_as_eager_does() -> None:
    """Products are; maxima, absolute values and what is loaded have that precision anyway."""

    def function(x: Any, z: Any) -> Any:
        return quantised.mx_both((x * z).relu())

    for dtype in (bf16, f16):
        assert casts_to(lowered(function, ((256, 512), dtype), ((256, 512), dtype)), dtype) == 1
        assert casts_to(lowered(quantised.mx_both, ((256, 512), dtype)), dtype) == 0
    assert casts_to(lowered(function, ((256, 512), f32), ((256, 512), f32)), f32) == 0


def test_sums_in_half_precision_are_rounded_only_before_results_of_one_byte() -> None:
    def function(x: Any) -> Any:
        rows, columns = x.view(256, 16, 32), x.view(8, 32, 512)
        return rows / rows.sum(2, keepdim=True), columns / columns.amax(1, keepdim=True)

    def cast(x: Any) -> Any:
        rows, columns = function(x)
        return rows.to(torch.float8_e4m3fn), columns

    assert casts_to(lowered(cast, ((256, 512), bf16)), bf16) == 3
    assert casts_to(lowered(function, ((256, 512), bf16)), bf16) == 0


def test_a_number_for_each_column_is_an_index() -> None:
    program = lowered(lambda x: quantised.mx_in_place(x + torch.arange(512, dtype=bf16)), ((256, 512), bf16))
    (index,) = (s for s in program.nests[0].body if isinstance(s, Compute) and s.op == "index_expr")
    assert str(index.args[0]) == "32*j + y"


def test_strides_of_a_slice() -> None:
    program = lowered(lambda x: quantised.mx_both(x[:, 512:]), ((256, 1024), bf16))
    loads = [str(s) for s in program.nests[0].body if "load" in str(s)]
    assert loads == ["%slice_1: f32 = load in0[32768*i + 32*j + 1024*x + y]"]


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
