"""From a region to two nests: what is loaded, computed, reduced and stored, at which index."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import graphs
import pytest
import sympy
import torch
import torch.nn.functional as F
from expecttest import TestCase
from graphs import bf16, f16, f32, f64, only, pair, traced

from mixorder.ir.program import AxisClass, BufferRole, Compute, Load, LoopProgram, Nest, Reduce, Ref, Store
from mixorder.ir.program import operands as operand_names
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.lowering.tracer import Tracer

FULL = ((512, 256), f32)


def lowered(function: Any, *specs: Any) -> LoopProgram:
    return verify(lower(only(traced(function, *specs))), Form.LOWERED)


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

    def test_a_gradient_through_a_slice_and_a_permute(self) -> None:
        def function(x: Any, dy: Any) -> Any:
            moved = F.pad(torch.exp(dy), (4, 0)).permute(1, 0, 2)
            return (x * moved).sum(2), (x * moved).sum((0, 1))

        graph = traced(function, ((6, 5, 16), f32), ((5, 6, 12), f32))
        self.assertExpectedInline(
            str(lower(only(graph)).nests[0]),
            """\
for x in row(30):
  for y in column(16):
    %x_1: f32 = load in1[16*x + y]
    %constant_pad_nd: i64 = index_expr(y - 4, i64)
    %constant_pad_nd.1: i64 = constant(0, i64)
    %constant_pad_nd.2: b8 = ge(%constant_pad_nd, %constant_pad_nd.1)
    %dy_1: f32 = load in0[y + 12*((x//5)) + 72*(ModularIndexing(x, 1, 5)) - 4] if %constant_pad_nd.2
    %exp: f32 = exp(%dy_1)
    %constant_pad_nd.3: f32 = constant(0.0, f32)
    %constant_pad_nd.4: f32 = where(%constant_pad_nd.2, %exp, %constant_pad_nd.3)
    %mul: f32 = mul(%x_1, %constant_pad_nd.4)
  %sum_1: f32 = sum[y](%mul)
  store out0[x] = %sum_1""",
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


HALF = ((512, 256), bf16)


def of_largest(x: Any, dy: Any, most: Any) -> Any:
    """The gradient of a maximum that was stored, and of a sum of rows beside it."""
    product = x * dy
    equal = product == most
    share = most / equal.sum(-1, keepdim=True)
    return share * equal, (dy * x.abs()).sum(0)


def roundings(program: LoopProgram) -> list[str]:
    """What is rounded, by the names of nodes."""
    found = (s for s in statements(program, Compute) if s.op == "to_dtype")
    names = {s.args[0].name for s in found if dict(s.kwargs).get("use_compute_types") is False}
    return sorted(name.split(".")[0] for name in names)


def test_a_value_is_rounded_where_it_is_compared_with_a_stored_one() -> None:
    """What is loaded needs no rounding, and nothing else has any."""
    assert roundings(lowered(of_largest, HALF, HALF, ((512, 1), bf16))) == ["mul"]


def test_nothing_is_rounded_in_float32() -> None:
    assert roundings(lowered(of_largest, FULL, FULL, ((512, 1), f32))) == []


def test_nothing_is_rounded_where_a_value_is_compared_with_a_number() -> None:
    def function(x: Any, dy: Any) -> Any:
        return torch.where(x * dy > 0.5, x, dy) * (x * dy).sum(-1, keepdim=True), (x * dy).sum(0)

    assert roundings(lowered(function, HALF, HALF)) == []


def test_the_largest_of_what_is_rounded_is_not_rounded_again() -> None:
    def function(x: Any, dy: Any) -> Any:
        product = x * dy
        return torch.where(product == product.amax(-1, keepdim=True), x, dy), product.sum(0)

    assert roundings(lowered(function, HALF, HALF)) == ["mul"]


def test_what_is_marked_rounds_no_operand_that_is_loaded() -> None:
    graph = traced(lambda x, dy: pair(x, dy), HALF, HALF)
    for node in graph.nodes:
        if node.target is torch.ops.aten.mul.Tensor:
            node.meta["low_precision_pointwise_barrier"] = True
    assert roundings(verify(lower(only(graph)), Form.LOWERED)) == ["mul", "mul_1", "sum_1"]


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


def test_sizes_of_axes() -> None:
    program = lowered(pair, FULL, FULL)
    sizes = {a.kind: a.size for a in program.nests[0].loops}
    assert sizes == {AxisClass.ROW: sympy.Integer(512), AxisClass.COLUMN: sympy.Integer(256)}


# Gathers: what is read, where, and under which condition.

MOVED = {
    "pad": lambda z: F.pad(z[1:, 2:].exp(), (1, 1, 0, 1)),
    "cat": lambda z: torch.cat([z[:, 9:].exp(), z[:, :4], z[:, 4:9]], 1),
    "slice_scatter": lambda z: torch.slice_scatter(torch.zeros_like(z), z[:, :-4].exp(), 1, 4),
    "nested": lambda z: F.pad(torch.cat([F.pad(z[:, 5:].exp(), (2, 0)), z[:, :1]], 1)[2:], (0, 2, 1, 1)),
    "select_scatter": lambda z: torch.select_scatter(torch.zeros_like(z), z[3].exp(), 0, 7),
    "permute": lambda z: z.reshape(2, 4, 16).exp().permute(1, 0, 2).reshape(8, 16),
    "split": lambda z: torch.cat([part.exp() for part in z.split([3, 8, 5], 1)][::-1], 1),
}


def gathered(name: str) -> LoopProgram:
    def function(x: Any, z: Any) -> Any:
        return pair(x, MOVED[name](z))

    return graphs.merged(only(traced(function, ((8, 16), f32), ((8, 16), f32))))


OPS = {"ge": operator.ge, "lt": operator.lt, "eq": operator.eq, "and_": operator.and_}


def holds(nest: Nest, name: str, point: dict[sympy.Symbol, int]) -> Any:
    """A predicate's value at one point of the loops."""
    stmt = next(s for s in nest.statements if isinstance(s, Compute) and s.name == name)
    if stmt.op == "index_expr":
        return int(sympy.sympify(stmt.args[0]).subs(point))
    if stmt.op == "constant":
        return stmt.args[0]
    return OPS[stmt.op](*(holds(nest, arg.name, point) for arg in stmt.args if isinstance(arg, Ref)))


# One reads all rows, the other a vector, which is read whole.
UNGUARDED = {"permute", "select_scatter"}


@pytest.mark.parametrize("name", MOVED)
def test_nothing_is_read_out_of_range(name: str) -> None:
    """A GPU faults on an address beyond a tensor, also where the value is not used."""
    program = gathered(name)
    nest = program.nests[0]
    rows, cols = (program.axis(kind) for kind in (AxisClass.ROW, AxisClass.COLUMN))
    assert rows is not None and cols is not None
    loads = [s for s in nest.statements if isinstance(s, Load)]
    assert any(s.predicate for s in loads) == (name not in UNGUARDED)
    skipped = 0
    for x, y in itertools.product(range(int(rows.size)), range(int(cols.size))):
        point = {rows.symbol: x, cols.symbol: y}
        for load in loads:
            if load.predicate is not None and not holds(nest, load.predicate.name, point):
                skipped += 1
                continue
            assert 0 <= int(load.index.subs(point)) <= int(program.buffer(load.buffer).max_offset), load
    assert skipped or name in UNGUARDED


@pytest.mark.parametrize("name", MOVED)
def test_a_gather_is_inside(name: str) -> None:
    buffers = gathered(name).role(BufferRole.INPUT)
    assert [tuple(map(int, b.shape)) for b in buffers] == [(8, 16)] * 2


def test_a_predicate_is_an_operand_of_its_load() -> None:
    """So that every transform keeps it, and its value's axes are the load's."""
    program = gathered("cat")
    nest = program.nests[0]
    deps = nest.dependence()
    guarded = [s for s in nest.statements if isinstance(s, Load) and s.predicate is not None]
    assert len(guarded) == 3
    for load in guarded:
        assert load.predicate is not None and list(operand_names(load)) == [load.predicate.name]
        assert deps[load.predicate.name] <= deps[load.name]


def test_a_place_read_with_and_without_a_condition_is_read_once() -> None:
    """x is read by the pair at its own place; each half of the cat needs it there as well."""

    def function(x: Any, z: Any) -> Any:
        half = torch.sigmoid(x)
        return pair(x, torch.cat([z[:, :8] * half[:, :8], half[:, 8:]], 1))

    program = graphs.merged(only(traced(function, ((8, 16), f32), ((8, 16), f32))))
    reads = [s for s in program.nests[0].body if isinstance(s, Load) and s.buffer == "in0"]
    assert [s.predicate for s in reads] == [None]


def test_a_vector_under_a_condition_on_rows_is_read_once_per_program() -> None:
    def function(x: Any, z: Any, w: Any) -> Any:
        return pair(x, F.pad(z[2:] * w, (0, 0, 1, 1)))

    program = graphs.merged(only(traced(function, ((8, 16), f32), ((8, 16), f32), ((16,), f32))))
    (load,) = (s for s in program.nests[0].preamble if isinstance(s, Load))
    assert load.name == "w_1" and load.predicate is None


def test_a_constant_is_no_input() -> None:
    def function(x: Any, dy: Any) -> Any:
        return pair(torch.where(x > 0, x, torch.full((512, 256), 0.5)), dy + torch.arange(256))

    program = lowered(function, FULL, FULL)
    assert len(program.role(BufferRole.INPUT)) == 2
    assert {"constant", "index_expr"} <= {s.op for s in statements(program, Compute)}


def of_pictures(x: Any, dy: Any) -> Any:
    """The backward of a norm of pictures, whose gradient is added up over all pixels behind two views."""
    dx = dy - x * (x * dy).sum(3, keepdim=True)
    return dx, (x * dy).sum((0, 1, 2)), dx.reshape(4, 128, 32).reshape(512, 32).sum(0)


PICTURES = ((4, 8, 16, 32), f32)


def test_equal_rows_that_the_algebra_of_divisions_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of torch simplifies less: without any of it, a row is read at (x % 128 // 16) % 8."""
    expected = statements(lowered(of_pictures, PICTURES, PICTURES), Reduce)
    monkeypatch.setattr(Tracer, "simplify", lambda self, index: index)
    found = statements(lower(only(traced(of_pictures, PICTURES, PICTURES))), Reduce)
    assert [(s.kind, s.axes) for s in found] == [(s.kind, s.axes) for s in expected]
