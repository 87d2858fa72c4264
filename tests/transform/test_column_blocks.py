"""Columns as blocks: which programs need whole rows, and results in place of inputs."""

from __future__ import annotations

from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32, merged, only, traced

from mixorder.errors import Decline
from mixorder.ir.program import LoopProgram
from mixorder.ir.verify import Form, verify
from mixorder.transform.column_blocks import check_divisible, in_blocks
from mixorder.transform.in_place import reuse_in_place


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


def test_a_result_may_still_take_the_place_of_an_input() -> None:
    divided = in_blocks(product(64, 96), 32)
    reused = verify(reuse_in_place(divided, [b.name for b in divided.buffers[:1]]), Form.MERGED)
    assert [b.over for b in reused.buffers if b.over]


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
