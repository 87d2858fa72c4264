"""Columns as blocks: which programs need whole rows, and results in place of inputs."""

from __future__ import annotations

from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32, merged, only, traced

from mixorder.errors import Decline
from mixorder.ir.program import LoopProgram
from mixorder.transform.column_blocks import check_divisible, in_blocks


def product(rows: int, cols: int) -> LoopProgram:
    def function(x: Any, dy: Any) -> Any:
        product = x * dy
        return product, product.sum(0)

    return merged(only(traced(function, ((rows, cols), bf16), ((rows, cols), bf16))))


def bias(rows: int, cols: int, dtype: Any = bf16) -> LoopProgram:
    def function(x: Any, dy: Any, w: Any) -> Any:
        halves = torch.cat([dy[:, cols // 2 :], dy[:, : cols // 2]], 1)
        product = (x.to(f32) * halves * w).to(dtype)
        return product, product.sum(0)

    full = ((rows, cols), dtype)
    return merged(only(traced(function, full, full, ((cols,), f32))))


@pytest.mark.parametrize(
    ("program", "missing"),
    [
        (merged(only(graphs.rms_norm_backward(4096, 768))), "no reduction along a row"),
        (product(64, 99), "rows that all start alike"),
        (in_blocks(bias(64, 96), 32), "no batch axis"),
    ],
)
def test_what_cannot_be_divided(program: LoopProgram, missing: str) -> None:
    with pytest.raises(Decline, match=missing):
        check_divisible(program)
