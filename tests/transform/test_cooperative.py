"""Rows that programs share: stages, what is exchanged at their ends, and what is carried over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import graphs
import pytest
import torch
from expecttest import TestCase
from graphs import bf16, f32, f64, merged, only, share, traced
from torch.fx import Graph

from mixorder.errors import Decline, DeclineReason
from mixorder.ir.program import (
    Axis,
    AxisClass,
    BufferRole,
    Carry,
    Exchange,
    Load,
    LoopProgram,
    PartialAccumulate,
    Reduce,
    Value,
)
from mixorder.ir.verify import Form, verify
from mixorder.transform.cooperative import check_shareable, slots_of
from mixorder.transform.reorder import merge, reorder
from mixorder.transform.split import split_outer

FULL = ((64, 256), bf16)
COLUMN = ((256,), f32)
WIDE, HEADS = ((64, 256), f32), ((64, 4, 256), f32)


def two_stages(x: Any, dy: Any, w: Any) -> Any:
    """A row's scale from its largest value, then a sum that needs the scale, as in BitLinear."""
    scale = 127.0 / x.to(f32).abs().amax(-1, keepdim=True)
    q = x * scale
    return dy * w - q * (q * dy * w).sum(-1, keepdim=True), (dy * q).sum(0)


def residual(x: Any, dy: Any, around: Any) -> Any:
    dx, dw = graphs.pair(x.to(f32), dy.to(f32))
    return (dx + around).to(bf16), dw


def outer_only(x: Any, y: Any) -> Any:
    product = x * y
    return product, product.sum(0)


def program_of(function: Any, *specs: Any) -> LoopProgram:
    return merged(only(traced(function, *specs)))


def shared(program: LoopProgram, parts: int = 4, xblock: int = 2) -> LoopProgram:
    check_shareable(program)
    return verify(share(program, parts, xblock), Form.COOPERATIVE)


PROGRAMS: dict[str, Callable[[], LoopProgram]] = {
    "layer": lambda: merged(only(graphs.layer_norm_backward(64, 256))),
    "rms": lambda: merged(only(graphs.rms_norm_backward(64, 256))),
    "two_stages": lambda: program_of(two_stages, FULL, FULL, COLUMN),
    "residual": lambda: program_of(residual, FULL, FULL, FULL),
}


class TestWhole(TestCase):
    maxDiff = None

    def show(self, name: str) -> str:
        """What sharing changes: the words, and the main nest."""
        program = shared(PROGRAMS[name]())
        return "\n".join(map(str, (*program.role(BufferRole.MAILBOX), program.nests[0])))

    def test_layer_norm(self) -> None:
        self.assertExpectedInline(
            self.show("layer"),
            """\
mailbox: i32[528]
once: %div: f32 = constant(0.00390625, f32)
once: %mul_2: f32 = constant(256, f32)
once: %w_1: f32 = load in2[y]
for s in split(num_splits):
  for x in row(64):
    for y in column(256):
      %dy_1: f32 = load in0[256*x + y]
      %mul_1: f32 = mul(%dy_1, %w_1)
    %sum_1: f32 = sum[y](%mul_1)
    for y in column(256):
      %x_1: f32 = load in1[256*x + y]
      %mean_1: f32 = load in3[x]
      %sub: f32 = sub(%x_1, %mean_1)
      %rstd_1: f32 = load in4[x]
      %mul: f32 = mul(%sub, %rstd_1)
      %mul_3: f32 = mul(%mul_1, %mul)
    %sum_2: f32 = sum[y](%mul_3)
    exchange %sum_1, %sum_2 through mailbox
    for y in column(256):
      %dy_1.in1: f32 = carry[1] %dy_1
      %x_1.in1: f32 = carry[1] %x_1
    %mean_1.in1: f32 = carry[1] %mean_1
    for y in column(256):
      %sub.in1: f32 = sub(%x_1.in1, %mean_1.in1)
    %rstd_1.in1: f32 = carry[1] %rstd_1
    for y in column(256):
      %mul.in1: f32 = mul(%sub.in1, %rstd_1.in1)
      %mul_6: f32 = mul(%dy_1.in1, %mul.in1)
      partial_accumulate ws0[256*s + y] add= %mul_6
      partial_accumulate ws1[256*s + y] add= %dy_1.in1
      %div.1: f32 = mul(%rstd_1.in1, %div)
      %mul_1.in1: f32 = mul(%dy_1.in1, %w_1)
      %mul_2.1: f32 = mul(%mul_1.in1, %mul_2)
      %sub_1: f32 = sub(%mul_2.1, %sum_1)
      %mul_4: f32 = mul(%mul.in1, %sum_2)
      %sub_2: f32 = sub(%sub_1, %mul_4)
      %mul_5: f32 = mul(%div.1, %sub_2)
      store out0[256*x + y] = %mul_5""",
        )

    def test_two_stages(self) -> None:
        self.assertExpectedInline(
            self.show("two_stages"),
            """\
mailbox: i32[528]
once: %mul: f32 = constant(127.0, f32)
once: %w_1: f32 = load in2[y]
for s in split(num_splits):
  for x in row(64):
    for y in column(256):
      %x_1: f32 = load in0[256*x + y]
      %abs_1: f32 = abs(%x_1)
    %amax: f32 = amax[y](%abs_1)
    exchange %amax through mailbox
    for y in column(256):
      %x_1.in1: f32 = carry[1] %x_1
      %reciprocal: f32 = reciprocal(%amax)
      %mul.1: f32 = mul(%reciprocal, %mul)
      %mul_1: f32 = mul(%x_1.in1, %mul.1)
      %dy_1: f32 = load in1[256*x + y]
      %mul_3: f32 = mul(%mul_1, %dy_1)
      %mul_4: f32 = mul(%mul_3, %w_1)
    %sum_1: f32 = sum[y](%mul_4)
    exchange %sum_1 through mailbox
    for y in column(256):
      %dy_1.in2: f32 = carry[1] %dy_1
      %x_1.in2: f32 = carry[2] %x_1
    %amax.in2: f32 = carry[1] %amax
    %reciprocal.in2: f32 = reciprocal(%amax.in2)
    %mul.1.in2: f32 = mul(%reciprocal.in2, %mul)
    for y in column(256):
      %mul_1.in2: f32 = mul(%x_1.in2, %mul.1.in2)
      %mul_6: f32 = mul(%dy_1.in2, %mul_1.in2)
      partial_accumulate compensated ws0[256*s + y] add= %mul_6
      %mul_2: f32 = mul(%dy_1.in2, %w_1)
      %mul_5: f32 = mul(%mul_1.in2, %sum_1)
      %sub: f32 = sub(%mul_2, %mul_5)
      store out0[256*x + y] = %sub""",
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_full_tile_is_read_once_and_in_the_stage_that_uses_it_first(name: str) -> None:
    before, after = PROGRAMS[name](), shared(PROGRAMS[name]())
    loads = [[s for s in p.nests[0].body if isinstance(s, Load)] for p in (before, after)]
    assert sorted(map(str, loads[0])) == sorted(map(str, loads[1]))


def test_what_only_the_last_stage_needs_is_loaded_there_and_not_carried() -> None:
    body = shared(PROGRAMS["residual"]()).nests[0].body
    (end,) = (i for i, s in enumerate(body) if isinstance(s, Exchange))
    (late,) = (s for s in body[end:] if isinstance(s, Load))
    carried = {s.value.name for s in body if isinstance(s, Carry)}
    early = {s.name for s in body[:end] if isinstance(s, Load)}
    assert late.name == "around_1" and carried == early


def test_each_stage_carries_from_where_a_value_is_first_found() -> None:
    body = shared(PROGRAMS["two_stages"]()).nests[0].body
    carries = {str(s.value): s.phases for s in body if isinstance(s, Carry) and s.name.endswith(".in2")}
    assert carries == {"%x_1": 2, "%dy_1": 1, "%amax": 1}
    exchanged = [ref.name for s in body if isinstance(s, Exchange) for ref in s.values]
    assert exchanged == ["amax", "sum_1"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_accumulations_are_in_the_last_stage(name: str) -> None:
    body = shared(PROGRAMS[name]()).nests[0].body
    last = max(i for i, s in enumerate(body) if isinstance(s, Exchange))
    assert all(i > last for i, s in enumerate(body) if isinstance(s, PartialAccumulate))
    assert all(i < last for i, s in enumerate(body) if isinstance(s, Reduce))


def test_names_of_stages_are_not_those_of_what_an_op_is_made_of() -> None:
    def function(x: Any, dy: Any) -> Any:
        return graphs.pair(x.pow(5), dy)

    program = program_of(function, WIDE, WIDE)
    assert any(getattr(s, "name", "").endswith(".1") for s in program.nests[0].body)
    names = [s.name for s in shared(program).nests[0].statements if isinstance(s, Value)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("parts", "lanes"), [(2, 2), (3, 4), (4, 4), (5, 8), (16, 16), (17, 32), (32, 32)])
@pytest.mark.parametrize("xblock", [1, 2])
def test_each_row_of_each_tile_has_its_words(parts: int, lanes: int, xblock: int) -> None:
    assert slots_of(parts) == lanes
    (words,) = shared(PROGRAMS["layer"](), parts, xblock).role(BufferRole.MAILBOX)
    assert words.dtype == torch.int32
    assert words.numel == (64 + xblock) * 2 * lanes  # two sums per row; a tile also of no rows


def test_nothing_is_exchanged_without_a_reduction_over_columns() -> None:
    # A prime number of columns cannot be cut into narrower ones that each have a program.
    program = program_of(outer_only, ((64, 257), bf16), ((64, 257), bf16))
    assert not any(isinstance(s, Reduce) for s in program.nests[0].body)
    again = shared(program)
    assert again.role(BufferRole.MAILBOX) == ()
    assert sorted(map(str, again.nests[0].body)) == sorted(map(str, program.nests[0].body))


def test_the_finalisation_and_what_runs_once_stay_as_they_are() -> None:
    program = PROGRAMS["layer"]()
    again = shared(program)
    assert again.nests[1:] == program.nests[1:]
    assert again.nests[0].preamble == program.nests[0].preamble != ()


def test_rows_may_be_symbolic() -> None:
    def function(x: Any, dy: Any) -> Any:
        return graphs.pair(x, dy)

    full = ((64, 256), f32)
    program = shared(merged(only(graphs.traced_rows(function, full, full))), parts=4, xblock=2)
    ((rows,),) = (b.shape for b in program.role(BufferRole.MAILBOX))
    (symbol,) = program.sizes
    assert rows.free_symbols == {symbol} and program.hint(rows) == 66 * 4


def per_head(x: Any, dy: Any) -> Any:
    product = x * dy
    return dy - x * product.sum(2, keepdim=True), product.sum(0)


def rotated(x: Any, dy: Any) -> Any:
    half = torch.cat([-x[:, 128:], x[:, :128]], 1)
    return graphs.pair(x * dy + half, dy)


def doubled(x: Any, dy: Any) -> Any:
    return graphs.pair(x.to(f64), dy.to(f64))


def outer_doubled(x: Any, dy: Any) -> Any:
    product = x * dy
    return dy - x * product.sum(1, keepdim=True), product.to(f64).sum(0)


def anywhere(x: Any, dy: Any) -> Any:
    product = x * dy
    return dy * (product > 0).any(1, keepdim=True), product.sum(0)


REFUSED: dict[str, tuple[Any, Any]] = {
    "a batch axis": (per_head, HEADS),
    "a gather": (rotated, WIDE),
    "reductions other than sums": (doubled, WIDE),
    "maxima and minima in fp32": (anywhere, WIDE),
    "a workspace in float64": (outer_doubled, WIDE),
}


def test_a_single_row_is_declined() -> None:
    one = ((1, 256), f32)
    with pytest.raises(Decline, match="the same for all rows"):
        check_shareable(program_of(graphs.pair, one, one))


def first_program(graph: Graph) -> LoopProgram:
    region = next(iter(graphs.in_turn(graph)))
    return merge(reorder(split_outer(graphs.lower(region))))


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_shared_is_declined(what: str) -> None:
    function, spec = REFUSED[what]
    with pytest.raises(Decline, match=what) as caught:
        check_shareable(first_program(traced(function, spec, spec)))
    assert caught.value.reason is DeclineReason.ROW_TOO_WIDE


def test_a_common_axis_is_declined() -> None:
    program = PROGRAMS["layer"]()

    def common(axis: Axis) -> Axis:
        return dataclasses.replace(axis, kind=AxisClass.COMMON) if axis.kind is AxisClass.COLUMN else axis

    nests = [dataclasses.replace(n, loops=tuple(map(common, n.loops))) for n in program.nests]
    with pytest.raises(Decline, match="a common axis"):
        check_shareable(dataclasses.replace(program, nests=tuple(nests)))
