"""Outer reductions become partial sums and a finalisation: before and after, and what is untouched."""

from __future__ import annotations

from typing import Any

import graphs
import pytest
from expecttest import TestCase
from graphs import bf16, f32, f64, only, traced

from mixorder.ir.program import (
    NUM_SPLITS,
    SPLIT_SYMBOL,
    AxisClass,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    PartialAccumulate,
    Reduce,
    Store,
)
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.transform.split import split_outer

FULL = ((512, 256), f32)


def split(function: Any, *specs: Any) -> LoopProgram:
    return verify(split_outer(lower(only(traced(function, *specs)))), Form.SPLIT)


class TestPrinted(TestCase):
    def test_outer_nest_before_and_after(self) -> None:
        program = lower(only(graphs.pair_graph()))
        self.assertExpectedInline(
            str(program.nests[1]),
            """\
for y in column(256):
  for x in row(512):
    %dy_1: f32 = load in1[256*x + y]
    %x_1: f32 = load in0[256*x + y]
    %mul: f32 = mul(%x_1, %dy_1)
  %sum_2: f32 = sum[x](%mul)
  store out1[y] = %sum_2""",
        )
        after = split_outer(program)
        self.assertExpectedInline(
            str(after.nests[1]),
            """\
for y in column(256):
  for s in split(num_splits):
    for x in row(512):
      %dy_1: f32 = load in1[256*x + y]
      %x_1: f32 = load in0[256*x + y]
      %mul: f32 = mul(%x_1, %dy_1)
      partial_accumulate compensated ws0[256*s + y] add= %mul""",
        )
        self.assertExpectedInline(
            str(after.nests[2]),
            """\
for y in column(256):
  for s in split(num_splits):
    %sum_2.partial: f64 = load ws0[256*s + y]
  %sum_2.total: f64 = sum[s](%sum_2.partial)
  %sum_2: f32 = to_dtype(%sum_2.total, f32)
  store out1[y] = %sum_2""",
        )


def test_the_inner_nest_is_untouched() -> None:
    program = lower(only(graphs.pair_graph()))
    after = split_outer(program)
    assert after.nests[0] is program.nests[0]
    assert after.buffers[: len(program.buffers)] == program.buffers


def test_one_workspace_per_outer_reduction_with_a_row_per_split() -> None:
    program = split_outer(lower(only(graphs.layer_norm_backward(512, 256, bf16))))
    workspaces = program.role(BufferRole.WORKSPACE)
    assert [w.shape for w in workspaces] == [(NUM_SPLITS, 256)] * 2
    assert [w.stride for w in workspaces] == [(256, 1)] * 2
    assert {w.dtype for w in workspaces} == {f32}


def test_fp64_partials_stay_fp64() -> None:
    program = split(graphs.pair, ((512, 256), f64), ((512, 256), f64))
    assert [w.dtype for w in program.role(BufferRole.WORKSPACE)] == [f64]


@pytest.mark.parametrize("kind", ["sum", "amax", "amin"])
def test_the_finalisation_combines_with_the_same_kind(kind: str) -> None:
    def function(x: Any, dy: Any) -> Any:
        product = x * dy
        return dy * product.sum(1, keepdim=True), getattr(product, kind)(0)

    program = split(function, FULL, FULL)
    (acc,) = (s for s in program.nests[1].body if isinstance(s, PartialAccumulate))
    (final,) = (s for s in program.nests[2].body if isinstance(s, Reduce))
    assert acc.kind is final.kind and acc.kind.name == kind
    assert final.axes == (SPLIT_SYMBOL,)


def test_the_epilogue_moves_to_the_finalisation() -> None:
    def function(x: Any, dy: Any, w: Any) -> Any:
        dx, dw = graphs.pair(x, dy)
        return dx, dw * 0.5 + w

    program = split(function, FULL, FULL, ((256,), f32))
    partial, final = program.nests[1:]
    assert not any(isinstance(s, Store) for s in partial.body)
    assert {s.op for s in final.body if isinstance(s, Compute)} >= {"mul", "add"}
    assert "w_1" in {s.name for s in final.body if isinstance(s, Load)}
    assert AxisClass.ROW not in {axis.kind for axis in final.loops}


def test_the_split_loop_encloses_the_rows() -> None:
    program = split(graphs.pair, FULL, FULL)
    kinds = [axis.kind for axis in program.nests[1].loops]
    assert kinds.index(AxisClass.SPLIT) + 1 == kinds.index(AxisClass.ROW)


def test_a_program_without_outer_reductions_is_unchanged() -> None:
    program = lower(only(graphs.pair_graph()))
    only_inner = LoopProgram(program.buffers, program.nests[:1])
    assert split_outer(only_inner) == only_inner


def test_splitting_twice_adds_nothing() -> None:
    once = split_outer(lower(only(graphs.pair_graph())))
    assert split_outer(once) == once


def test_a_column_result_that_loops_round_is_not_compensated() -> None:
    def function(x: Any, dy: Any, narrow: Any) -> Any:
        product = x * dy
        dw = product.sum(0)
        return dy - x * product.sum(1, keepdim=True), narrow.to(f32).sum(1) * 2, narrow * dw[None]

    full, narrow = ((512, 256), bf16), ((16, 256), bf16)
    program = split(function, full, full, narrow)
    (out,) = (b for b in program.role(BufferRole.OUTPUT) if b.widened)
    assert out.dtype == f32 and str(out) == f"{out.name}: f32[256] widened"
    (partial,) = (s for nest in program.nests for s in nest.body if isinstance(s, PartialAccumulate))
    assert not partial.compensated
