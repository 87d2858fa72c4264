"""Outer reductions become partial sums: their dtype, which are compensated, and what is untouched."""

from __future__ import annotations

from typing import Any

from graphs import bf16, f32, only, traced

from mixorder.ir.program import BufferRole, LoopProgram, PartialAccumulate
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.transform.split import split_outer

FULL = ((512, 256), f32)


def split(function: Any, *specs: Any) -> LoopProgram:
    return verify(split_outer(lower(only(traced(function, *specs)))), Form.MERGED)


def test_a_column_result_that_loops_round_is_not_compensated() -> None:
    def function(x: Any, dy: Any, narrow: Any) -> Any:
        product = x * dy
        dw = product.sum(0)
        return dy - x * product.sum(1, keepdim=True), narrow.to(f32).sum(1) * 2, narrow * dw[None]

    full, narrow = ((512, 256), bf16), ((16, 256), bf16)
    program = split(function, full, full, narrow)
    (out,) = (b for b in program.role(BufferRole.OUTPUT) if b.widened)
    assert out.dtype == f32 and str(out) == f"{out.name}: f32[256] widened"
    (partial,) = (s for nest in program.nests for s in nest.body if isinstance(s, PartialAccumulate))
    assert not partial.compensated


def test_a_sum_in_half_precision_beside_one_in_float32_is_not_compensated() -> None:
    def function(x: Any, dy: Any) -> Any:
        product = x * dy
        return dy - x * product.sum(1, keepdim=True), product.sum(0), (x * x).sum(0).to(bf16)

    program = split(function, FULL, FULL)
    found = [s for nest in program.nests for s in nest.body if isinstance(s, PartialAccumulate)]
    assert [s.compensated for s in found] == [True, False]
