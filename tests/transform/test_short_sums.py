"""Sums over rows without compensation, for programs of few rows."""

from __future__ import annotations

import graphs
import pytest
from graphs import bf16, merged, only

from mixorder.errors import GainsNothing
from mixorder.ir.program import LoopProgram
from mixorder.transform.short_sums import without_compensation


def layer(dtype: object) -> LoopProgram:
    return merged(only(graphs.layer_norm_backward(4096, 512, dtype)))


def test_a_program_without_compensated_sums_is_declined() -> None:
    with pytest.raises(GainsNothing, match="no sum over rows is compensated"):
        without_compensation(layer(bf16))
