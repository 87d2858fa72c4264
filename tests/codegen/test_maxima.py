"""Maxima and minima of float32: one instruction, which propagates NaN; other dtypes keep Inductor's."""

from __future__ import annotations

from typing import Any

import graphs
import torch
from graphs import f32

from mixorder.codegen.maxima import Maxima
from mixorder.ir.reductions import KINDS


def of(dtype: torch.dtype) -> str:
    def function(x: Any, dy: Any) -> Any:
        return dy * (x * dy).amax(1, keepdim=True), (x * dy).amax(0)

    full = ((512, 256), dtype)
    return "".join(k.text for k in graphs.kernels(graphs.only(graphs.traced(function, full, full)))[2])


def test_maxima_of_others() -> None:
    assert "maximum_or_nan" not in of(torch.float64)


def test_compared() -> None:
    """Where the instruction is not to be used, both forms are comparisons."""
    maxima = Maxima()
    maxima.compared = True
    amin = KINDS["amin"]
    assert maxima.functions == ""
    assert maxima.along(amin, "x", 1) == "tl.reduce(x, 1, minimum_or_nan)"
    assert maxima.of(amin, "a", "b") in maxima.functions and "propagate_nan" not in maxima.functions
    assert not maxima.has(KINDS["sum"], f32)
