"""Values of whole rows: what the programs ahead compute, and what is left to the tiles."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from expecttest import TestCase
from graphs import bf16, f32, traced, within_tile
from support.quantised import mx_both, norm_backward

from mixorder.errors import Decline
from mixorder.ir.program import Load, LoopProgram, Reduce, Store
from mixorder.ir.verify import Form, verify
from mixorder.lowering.tile import lower_tile
from mixorder.region.rows_ahead import with_row_values
from mixorder.transform.cooperative import MAILBOX
from mixorder.transform.rows_ahead import rows_ahead
from mixorder.transform.tile_split import split_spanning

ROWS, COLS = 512, 1024
SPECS = [((ROWS, COLS), bf16), ((ROWS, COLS), bf16), ((COLS,), bf16), ((ROWS, 1), f32)]


def lowered(function: Any, specs: Any = SPECS) -> LoopProgram:
    region = with_row_values(within_tile(traced(lambda *x: function(*x), *specs)))
    assert region is not None
    return lower_tile(region)


class TestWhole(TestCase):
    maxDiff = None

    def test_a_norm_in_front_of_casts(self) -> None:
        program = rows_ahead(lowered(norm_backward))
        self.assertExpectedInline(
            str(program.ahead),
            """\
for r in row(512):
  %arg3_1: f32 = load in1[r]
  for c in column(1024):
    %arg1_1: f32 = load in2[c + 1024*r]
    %arg2_1: f32 = load in3[c]
    %mul_1: f32 = mul(%arg1_1, %arg2_1)
    %arg0_1: f32 = load in0[c + 1024*r]
    %mul: f32 = mul(%arg0_1, %arg3_1)
    %mul_2: f32 = mul(%mul, %mul_1)
  %mean: f32 = sum[c](%mul_2)
  %mean.1: f32 = constant(1024, f32)
  %mean.2: f32 = truediv(%mean, %mean.1)
  store mailbox[r] = %mean.2""",
        )


def test_tiles_read_the_mailbox_instead() -> None:
    before = lowered(norm_backward)
    program = verify(split_spanning(rows_ahead(before)), Form.BLOCKED)
    main, _ = program.nests
    (read,) = (s for s in main.body if isinstance(s, Load) and s.buffer == MAILBOX)
    x, i = (next(a.symbol for a in main.loops if str(a.symbol) == name) for name in "xi")
    assert read.index == 32 * i + x and read.dtype == torch.int32
    assert program.buffer(MAILBOX).numel == ROWS + 1 and program.buffer(MAILBOX).fill == -1
    names = [s.name for nest in before.nests for s in nest.body if isinstance(s, Reduce)]
    left = [s.name for s in main.body if isinstance(s, Reduce)]
    assert set(names) - set(left) == {"mean", "sum_1"}  # the latter is a sum of columns


def test_several_values_have_a_part_of_the_mailbox_each() -> None:
    def layer(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
        sums = dy.float().sum(-1, keepdim=True), (x.float() * dy.float()).sum(-1, keepdim=True)
        return mx_both((rstd * (dy.float() - sums[0] - x.float() * sums[1])).to(bf16))

    program = rows_ahead(lowered(layer))
    assert program.ahead is not None
    stores = [s for s in program.ahead.body if isinstance(s, Store)]
    assert [s.index.subs(sympy.Symbol("r", integer=True, nonnegative=True), 0) for s in stores] == [0, ROWS]
    assert program.buffer(MAILBOX).numel == 2 * ROWS + 1


def test_a_program_without_values_of_rows_stays_as_it_is() -> None:
    program = lower_tile(within_tile(traced(lambda x: mx_both(x), SPECS[0])))
    assert rows_ahead(program) is program


def test_a_value_that_needs_another_one() -> None:
    def two(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
        first = x.float() * (x.float() * dy.float()).sum(-1, keepdim=True)
        return mx_both((first * first.sum(-1, keepdim=True) + dy.float()).to(bf16))

    with pytest.raises(Decline, match="needs another one"):
        rows_ahead(lowered(two))


def test_a_value_in_float64() -> None:
    def wide(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
        return mx_both((x * dy * (x.double() * dy).sum(-1, keepdim=True)).to(bf16))

    with pytest.raises(Decline, match="no float32"):
        rows_ahead(lowered(wide))
