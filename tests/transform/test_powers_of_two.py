"""Products in place of quotients: where the divisor is a power of two, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from evaluate import computed
from graphs import bf16, f32, lowered_tile, mixed_order, ops

from mixorder.ir.program import LoopProgram, Ref
from mixorder.ir.rewriting import rewritten
from mixorder.ir.verify import Form, verify
from mixorder.transform import powers_of_two
from mixorder.transform.powers_of_two import multiply_by_reciprocals


def transformed(function: Callable[..., Any], dtype: torch.dtype = bf16) -> LoopProgram:
    program = lowered_tile(function, ((256, 512), dtype))
    return verify(rewritten(program, multiply_by_reciprocals), Form.TILE_LOCAL)


def scaled_by(scale: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return mixed_order(lambda blocks, dim: blocks / scale(blocks.abs().amax(dim, keepdim=True)))


def exponent(x: Any) -> Any:
    return (x.view(torch.int32) >> 23 << 23).view(f32)


OTHERS = [
    lambda x: x,
    lambda x: exponent(x) * 2,  # may be subnormal: its reciprocal is infinite
    lambda x: exponent(x).clamp(min=3.0),
    lambda x: exponent(x).clamp(min=2.0**-127),
    lambda x: (x.view(torch.int32) >> 22 << 22).view(f32),
    lambda x: torch.where(x > 3, exponent(x), x),
    lambda x: exponent(x) + 1,
]


@pytest.mark.parametrize("scale", OTHERS)
def test_what_may_be_another_number(scale: Callable[[Any], Any]) -> None:
    assert ops(transformed(scaled_by(scale), f32)).count("truediv") == 2


def test_the_reciprocal_of_every_power_of_two() -> None:
    """The statements that stand for it, run with PyTorch: zero, infinity and NaN too, of both signs."""
    exponents = torch.arange(0, 256, dtype=torch.int32) << 23
    nan = torch.tensor([0x7F800001, 0x7FC00000, 0x7FFFFFFF], dtype=torch.int32)
    powers = torch.cat([exponents, nan]).view(f32)
    for divisor in (powers, -powers):
        values = {"d": divisor}
        for stmt in powers_of_two._reciprocal(Ref("d")):
            values[stmt.name] = computed(stmt, values)
        exact = 1 / divisor
        same = (values["d.reciprocal"].view(torch.int32) == exact.view(torch.int32)) | (
            values["d.reciprocal"].isnan() & exact.isnan()
        )
        assert same.all(), divisor[~same]
