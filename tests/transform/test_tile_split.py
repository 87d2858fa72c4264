"""Sums over all rows beside blocks: none, and those whose results lie in another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from graphs import bf16, lowered_tile
from support import quantised

from mixorder.errors import Decline
from mixorder.ir.program import LoopProgram
from mixorder.ir.verify import Form, verify
from mixorder.transform.tile_split import split_spanning


def lowered(function: Callable[..., Any], rows: int = 256, cols: int = 512) -> LoopProgram:
    return verify(lowered_tile(function, *[((rows, cols), bf16)] * 2), Form.TILE_LOCAL)


def test_results_that_do_not_lie_column_by_column_are_declined() -> None:
    def function(x: Any, z: Any) -> Any:
        return *quantised.mx_both(x), x.float().sum(0).view(16, 32).t().contiguous()

    with pytest.raises(Decline):
        split_spanning(lowered(function))
