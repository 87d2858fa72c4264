"""Columns as blocks: every index stays where it was, and a program that needs whole rows keeps them."""

from __future__ import annotations

from typing import Any

import graphs
import pytest
import sympy
import torch
from expecttest import TestCase
from graphs import bf16, f32, merged, only, traced

from mixorder.errors import Decline
from mixorder.inductor.symbols import INDEX_FUNCTIONS
from mixorder.ir.program import SPLIT_SYMBOL, AxisClass, Load, LoopProgram, PartialAccumulate, Store
from mixorder.ir.verify import Form, verify
from mixorder.transform.column_blocks import BLOCK, check_divisible, in_blocks
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


class TestText(TestCase):
    def test_the_loops(self) -> None:
        divided = verify(in_blocks(product(4096, 384), 128), Form.MERGED)
        self.assertExpectedInline(
            str(divided),
            """\
in0: bf16[4096, 384]
in1: bf16[4096, 384]
out0: bf16[4096, 384]
out1: bf16[384]
ws0: f32[num_splits, 3, 128]
for k in batch(3):
  for s in split(num_splits):
    for x in row(4096):
      for y in column(128):
        %x_1: f32 = load in0[128*k + 384*x + y]
        %dy_1: f32 = load in1[128*k + 384*x + y]
        %mul: f32 = mul(%x_1, %dy_1)
        store out0[128*k + 384*x + y] = %mul
        partial_accumulate ws0[128*k + 384*s + y] add= %mul
for k in batch(3):
  for y in column(128):
    for s in split(num_splits):
      %sum_1.partial: f32 = load ws0[128*k + 384*s + y]
    %sum_1: f32 = sum[s](%sum_1.partial)
    store out1[128*k + y] = %sum_1""",
        )


def offsets(index: sympy.Expr, symbols: dict[str, int]) -> int:
    at = {s: symbols[str(s)] for s in index.free_symbols}
    return int(sympy.lambdify(list(at), index, modules=[INDEX_FUNCTIONS, "math"])(*at.values()))


@pytest.mark.parametrize("dtype", [bf16, f32])
def test_every_element_is_where_it_was(dtype: Any) -> None:
    """Also where columns are gathered; a workspace keeps its size, and each partial its own place."""
    whole, width = bias(64, 96, dtype), 32
    divided = verify(in_blocks(whole, width), Form.MERGED)
    places: dict[str, set[int]] = {}
    for before, after in zip(whole.nests, divided.nests, strict=True):
        for old, new in zip(before.statements, after.statements, strict=True):
            if not isinstance(old, Load | Store | PartialAccumulate):
                continue
            workspace = old.buffer.startswith("ws")
            for column in range(96):
                block, y = divmod(column, width)
                at = offsets(new.index, {"x": 3, "s": 2, "k": block, "y": y})
                if workspace:
                    places.setdefault(f"{type(new)}", set()).add(at - 2 * 96)
                else:
                    assert at == offsets(old.index, {"x": 3, "s": 2, "y": column})
    assert len(places) == 2 and all(found == set(range(96)) for found in places.values())
    sizes = [b.numel for b in divided.buffers]
    assert sizes == [b.numel for b in whole.buffers]


def test_blocks_are_the_outermost_loop_everywhere() -> None:
    divided = in_blocks(bias(64, 96), 32)
    for nest in divided.nests:
        assert nest.loops[0].symbol == BLOCK and nest.loops[0].kind is AxisClass.BATCH
    assert SPLIT_SYMBOL in {axis.symbol for axis in divided.nests[0].loops}


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
