"""Values of whole rows: which ones producers cannot compute."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import bf16, f32, traced, within_tile
from support.quantised import mx_both

from mixorder.errors import Decline
from mixorder.ir.program import LoopProgram
from mixorder.lowering.tile import lower_tile
from mixorder.region.producers import with_row_values
from mixorder.transform.producers import with_producers

ROWS, COLS = 512, 1024
SPECS = [((ROWS, COLS), bf16), ((ROWS, COLS), bf16), ((COLS,), bf16), ((ROWS, 1), f32)]


def lowered(function: Any, specs: Any = SPECS) -> LoopProgram:
    region = with_row_values(within_tile(traced(lambda *x: function(*x), *specs)))
    assert region is not None
    return lower_tile(region)


def test_a_value_that_needs_another_one() -> None:
    def two(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
        first = x.float() * (x.float() * dy.float()).sum(-1, keepdim=True)
        return mx_both((first * first.sum(-1, keepdim=True) + dy.float()).to(bf16))

    with pytest.raises(Decline, match="depends on another one"):
        with_producers(lowered(two))


def test_a_value_in_float64() -> None:
    def wide(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
        return mx_both((x * dy * (x.double() * dy).sum(-1, keepdim=True)).to(bf16))

    with pytest.raises(Decline, match="is not float32"):
        with_producers(lowered(wide))
