"""Which nodes a region takes, what it reads and writes, and that it never closes a cycle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import graphs
import pytest
import sympy
import torch
import torch.nn.functional as F
from graphs import bf16, f32, find, in_turn, node, output_args, pair, path_through_outside, traced
from torch import nn
from torch.fx import Graph

from mixorder.errors import Decline, DeclineReason
from mixorder.ir.program import AxisClass
from mixorder.region.axes import Space
from mixorder.region.find import find_regions
from mixorder.region.gathers import is_gather
from mixorder.region.nodes import operands
from mixorder.region.partition import without_gathers
from mixorder.region.region import Region
from mixorder.rewrite.spelled import Spelling

FULL = ((512, 256), f32)
SQUARE = ((256, 256), f32)
WEIGHT = ((256,), f32)
aten = torch.ops.aten


def plane(rows: int, cols: int) -> Space:
    return Space(((rows, AxisClass.ROW), (cols, AxisClass.COLUMN)))


def names(nodes: Any) -> set[str]:
    return {n.name for n in nodes}


def convex(graph: Graph) -> list[Region]:
    found = find(graph)
    for region in found:
        assert path_through_outside(region) is None
        assert closed(region)
    return found


def convex_in_turn(graph: Graph) -> Iterator[Region]:
    for region in in_turn(graph):
        assert path_through_outside(region) is None
        assert closed(region)
        yield region
    graph.lint()


def closed(region: Region) -> bool:
    """Members are in graph order and each is needed by an output."""
    order = {n: i for i, n in enumerate(region.nodes[0].graph.nodes)}
    members = set(region.nodes)
    needed = set(region.outputs)
    for member in reversed(region.nodes):
        if member in needed:
            needed.update(a for a in member.all_input_nodes if a in members)
    return list(region.nodes) == sorted(members, key=order.__getitem__) and needed == members


def declines(graph: Graph) -> list[DeclineReason]:
    return [d.reason for d in find_regions(graph) if isinstance(d, Decline)]


# Acceptance.


@pytest.mark.parametrize("name", graphs.PAIRED_NORMS)
def test_each_norm_is_one_region_that_reads_and_writes_what_it_must(name: str) -> None:
    module = graphs.randomised(graphs.NORMS[name](256), bf16)
    graph = graphs.backward_graph(module, (2, 64, 256), bf16)
    (region,) = convex(graph)
    assert region.space == plane(128, 256)
    layer = name.startswith("layer")
    assert (len(region.inner), len(region.outer)) == (
        2 if layer else 1,
        2 if name == "layer" else 1,
    )
    full = [n for n in region.inputs if n.meta["val"].numel() == 128 * 256]
    assert len(full) == 2 and all(n.op == "placeholder" for n in region.inputs)
    # Nothing but views is left beside the region, so the kernel's results are the graph's.
    outside = [n for n in graph.nodes if n.op == "call_function" and n not in region.nodes]
    assert names(n for n in outside if n.target is not aten.view.default) == set()


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, graphs.HFRMSNorm])
def test_block_has_a_region_per_norm_with_residual_and_bias_gradients(norm: Any) -> None:
    block = graphs.randomised(graphs.Block(64, norm), bf16)
    graph = graphs.backward_graph(block, (2, 64, 64), bf16)
    outers, residuals = [], []
    for region in convex_in_turn(graph):
        outers.append(len(region.outer))
        residuals.append(sum(n.target is aten.add.Tensor for n in region.outputs))
        riding = region.outer[-1].args[0].meta["val"]  # type: ignore[union-attr]
        assert (riding.dim() == 2) == (region.name != "region2")
    per_norm = 2 if norm is nn.LayerNorm else 1
    # The first two also sum the bias gradient of the Linear before them, from (B*T, D).
    # The last one has no norm: the bias gradient of `up`, where GELU's backward makes its source.
    assert outers == [per_norm + 1, per_norm + 1, per_norm, 1]
    # The residual's add of two gradients is written where there is one, in place of the norm's dx.
    assert residuals == [0, 1, 1, 0]


def test_x_with_another_consumer_outside_is_only_read() -> None:
    def function(x: Any, dy: Any, m: Any) -> Any:
        return *pair(x, dy), x @ m

    (region,) = convex(traced(function, FULL, FULL, SQUARE))
    assert names(region.inputs) == {"x_1", "dy_1"}
    assert len(region.outputs) == 2


def test_a_weight_shared_by_three_norms_is_read_by_three_regions() -> None:
    def function(x: Any, dy: Any, w: Any, m: Any) -> Any:
        weights = []
        for _ in range(3):
            dy, dw = pair(x, (dy @ m) * w)
            weights.append(dw)
        return dy, sum(weights)

    found = [
        (names(r.inputs) & {"w_1"}, len(r.outer))
        for r in convex_in_turn(traced(function, FULL, FULL, WEIGHT, SQUARE))
    ]
    assert found == [({"w_1"}, 1)] * 3


def test_dx_with_an_extra_consumer_is_written_once() -> None:
    def function(x: Any, dy: Any, m: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx, dw, dx @ m

    graph = traced(function, FULL, FULL, SQUARE)
    (region,) = convex(graph)
    assert region.outputs == (output_args(graph)[0], output_args(graph)[1])


def test_a_sum_of_two_gradients_with_users_outside_is_written_not_recomputed() -> None:
    def function(x: Any, a: Any, b: Any, m: Any) -> Any:
        dy = a + b
        return *pair(x, dy), dy @ m

    graph = traced(function, FULL, FULL, FULL, SQUARE)
    (region,) = convex(graph)
    assert "add" in names(region.outputs)
    assert names(region.inputs) == {"x_1", "a_1", "b_1"}


def test_a_cast_that_loops_outside_use_is_recomputed_not_written() -> None:
    def function(x: Any, dy: Any, m: Any) -> Any:
        wide = dy.to(f32)
        return *pair(x, wide), wide * m

    graph = traced(function, FULL, ((512, 256), bf16), FULL)
    (region,) = convex(graph)
    cast = node(graph, "convert_element_type")
    assert cast in region.nodes and cast not in region.outputs


def test_a_cast_for_an_online_softmax_is_recomputed_not_written() -> None:
    """A node with two results, in which Inductor's own pass finds a maximum and a sum on a GPU."""

    def function(x: Any, dy: Any) -> Any:
        moved = (x * dy).to(bf16)
        largest, total = torch.ops.prims.prepare_softmax_online(moved.to(f32), 1)
        return *pair(x, dy), moved, largest, total

    graph = traced(function, FULL, FULL)
    (region,) = convex(graph)
    assert node(graph, "convert_element_type") in region.outputs  # in half precision
    assert node(graph, "convert_element_type_1") not in region.outputs


def test_a_cast_that_a_matmul_needs_is_written_here() -> None:
    """In memory it must be; the region reads what it is made from."""

    def function(x: Any, dy: Any, m: Any) -> Any:
        wide = dy.to(f32)
        return *pair(x, wide), wide @ m

    graph = traced(function, FULL, ((512, 256), bf16), SQUARE)
    (region,) = convex(graph)
    assert node(graph, "convert_element_type") in region.outputs


@pytest.mark.parametrize("behind", ["a product", "a scan", "nothing"])
def test_what_a_product_has_read_is_rounded_beside_its_result(behind: str) -> None:
    """The region computes `v` again, but the product has read the `v` that is in memory."""

    def function(x: Any, scale: Any, w: Any, other: Any) -> Any:
        v = x * scale
        read = {"a product": lambda: v @ w, "a scan": lambda: v.cumsum(0), "nothing": lambda: other @ w}[
            behind
        ]()
        return (x * x).sum(-1), (v - read).sum(0)

    half, square, row = ((512, 256), bf16), ((256, 256), bf16), ((512, 1), bf16)
    (region,) = convex(traced(function, half, row, square, half))
    assert names(region.rounded) == ({"mul"} if behind != "nothing" else set())


def test_a_cast_that_the_region_waits_for_is_recomputed() -> None:
    """The matmul comes before the region's end: written here, the cast would close a cycle."""

    def function(x: Any, dy: Any, m: Any) -> Any:
        wide = dy.to(f32)
        return pair(x + wide @ m, wide)

    graph = traced(function, FULL, ((512, 256), bf16), SQUARE)
    (region,) = convex(graph)
    cast = node(graph, "convert_element_type")
    assert cast in region.nodes and cast not in region.outputs
    assert (len(region.inner), len(region.outer)) == (1, 1)


def test_post_norm_chain_gives_two_regions() -> None:
    def function(x: Any, y: Any, dy: Any, w: Any) -> Any:
        first, dw = pair(x, dy)
        second, dv = pair(y, first * w)
        return second, dw, dv

    found = [
        (len(r.inner), len(r.outer), len(r.outputs))
        for r in convex_in_turn(traced(function, FULL, FULL, FULL, WEIGHT))
    ]
    assert found == [(1, 1, 2)] * 2


def test_residual_gradient_joins_and_dx_alone_is_not_written() -> None:
    def function(x: Any, dy: Any, residual: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx + residual, dw

    graph = traced(function, FULL, FULL, FULL)
    (region,) = convex(graph)
    assert set(region.outputs) == set(output_args(graph))
    assert "residual_1" in names(region.inputs)


def test_reshapes_to_rows_are_inside() -> None:
    def function(x: Any, dy: Any) -> Any:
        product = x * dy.reshape(4, 128, 256)
        dx = dy.reshape(4, 128, 256) - x * product.sum(-1, keepdim=True)
        return dx.reshape(512, 256), product.reshape(512, 256).sum(0)

    (region,) = convex(traced(function, ((4, 128, 256), f32), FULL))
    assert region.space == plane(512, 256) and names(region.inputs) == {"x_1", "dy_1"}


def test_bias_gradient_of_a_linear_rides_along() -> None:
    def function(x: Any, dy: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx, dw, dx.sum(0, keepdim=True).reshape(256)

    (region,) = convex(traced(function, FULL, FULL))
    assert len(region.outer) == 2 and len(region.outputs) == 3


def test_a_sum_of_what_is_read_anyway_joins() -> None:
    """Two norms of one activation, side by side: db of the second reads its own gradient alone."""

    def side_by_side(x: Any, a: Any, b: Any, other: Any) -> Any:
        dx = a - x * (a * x).mean(-1, keepdim=True)
        return dx, (a * x).sum(0), a.sum(0), (b * x).sum(0), b.sum(0), other.sum(0)

    (region,) = convex(traced(side_by_side, FULL, FULL, FULL, FULL))
    assert len(region.outer) == 4 and len(region.inputs) == 3


def test_epilogue_of_an_outer_reduction_joins() -> None:
    def function(x: Any, dy: Any, w: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx, (dw * 0.5 + w).to(bf16)

    graph = traced(function, FULL, FULL, WEIGHT)
    (region,) = convex(graph)
    assert output_args(graph)[1] in region.outputs
    assert region.outer[0] not in region.outputs


def test_inner_reductions_in_a_chain_over_the_same_tensors_are_stages_of_one_region() -> None:
    def function(x: Any, dy: Any) -> Any:
        scaled = x / x.abs().amax(1, keepdim=True)
        return dy - scaled * (scaled * dy).sum(1, keepdim=True), (x * dy).sum(0)

    (region,) = convex(traced(function, FULL, FULL))
    assert names(region.inner) == {"amax", "sum_1"} and names(region.inputs) == {"x_1", "dy_1"}


def test_one_column() -> None:
    for graph in (graphs.layer_norm_backward(4096, 1), graphs.rms_norm_backward(4096, 1)):
        (region,) = convex(graph)
        assert region.space == plane(4096, 1)
        assert len(region.outputs) == len(output_args(graph))


def test_one_row() -> None:
    for graph in (graphs.pair_graph(1, 4096), graphs.layer_norm_backward(1, 4096)):
        (region,) = convex(graph)
        assert region.space == plane(1, 4096)
        assert len(region.outputs) == len(output_args(graph))


def test_two_unrelated_pairs_are_two_regions() -> None:
    def function(a: Any, b: Any, c: Any, d: Any) -> Any:
        return *pair(a, b), *pair(c, d)

    regions = convex(traced(function, FULL, FULL, ((64, 128), f32), ((64, 128), f32)))
    assert [r.space for r in regions] == [plane(512, 256), plane(64, 128)]


def test_heads_seen_by_one_side_only_are_a_batch_axis() -> None:
    def function(x: Any, dy: Any) -> Any:
        product = x * dy
        return dy - x * product.sum(1, keepdim=True), product.reshape(128, 4, 256).sum(0)

    (region,) = convex(traced(function, FULL, FULL))
    assert region.space == Space(((128, AxisClass.ROW), (4, AxisClass.BATCH), (256, AxisClass.COLUMN)))
    assert len(region.outputs) == 2


def test_a_weight_per_head_and_one_for_all_heads_are_two_regions() -> None:
    """Both sums over rows share the inner reduction, but not the space: the first takes it."""

    def function(x: Any, dy: Any) -> Any:
        product = x * dy
        per_head = product.reshape(128, 4, 256).sum(0)
        return dy - x * product.sum(1, keepdim=True), per_head, product.sum(0)

    (region,) = convex_in_turn(traced(function, FULL, FULL))
    assert len(region.outer) == 1 and region.space.batch == 4


def test_common_axes() -> None:
    def function(x: Any) -> Any:
        return x.sum((2, 3)), x.sum((0, 2, 3)), x * 2

    (region,) = convex(traced(function, ((16, 6, 10, 14), f32)))
    assert region.space == Space(((16, AxisClass.ROW), (6, AxisClass.BATCH), (140, AxisClass.COMMON)))


@pytest.mark.parametrize("kind", ["mean", "prod", "amax", "any"])
def test_other_reductions(kind: str) -> None:
    def function(x: Any, dy: Any) -> Any:
        value = x > dy if kind == "any" else x * dy
        return torch.where(getattr(value, kind)(1, keepdim=True) != 0, x, dy), getattr(value, kind)(0)

    (region,) = convex(traced(function, FULL, FULL))
    assert (len(region.inner), len(region.outer)) == (1, 1)


def test_symbolic_rows() -> None:
    (region,) = convex(graphs.traced_rows(pair, FULL, FULL))
    (rows, row), (cols, column) = region.space.axes
    assert isinstance(rows, sympy.Symbol) and (row, cols, column) == (AxisClass.ROW, 256, AxisClass.COLUMN)
    assert not any(isinstance(n.meta["val"], torch.SymInt) for n in region.inputs)


def test_symbolic_rows_of_two_dims() -> None:
    (region,) = convex(
        graphs.traced_rows(lambda x, dy: (pair(x, dy)[0], (x * dy).sum((0, 1))), *[((3, 5, 256), f32)] * 2)
    )
    assert len(region.space.rows.free_symbols) == 2 and region.space.cols == 256


def test_statistics_recomputed_above_the_outer_reduction_are_stages_of_the_region() -> None:
    """As in a checkpointed norm: dw needs rstd, which needs a row sum; dx needs both."""

    def function(x: Any, dy: Any) -> Any:
        rstd = torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5)
        x_hat = x * rstd
        return (dy - x_hat * (dy * x_hat).mean(1, keepdim=True)) * rstd, (dy * x_hat).sum(0)

    (region,) = convex(traced(function, FULL, FULL))
    assert (len(region.inner), len(region.outer)) == (2, 1)
    assert names(region.inputs) == {"x_1", "dy_1"} and len(region.outputs) == 2


@pytest.mark.parametrize("cols", [256, 8192, 3 * 1000])
def test_a_sum_over_rows_rides_along_where_its_source_is_written(cols: int) -> None:
    """No inner reduction."""
    full = ((512, cols), f32)
    (region,) = convex(traced(lambda a, b: (product := a * b, product.sum(0)), full, full))
    assert (len(region.inner), len(region.outer), len(region.outputs)) == (0, 1, 2)
    assert str(region.space) == f"512x{cols}"


HEADS = ((2, 4, 64, 16), f32)  # batch, heads, tokens, columns of a head


def qkv_gradient(q: Any, k: Any, v: Any) -> Any:
    """As attention gives them, and as the product before it wants them."""
    return torch.cat([t.permute(0, 2, 1, 3).reshape(2, 64, 64) for t in (q, k, v)], 2).view(128, 192)


@pytest.mark.parametrize("read_by", ["matmul", "loop", "nobody"])
def test_a_bias_gradient_rides_along_where_its_source_is_put_together(read_by: str) -> None:
    """By the region, if it must be in memory for a product; a loop reads the pieces as well as the whole."""
    through: Any = {"matmul": lambda t, m: t @ m, "loop": lambda t, m: t.sin(), "nobody": lambda t, m: None}

    def function(q: Any, k: Any, v: Any, m: Any) -> Any:
        whole = qkv_gradient(q, k, v)
        return whole.sum(0), through[read_by](whole, m)

    found = convex(traced(function, HEADS, HEADS, HEADS, ((192, 32), f32)))
    if read_by != "matmul":
        assert not found
        return
    (region,) = found
    assert names(region.inputs) == {"q_1", "k_1", "v_1"} and "cat" in names(region.nodes)
    assert {n.meta["val"].numel() for n in region.outputs} == {192, 128 * 192}


# Refusals, and what a region must not swallow.


def test_what_is_there_for_a_reduction_joins_only_with_it() -> None:
    """No pair reduces two codes: it writes the codes, and not what the reductions would read."""

    def function(x: Any) -> Any:
        scale = x.abs().amax(1, keepdim=True)
        codes = (x / scale).to(torch.int8)
        return codes[:, ::2] | codes[:, 1::2], scale, x.sum(0)

    graph = traced(function, FULL)
    spelling = Spelling(graph)
    spelling.begin()
    (region,) = find_regions(graph, spelling.joining)
    assert isinstance(region, Region) and len(spelling.joining) == 2
    assert not any(made.intersection(region.nodes) for made in spelling.joining.values())
    assert "convert_element_type" in names(region.outputs)


@pytest.mark.parametrize("outside", ["matmul", "cumsum", "other_shape"])
def test_an_outer_reduction_behind_the_region_is_left_out(outside: str) -> None:
    """y depends on dx through a node that no region takes; its sum would close a cycle."""
    through = {
        "matmul": lambda t, m: t @ m,
        "cumsum": lambda t, m: t.cumsum(1),
        "other_shape": lambda t, m: t.reshape(256, 512).flip(0).reshape(512, 256),
    }[outside]

    def function(x: Any, dy: Any, m: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx, dw, (x * through(dx, m)).sum(0)

    graph = traced(function, FULL, FULL, SQUARE)
    (region,) = (r for r in find_regions(graph) if isinstance(r, Region))
    assert path_through_outside(region) is None
    assert len(region.outer) == 1
    # What is left out has no partner on other axes.
    assert DeclineReason.AXIS_CLASS not in declines(graph)


def test_a_pointwise_that_joins_two_paths_around_a_matmul_is_left_out() -> None:
    def function(x: Any, dy: Any, m: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx + (dx @ m), dw

    graph = traced(function, FULL, FULL, SQUARE)
    (region,) = convex(graph)
    assert output_args(graph)[0] not in region.nodes


def test_a_producer_kept_outside_needs_the_region_no_more() -> None:
    """tanh could be recomputed for cumsum, but from a product that the kernel writes."""

    def function(x: Any, dy: Any) -> Any:
        t = torch.tanh(x * dy)
        late = t.cumsum(1)
        return (x * late).sum(1), (dy * t).sum(0), dy * late

    for found in find_regions(traced(function, FULL, FULL)):
        assert isinstance(found, Decline) or path_through_outside(found) is None


def test_inner_reduction_that_needs_the_outer_one_is_declined() -> None:
    def function(x: Any, dy: Any, m: Any) -> Any:
        dw = (x * dy).sum(0)
        scale = dw.reshape(1, 256) @ m
        return (x * dy * scale).sum(1), dw

    assert declines(traced(function, FULL, FULL, SQUARE)) == [DeclineReason.CYCLE]


def test_a_column_result_used_over_the_rows_stays_outside_the_loop() -> None:
    def function(x: Any, dy: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx * dw, dw

    graph = traced(function, FULL, FULL)
    (region,) = convex(graph)
    assert output_args(graph)[0] not in region.nodes


@pytest.mark.parametrize(
    "function",
    [
        lambda x, dy: (x * dy).sum(0),
        lambda x, dy: (x * dy).sum(1),
        lambda x, dy: x * dy,
        lambda x, dy: (x.sum(1), dy.sum(0)),
        lambda x, dy: (x.sum(1), x.flip(0).sum(0)),
        lambda x, dy: (x.sum(), x.sum(0)),
        lambda x, dy: (x.cumsum(1), dy.sum(0)),
        # Written anyway, but not where its sum could ride along.
        lambda x, dy: ((y := (x @ x.t() @ dy)), y.sum(0)),
        lambda x, dy: ((y := x * dy), y.sum()),
    ],
)
def test_no_pair_no_region(function: Any) -> None:
    assert list(find_regions(traced(function, FULL, FULL))) == []


def test_reductions_that_share_only_a_weight_are_no_pair() -> None:
    def function(x: Any, dy: Any, w: Any) -> Any:
        return (x * w).sum(1), (dy * w).sum(0)

    assert list(find_regions(traced(function, FULL, FULL, WEIGHT))) == []


def test_dynamic_columns_are_declined() -> None:
    assert declines(graphs.traced_symbolic(pair, FULL, FULL)) == [DeclineReason.DYNAMIC_SHAPE]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        # The rows of the one are no run of rows of the other, nor the other way round.
        (lambda x: (x.sum(1), x.reshape(384, 240).sum(0)), DeclineReason.AXIS_CLASS),
        (
            lambda x: (x.reshape(8, 64, 180).sum((1, 2)), x.reshape(8, 64, 180).sum((0, 1))),
            DeclineReason.AXIS_CLASS,
        ),
    ],
)
def test_pairs_that_do_not_agree_on_axes(function: Any, reason: DeclineReason) -> None:
    assert declines(traced(function, ((512, 180), f32))) == [reason]


@pytest.mark.parametrize("side", ["row", "column"])
def test_a_result_spread_over_another_shape_is_left_outside(side: str) -> None:
    """Its number of elements divides the space's, but the kernels have no loop over its shape."""

    def function(x: Any, dy: Any, m: Any) -> Any:
        row, col = (x * dy).sum(1), (x * dy).sum(0)
        table = row.reshape(512, 1) * m.reshape(512, 128) if side == "row" else m * col
        return dy * row.reshape(512, 1), col, table

    graph = traced(function, FULL, FULL, SQUARE)
    (region,) = convex_in_turn(graph)
    assert len(region.outputs) >= 2


def test_a_dynamic_stride_is_declined() -> None:
    assert declines(dynamic_stride_graph()) == [DeclineReason.DYNAMIC_SHAPE]


def dynamic_stride_graph() -> Graph:
    """x of a static shape but a symbolic row stride; all that is made of it is static."""
    graph = graphs.pair_graph()
    x = node(graph, "x_1")
    mode = x.meta["val"].fake_mode
    stride = mode.shape_env.create_unbacked_symint()
    with mode:
        x.meta["val"] = torch.empty_strided((512, 256), (stride, 1))
    return graph


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_dtypes_that_the_kernels_do_not_take(dtype: torch.dtype) -> None:
    def function(x: Any, dy: Any) -> Any:
        wide = x.abs() if dtype.is_complex else x.to(f32)
        return pair(wide, dy)

    graph = traced(function, ((512, 256), dtype), FULL)
    assert declines(graph) == [DeclineReason.UNSUPPORTED_DTYPE]


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_an_integer_input_is_taken_or_declined_with_a_reason(dtype: torch.dtype) -> None:
    def function(x: Any, dy: Any) -> Any:
        return pair(x.to(f32), dy)

    graph = traced(function, ((512, 256), dtype), FULL)
    for found in find_regions(graph):
        assert isinstance(found, Region) or found.reason is DeclineReason.UNSUPPORTED_DTYPE


def test_finding_changes_nothing() -> None:
    graph = graphs.layer_norm_backward(512, 256)
    before = graphs.snapshot(graph)
    assert len(find(graph)) == 1
    assert graphs.snapshot(graph) == before


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_random_programs_give_convex_regions(first: int) -> None:
    programs_with_regions = 0
    for seed in range(first, first + 20):
        function = graphs.random_function(seed, 8, 16)
        graph = traced(function, ((8, 16), f32), ((8, 16), f32), ((16, 16), f32))
        regions = [r for r in find_regions(graph) if isinstance(r, Region)]
        programs_with_regions += bool(regions)
        for region in regions:
            assert path_through_outside(region) is None, seed
            assert closed(region), seed
            # Without an inner reduction, what the outer ones read is written by the same kernel.
            full = [n for n in region.outputs if n.meta["val"].numel() == region.space.numel]
            assert region.outer and (region.inner or full), seed
    assert programs_with_regions >= 10  # or the test would test little


# Gathers: inside above the reductions, outside below them.

MOVED = ((2, 4, 16), f32)


def moved_pair(make: Any) -> Any:
    """A pair of (2, 4, 16) whose one factor is made by `make` from another tensor."""

    def function(x: Any, z: Any) -> Any:
        product = x * make(z)
        return x - product.sum(-1, keepdim=True), product.sum((0, 1))

    return function


ABOVE = {
    "permute": (lambda z: torch.exp(z).permute(1, 0, 2), (4, 2, 16)),
    "clone": (lambda z: torch.exp(z).permute(1, 0, 2).contiguous(), (4, 2, 16)),
    "slice": (lambda z: torch.exp(z)[:, 1:], (2, 5, 16)),
    "slice_of_columns": (lambda z: F.pad(torch.exp(z)[..., 3:], (0, 3)), (2, 4, 16)),
    "select": (lambda z: torch.exp(z)[:, 1].unsqueeze(1), (2, 4, 16)),
    "cat": (lambda z: torch.cat([torch.exp(z[:, 1:]), z[:, :1]], 1), (2, 4, 16)),
    "split": (lambda z: (lambda a, b: torch.cat([b, a], -1))(*torch.exp(z).chunk(2, -1)), (2, 4, 16)),
    "pad": (lambda z: F.pad(torch.exp(z), (1, 0)), (2, 4, 15)),
    "slice_scatter": (
        lambda z: torch.slice_scatter(torch.zeros(2, 4, 16), torch.exp(z), 1, 1, 4),
        (2, 3, 16),
    ),
    "select_scatter": (lambda z: torch.select_scatter(torch.zeros(2, 4, 16), torch.exp(z), 1, -1), (2, 16)),
}


@pytest.mark.parametrize("name", ABOVE)
def test_a_gather_above_the_reductions_is_inside(name: str) -> None:
    make, shape = ABOVE[name]
    graph = traced(moved_pair(make), MOVED, (shape, f32))
    (region,) = convex(graph)
    # A slice of more elements than the space has is read as it was written.
    expected = {"x_1", "exp"} if name == "slice" else {"x_1", "z_1"}
    assert names(region.inputs) == expected
    list(convex_in_turn(graph))


def test_a_split_is_inside_with_its_pieces_and_goes_with_them() -> None:
    make, shape = ABOVE["split"]
    graph = traced(moved_pair(make), MOVED, (shape, f32))
    assert len(list(convex_in_turn(graph))) == 1
    left = {n.target for n in graph.nodes if n.op == "call_function"}
    assert not left & {aten.split.Tensor, aten.cat.default, aten.exp.default}


def test_a_split_whose_other_piece_is_needed_outside_stays_for_it() -> None:
    def function(x: Any, z: Any, m: Any) -> Any:
        a, b = torch.exp(z).chunk(2, -1)
        return *moved_pair(lambda _: torch.cat([b, a], -1))(x, z), a @ m

    graph = traced(function, MOVED, MOVED, ((8, 8), f32))
    (region,) = convex_in_turn(graph)
    assert not {n.target for n in region.outputs} & {aten.split.Tensor, aten.exp.default}


@pytest.mark.parametrize(
    ("name", "make", "shape"),
    [
        ("permute", lambda z: torch.exp(z).permute(0, 2, 1), (2, 16, 4)),
        ("slice", lambda z: torch.exp(z)[..., ::2], (2, 4, 32)),
        ("select", lambda z: torch.exp(z)[..., 1], (2, 4, 16, 2)),
    ],
)
def test_what_moves_the_last_dim_is_read(name: str, make: Any, shape: tuple[int, ...]) -> None:
    """Reading through it would go across memory."""
    (region,) = convex(traced(moved_pair(make), MOVED, (shape, f32)))
    assert {n.name.split("_")[0] for n in region.inputs} == {"x", name}


def test_a_gather_of_what_lies_across_memory_is_read() -> None:
    def function(x: Any, z: Any) -> Any:
        return moved_pair(lambda z: torch.cat([z.t()[:, 8:] * 2, z.t()[:, :8]], 1).reshape(2, 4, 16))(x, z)

    (region,) = convex(traced(function, MOVED, ((16, 8), f32)))
    assert "cat" in names(region.inputs)


@pytest.mark.parametrize("shape", [(4, 2, 16), (4, 4, 16), (16, 16, 16)])
def test_no_reduction_is_behind_a_move(shape: tuple[int, ...]) -> None:
    """Its rows would be read at another row's place; with as many rows as columns no shape tells."""

    def function(x: Any, z: Any) -> Any:
        scaled = x * z.sum(-1, keepdim=True)
        moved = scaled.permute(1, 0, 2).reshape(shape).contiguous()
        return (moved * z).sum((0, 1)), scaled.sum((0, 1)), moved[:, 1:]

    graph = traced(function, (shape, f32), (shape, f32))
    for region in convex_in_turn(graph):
        assert aten.slice.Tensor not in {n.target for n in region.nodes}
        assert not {a for n in (*region.inner, *region.outer) for a in operands(n)} & region.moved.keys()


@pytest.mark.parametrize("shape", [(2, 4, 16), (16, 16, 16)])
@pytest.mark.parametrize(
    "below",
    [
        lambda dx: torch.exp(dx[:, 1:]),
        lambda dx: torch.cat([dx[..., 1:], dx[..., :1]], -1),
        lambda dx: F.pad(dx, (0, 0, 1, 0)),
    ],
)
def test_a_gather_below_the_reductions_is_outside(below: Any, shape: tuple[int, ...]) -> None:
    def function(x: Any, z: Any) -> Any:
        product = x * z
        dx = x - z * product.sum(-1, keepdim=True)
        return below(dx), product.sum((0, 1))

    graph = traced(function, (shape, f32), (shape, f32))
    (region,) = convex(graph)
    assert {n.meta["val"].shape for n in region.outputs} == {torch.Size(shape), torch.Size(shape[-1:])}
    assert not any(is_gather(n) for n in region.nodes)
    list(convex_in_turn(graph))


@pytest.mark.parametrize("shape", [(2, 4, 16), (16, 16, 16)])
@pytest.mark.parametrize("form", ["copy", "cast", "merged", "residual"])
def test_rows_in_another_order_are_stored_as_their_reader_wants_them(
    form: str, shape: tuple[int, ...]
) -> None:
    """Heads first in the norm, tokens first in the matrix product behind it: there is no copy between."""

    def function(x: Any, z: Any, r: Any, m: Any) -> Any:
        product = x * z
        dx = (x - z * product.sum(-1, keepdim=True)).permute(1, 0, 2)
        if form == "cast":
            dx = dx.to(bf16)
        if form == "residual":
            dx = dx + r.permute(1, 0, 2)
        back = dx.contiguous().view(shape[1], -1)
        if form == "merged":
            back = back.reshape(shape[1] // 2, 2, -1).transpose(0, 1).exp().contiguous().view(shape[1], -1)
        return back @ m, product.sum((0, 1))

    wide = ((shape[0] * shape[2], 8), bf16 if form == "cast" else f32)
    graph = traced(function, (shape, f32), (shape, f32), (shape, f32), wide)
    (region,) = convex(graph)
    moved = {"copy": 1, "cast": 1, "merged": 2, "residual": 1}[form]
    assert sum(n in region.moved for n in region.nodes if n.target is aten.permute.default) == moved
    assert [n.target for n in region.outputs if n in region.moved] == [aten.clone.default]
    assert len(region.outputs) == 2 and region.outputs[-1].meta["val"].is_contiguous()
    list(convex_in_turn(graph))
    assert aten.clone.default not in {n.target for n in graph.nodes}


def test_a_reader_in_the_rows_own_order_gets_a_store_of_its_own() -> None:
    def function(x: Any, z: Any, m: Any) -> Any:
        product = x * z
        dx = x - z * product.sum(-1, keepdim=True)
        back = dx.permute(1, 0, 2).contiguous().view(4, -1)
        return back @ m, dx.view(8, 16) @ m[:16], product.sum((0, 1))

    (region,) = convex(traced(function, ((2, 4, 16), f32), ((2, 4, 16), f32), ((32, 8), f32)))
    assert sorted(n in region.moved for n in region.outputs) == [False, False, True]


@pytest.mark.parametrize("other", ["unmoved", "moved_otherwise", "reduction"])
def test_rows_of_two_orders_do_not_meet(other: str) -> None:
    def function(x: Any, z: Any) -> Any:
        product = x * z
        total = product.sum(-1, keepdim=True)
        dx = x - z * total
        second = {
            "unmoved": dx,
            "moved_otherwise": dx.reshape(2, 8, 16, 16).permute(1, 0, 2, 3).reshape(16, 16, 16),
            "reduction": total,
        }[other]
        return torch.exp(dx.permute(1, 0, 2)) * second, product.sum((0, 1))

    graph = traced(function, ((16, 16, 16), f32), ((16, 16, 16), f32))
    (region,) = convex(graph)
    assert "mul_2" not in names(region.nodes) and "mul_2" in names(graph.nodes)
    list(convex_in_turn(graph))


def test_half_of_a_tensor_that_is_dear_to_make_is_not_made_twice() -> None:
    def function(x: Any, a: Any, b: Any) -> Any:
        half = a * b
        return *moved_pair(lambda z: F.pad(z, (8, 0)))(x, half), half.cumsum(-1)

    (region,) = convex(traced(function, MOVED, ((2, 4, 8), f32), ((2, 4, 8), f32)))
    assert "mul" in names(region.inputs)


def test_rope_and_the_norm_before_it_are_one_region() -> None:
    graph = graphs.rope_backward(2, 64, 4, 32)
    (region,) = convex(graph)
    assert region.space == plane(2 * 64 * 4, 32) and len(region.outputs) == 2
    plain = without_gathers(region)
    assert all(n.op == "placeholder" for n in region.inputs) and plain is not None
    assert "permute" in names(plain.inputs) and without_gathers(plain) is None


def test_a_region_of_constants_alone_is_declined() -> None:
    """There is no place in the graph behind its inputs."""

    def function(x: Any) -> Any:
        return pair(torch.full((512, 256), 2.0), torch.full((512, 256), 3.0))

    assert declines(traced(function, FULL)) == [DeclineReason.UNSUPPORTED_OP]


def test_statistics_that_the_gradient_depends_on_are_left_out() -> None:
    """The recomputed moments feed, through another order of the rows, what the other reductions read."""

    def function(x: Any, dy: Any, w: Any) -> Any:
        var, mean = torch.var_mean(x, 2, correction=0, keepdim=True)
        hat = (x - mean) * torch.rsqrt(var + 1e-5)
        back = (dy * torch.cos(hat.permute(1, 0, 2).contiguous())).permute(1, 0, 2)
        return back - hat * (back * w * hat).sum(2, keepdim=True), (back * hat).sum((0, 1)), back.sum((0, 1))

    full = ((16, 16, 64), f32)
    (region,) = convex(traced(function, full, full, ((64,), f32)))
    assert (len(region.inner), len(region.outer)) == (1, 2)
    assert {"getitem", "getitem_1"} <= names(region.inputs)


def test_a_sum_of_copies_is_left_alone() -> None:
    """What it reads is in memory for somebody, but nothing of full size is read to make it."""

    def function(row: Any, x: Any) -> Any:
        copies = -row.unsqueeze(0).expand(512, 256)
        return torch.slice_scatter(copies, x, 1, 5), copies.sum(0)

    graph = traced(function, ((256,), f32), ((512, 251), f32))
    assert list(find_regions(graph)) == []
