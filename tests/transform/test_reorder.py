"""One loop order, then one nest: before and after, and what must not move."""

from __future__ import annotations

import dataclasses
from typing import Any

import graphs
import pytest
from expecttest import TestCase
from graphs import f32, only, traced

from mixorder.ir.program import (
    AxisClass,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Store,
    operands,
)
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.transform.reorder import merge, reorder
from mixorder.transform.split import split_outer

FULL = ((512, 256), f32)
SPLIT, ROW, COLUMN = AxisClass.SPLIT, AxisClass.ROW, AxisClass.COLUMN


def split(graph: Any) -> LoopProgram:
    return split_outer(lower(only(graph)))


def kinds(nest: Nest) -> list[AxisClass]:
    return [axis.kind for axis in nest.loops]


GRAPHS = {
    "pair": graphs.pair_graph,
    "layer": lambda: graphs.layer_norm_backward(512, 256),
    "rms": lambda: graphs.rms_norm_backward(512, 256),
    "plain_weight": lambda: graphs.layer_norm_backward(512, 256, bias=False),
}


class TestPrinted(TestCase):
    def test_partial_nest_before_and_after(self) -> None:
        program = split(graphs.pair_graph())
        self.assertExpectedInline(
            str(program.nests[1]),
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
            str(reorder(program).nests[1]),
            """\
for s in split(num_splits):
  for x in row(512):
    for y in column(256):
      %dy_1: f32 = load in1[256*x + y]
      %x_1: f32 = load in0[256*x + y]
      %mul: f32 = mul(%x_1, %dy_1)
      partial_accumulate compensated ws0[256*s + y] add= %mul""",
        )

    def test_merged(self) -> None:
        program = merge(reorder(split(graphs.pair_graph())))
        self.assertExpectedInline(
            str(program.nests[0]),
            """\
for s in split(num_splits):
  for x in row(512):
    for y in column(256):
      %dy_1: f32 = load in1[256*x + y]
      %x_1: f32 = load in0[256*x + y]
      %mul: f32 = mul(%x_1, %dy_1)
      partial_accumulate compensated ws0[256*s + y] add= %mul
    %sum_1: f32 = sum[y](%mul)
    for y in column(256):
      %mul_1: f32 = mul(%x_1, %sum_1)
      %sub: f32 = sub(%dy_1, %mul_1)
      store out0[256*x + y] = %sub""",
        )


@pytest.mark.parametrize("name", GRAPHS)
def test_reorder_only_permutes(name: str) -> None:
    program = split(GRAPHS[name]())
    after = verify(reorder(program), Form.REORDERED)
    assert after.buffers == program.buffers
    for old, new in zip(program.nests, after.nests, strict=True):
        assert set(new.body) == set(old.body) and len(new.body) == len(old.body)
    assert kinds(after.nests[0]) == kinds(after.nests[1]) == [SPLIT, ROW, COLUMN]
    assert kinds(after.nests[2]) == kinds(program.nests[2])


@pytest.mark.parametrize("name", GRAPHS)
def test_merge_keeps_every_statement_once(name: str) -> None:
    before = reorder(split(GRAPHS[name]()))
    after = verify(merge(before), Form.MERGED)
    over_rows = [s for nest in before.nests[:2] for s in nest.body]
    assert len(after.nests) == 2
    assert sorted(map(str, set(over_rows))) == sorted(map(str, after.nests[0].statements))
    assert after.nests[1] == before.nests[2]


@pytest.mark.parametrize("name", GRAPHS)
def test_each_full_tensor_is_loaded_once(name: str) -> None:
    main = merge(reorder(split(GRAPHS[name]()))).nests[0]
    loads = [s.buffer for s in main.statements if isinstance(s, Load)]
    assert len(loads) == len(set(loads))


@pytest.mark.parametrize("name", GRAPHS)
def test_stages_are_in_order(name: str) -> None:
    main = merge(reorder(split(GRAPHS[name]()))).nests[0]
    stage = main.reductions_above()
    at = [stage[s.name] for s in main.body if isinstance(s, Reduce | Compute)]
    assert at == sorted(at)


def test_column_loads_and_what_follows_from_them_alone_are_hoisted() -> None:
    def function(x: Any, dy: Any, w: Any) -> Any:
        return graphs.pair(x, dy * (w * 2 + 1))

    main = merge(reorder(split(traced(function, FULL, FULL, ((256,), f32))))).nests[0]
    hoisted = {s.name for s in main.preamble}
    assert "w_1" in hoisted
    assert any(isinstance(s, Compute) and "w_1" in set(operands(s)) for s in main.preamble)
    symbols = {a.symbol for a in main.loops if a.kind in (ROW, SPLIT)}
    deps = main.dependence()
    assert not any(deps[name] & symbols for name in hoisted)


def test_row_loads_and_reductions_are_not_hoisted() -> None:
    main = merge(reorder(split(graphs.rms_norm_backward(512, 256)))).nests[0]
    assert "rstd_1" in {s.name for s in main.body if isinstance(s, Load)}
    kept = (Reduce, PartialAccumulate, Store)
    assert not any(isinstance(s, kept) for s in main.preamble)


def test_a_load_that_only_the_second_stage_needs_waits_for_it() -> None:
    def function(x: Any, dy: Any, residual: Any) -> Any:
        dx, dw = graphs.pair(x, dy)
        return dx + residual, dw

    main = merge(reorder(split(traced(function, FULL, FULL, FULL)))).nests[0]
    order = [getattr(s, "name", "") for s in main.body]
    reduction = next(s.name for s in main.body if isinstance(s, Reduce))
    assert order.index("residual_1") > order.index(reduction)


def test_merge_before_reorder_is_refused() -> None:
    with pytest.raises(ValueError, match="reorder first"):
        merge(split(graphs.pair_graph()))


def test_reorder_is_idempotent() -> None:
    once = reorder(split(graphs.layer_norm_backward(512, 256)))
    assert reorder(once) == once


def test_merge_puts_definitions_first_whatever_order_they_come_in() -> None:
    program = reorder(split(graphs.layer_norm_backward(512, 256)))
    first, second, *rest = program.nests
    swapped = dataclasses.replace(program, nests=(second, first, *rest))
    assert str(verify(merge(swapped), Form.MERGED).nests[1]) == str(merge(program).nests[1])
