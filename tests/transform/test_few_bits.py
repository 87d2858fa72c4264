"""Which divisions are by numbers of few bits, and what the op gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f32, lowered_tile, mixed_order, ops

from mixorder.ir.program import LoopProgram
from mixorder.ir.rewriting import rewritten
from mixorder.ir.verify import Form, verify
from mixorder.transform.few_bits import QUOTIENT, divide_by_few_bits
from mixorder.transform.rounding import round_at_once
from mixorder.transform.single_precision import divide_in_float32


def transformed(factor: Callable[[Any], Any], dtype: torch.dtype, before: Any = None) -> LoopProgram:
    """Mixed-order blocks of 32, each multiplied by a factor of its maximum."""

    def one(blocks: Any, dim: int) -> Any:
        return (blocks * factor(blocks.abs().amax(dim, keepdim=True))).to(torch.float8_e4m3fn)

    function = mixed_order(one)
    program = lowered_tile(lambda x: function(before(x) if before else x), ((256, 512), dtype))
    return verify(rewritten(program, divide_in_float32, round_at_once, divide_by_few_bits), Form.TILE_LOCAL)


def scale(x: Any) -> Any:
    return (448 / x.double().clamp(min=1e-12)).float()


OTHERS = {
    "float32 has 24 bits": (scale, f32, None),
    "a sum has more bits": (scale, bf16, lambda x: x.float() + 1),
    "the divisor may be zero": (lambda x: (448 / x.double()).float(), bf16, None),
    "or small": (lambda x: (448 / x.double().clamp(min=1e-35)).float(), bf16, None),
    "the quotient may overflow": (lambda x: (2.0**30 / x.double().clamp(min=1e-12)).float(), bf16, None),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_divisions_stay(case: str) -> None:
    factor, dtype, before = OTHERS[case]
    found = ops(transformed(factor, dtype, before))
    assert QUOTIENT not in found and "div_rn" in found
