"""From a region to two nests: what is loaded, computed, reduced and stored, at which index."""

from __future__ import annotations

from typing import Any

import graphs
import pytest
import sympy
import torch
from expecttest import TestCase
from graphs import bf16, f16, f32, f64, only, pair, traced

from mixorder.errors import Decline, DeclineReason
from mixorder.loops.ir import (
    AxisClass,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    Reduce,
    Store,
)
from mixorder.loops.lower import lower
from mixorder.loops.verify import Stage, verify

FULL = ((512, 256), f32)


def lowered(function: Any, *specs: Any) -> LoopProgram:
    return verify(lower(only(traced(function, *specs))), Stage.LOWERED)


def statements(program: LoopProgram, kind: type) -> list[Any]:
    return [s for nest in program.nests for s in nest.body if isinstance(s, kind)]


class TestPrinted(TestCase):
    def test_smallest_pair(self) -> None:
        self.assertExpectedInline(
            str(lower(only(graphs.pair_graph()))),
            """\
in0: f32[512, 256]
in1: f32[512, 256]
out0: f32[512, 256]
out1: f32[256]
for x in row(512):
  for y in column(256):
    %dy_1: f32 = load in1[256*x + y]
    %x_1: f32 = load in0[256*x + y]
    %mul: f32 = mul(%x_1, %dy_1)
  %sum_1: f32 = sum[y](%mul)
  for y in column(256):
    %mul_1: f32 = mul(%x_1, %sum_1)
    %sub: f32 = sub(%dy_1, %mul_1)
    store out0[256*x + y] = %sub
for y in column(256):
  for x in row(512):
    %dy_1: f32 = load in1[256*x + y]
    %x_1: f32 = load in0[256*x + y]
    %mul: f32 = mul(%x_1, %dy_1)
  %sum_2: f32 = sum[x](%mul)
  store out1[y] = %sum_2""",
        )


def test_two_nests_with_opposite_loops_and_the_outputs_of_their_side() -> None:
    program = lowered(pair, FULL, FULL)
    kinds = [[axis.kind for axis in nest.loops] for nest in program.nests]
    assert kinds == [[AxisClass.ROW, AxisClass.COLUMN], [AxisClass.COLUMN, AxisClass.ROW]]
    stored = [[s.buffer for s in n.body if isinstance(s, Store)] for n in program.nests]
    assert stored == [["out0"], ["out1"]]


def test_statements_are_named_after_their_nodes() -> None:
    graph = graphs.layer_norm_backward(512, 256)
    region = only(graph)
    names = {n.name for n in (*region.nodes, *region.inputs)}
    for stmt in statements(lower(region), Load | Compute | Reduce):
        assert stmt.name.split(".")[0] in names


@pytest.mark.parametrize("dtype", [bf16, f16, f32, f64])
def test_half_precision_is_computed_in_fp32_and_fp64_in_fp64(dtype: torch.dtype) -> None:
    program = lowered(pair, ((512, 256), dtype), ((512, 256), dtype))
    compute = f64 if dtype == f64 else f32
    assert {s.dtype for s in statements(program, Load | Compute | Reduce)} == {compute}
    assert {b.dtype for b in program.buffers} == {dtype}


def test_a_cast_to_half_precision_inside_is_left_out_as_inductor_does() -> None:
    def function(x: Any, dy: Any) -> Any:
        return pair((x * dy).to(bf16).to(f32), dy)

    program = lowered(function, FULL, FULL)
    assert "to_dtype" not in {s.op for s in statements(program, Compute)}


def test_a_cast_between_compute_dtypes_stays() -> None:
    def function(x: Any, dy: Any) -> Any:
        dx, dw = pair(x.to(f64), dy.to(f64))
        return dx.to(f32), dw

    program = lowered(function, FULL, FULL)
    assert [s.args[1] for s in statements(program, Compute) if s.op == "to_dtype"] != []


def test_strides_of_an_input_are_in_its_index() -> None:
    graph = graphs.pair_graph()
    x = graphs.node(graph, "x_1")
    with x.meta["val"].fake_mode:
        x.meta["val"] = torch.empty_strided((512, 256), (272, 1))
    program = lower(only(graph))
    symbols = {a.kind: a.symbol for a in program.nests[0].loops}
    row, col = symbols[AxisClass.ROW], symbols[AxisClass.COLUMN]
    loads = [s for s in statements(program, Load) if s.name == "x_1"]
    assert {s.index for s in loads} == {272 * row + col}
    assert program.buffer(loads[0].buffer).max_offset == 511 * 272 + 255


def test_reshapes_fold_into_flat_indices() -> None:
    def function(x: Any, dy: Any) -> Any:
        product = x * dy.reshape(4, 128, 256)
        dx = dy.reshape(4, 128, 256) - x * product.sum(-1, keepdim=True)
        return dx.reshape(512, 256), product.reshape(512, 256).sum(0)

    program = lowered(function, ((4, 128, 256), f32), FULL)
    for stmt in statements(program, Load | Store):
        assert stmt.index.is_polynomial(*stmt.index.free_symbols), stmt


@pytest.mark.parametrize(
    ("shape", "depends"),
    [((256,), "column"), ((512, 1), "row"), ((1,), ""), ((512, 256), "row column")],
)
def test_a_broadcast_operand_is_loaded_at_the_axes_it_has(shape: Any, depends: str) -> None:
    def function(x: Any, dy: Any, other: Any) -> Any:
        return pair(x * other, dy)

    program = lowered(function, FULL, FULL, (shape, f32))
    kinds = {a.symbol: a.kind.value for a in program.nests[0].loops}
    load = next(s for s in statements(program, Load) if s.name == "other_1")
    assert {kinds[s] for s in load.index.free_symbols} == set(depends.split())


def test_every_output_is_stored_once_in_its_own_layout() -> None:
    program = lower(only(graphs.layer_norm_backward(512, 256)))
    outputs = program.role(BufferRole.OUTPUT)
    assert [tuple(map(int, b.shape)) for b in outputs] == [(512, 256), (256,), (256,)]
    assert sorted(s.buffer for s in statements(program, Store)) == [b.name for b in outputs]


@pytest.mark.parametrize("kind", ["amax", "amin", "sum"])
@pytest.mark.parametrize("side", ["inner", "outer"])
def test_reduction_kinds_on_both_sides(kind: str, side: str) -> None:
    def function(x: Any, dy: Any) -> Any:
        inner = getattr(x * dy, kind if side == "inner" else "sum")(1, keepdim=True)
        outer = getattr(x * dy, kind if side == "outer" else "sum")(0)
        return dy * inner, outer

    program = lowered(function, FULL, FULL)
    found = {s.axes[0]: s.kind.name for s in statements(program, Reduce)}
    row, col = (program.axis(k).symbol for k in (AxisClass.ROW, AxisClass.COLUMN))  # type: ignore
    assert found == {
        col: kind if side == "inner" else "sum",
        row: kind if side == "outer" else "sum",
    }


def test_lowering_leaves_the_graph_alone() -> None:
    graph = graphs.layer_norm_backward(512, 256)
    before = graphs.snapshot(graph)
    lower(only(graph))
    assert graphs.snapshot(graph) == before


def test_an_op_whose_lowering_is_no_loop_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    from mixorder.loops import lower as module

    table = {**module.lowerings, torch.ops.aten.mul.Tensor: lambda *args: None}
    monkeypatch.setattr(module, "lowerings", table)
    with pytest.raises(Decline) as caught:
        lower(only(graphs.pair_graph()))
    assert caught.value.reason is DeclineReason.UNSUPPORTED_OP
    assert caught.value.node_name in {"mul", "mul_1"}


def test_sizes_of_axes() -> None:
    program = lowered(pair, FULL, FULL)
    sizes = {a.kind: a.size for a in program.nests[0].loops}
    assert sizes == {AxisClass.ROW: sympy.Integer(512), AxisClass.COLUMN: sympy.Integer(256)}
