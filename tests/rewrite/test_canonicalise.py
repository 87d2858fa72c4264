"""Nodes that become reductions while regions are looked for: maxima of all, and packed bytes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from graphs import Spec, bf16, f32, snapshot, traced, traced_rows
from torch.fx import Graph, GraphModule, Interpreter, Node

from mixorder.errors import Decline, DeclineReason
from mixorder.region.find import find_regions
from mixorder.region.layouts import computed
from mixorder.region.nodes import reduced
from mixorder.region.orders import is_permutation
from mixorder.rewrite.canonicalise import Canonicaliser, _Rewrite

aten, prims = torch.ops.aten, torch.ops.prims
FULL = (64, 48), bf16
WIDE = (150, 90), bf16


def largest(x: Any) -> Any:
    return x.abs().amax(), x.max(), x.amin((0, 1), keepdim=True), x.amax(0)


class Run(Interpreter):
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.prims.xor_sum.default:  # torch has it in Inductor alone
            value, (dim,) = args
            return functools.reduce(torch.bitwise_xor, value.unbind(dim))
        return super().call_function(target, args, kwargs)


@contextlib.contextmanager
def canonicalised(graph: Graph) -> Iterator[dict[Node, frozenset[Node]]]:
    canonicaliser = Canonicaliser(graph)
    canonicaliser.begin()
    yield canonicaliser.joining
    canonicaliser.end()


def run(graph: Graph, *args: torch.Tensor) -> Any:
    graph.lint()
    return Run(GraphModule({}, graph)).run(*args)


def test_each_gives_what_it_did() -> None:
    graph, x = traced(largest, FULL), torch.randn(64, 48).to(bf16)
    x[3, 5] = -0.0
    with canonicalised(graph) as firsts:
        assert [tuple(n.meta["val"].shape) for n in firsts] == [(1, 48)] * 3
        for mine, eager in zip(run(graph, x), largest(x), strict=True):
            assert torch.equal(mine, eager) and mine.shape == eager.shape
        x[7, 7] = float("nan")
        assert all(mine.isnan().any() for mine in run(graph, x))


Draw = Callable[..., torch.Tensor]


@contextlib.contextmanager
def restored(
    function: Any, *specs: Spec, draw: Draw = torch.randn, **close: float
) -> Iterator[tuple[list[Node], dict[Node, frozenset[Node]]]]:
    """The nodes that are added to a function's graph, and what joins with which. The graph computes what the
    function does, and is as it was in the end. `close`: allowed differences, if there may be any."""
    graph = traced(lambda *x: function(*x), *specs)
    inputs = [draw(shape).to(dtype) for shape, dtype in specs]
    before, nodes = snapshot(graph), {*graph.nodes}
    with canonicalised(graph) as joining:
        for mine, eager in zip(run(graph, *inputs), function(*inputs), strict=True):
            torch.testing.assert_close(mine, eager, equal_nan=True, **(close or {"rtol": 0, "atol": 0}))
        yield [n for n in graph.nodes if n not in nodes], joining
    graph.lint()
    assert snapshot(graph) == before


def reductions(nodes: list[Node]) -> list[Node]:
    return [n for n in nodes if reduced(n) is not None]


def test_one_that_was_taken_stays() -> None:
    graph = traced(lambda x: (x.abs().amax(), x.max()), FULL)
    with canonicalised(graph) as firsts:
        taken, _ = sorted(firsts)
        (source,) = taken.all_input_nodes
        with graph.inserting_before(taken):
            other = graph.call_function(aten.amax.default, (source, [0], True))
        taken.replace_all_uses_with(other)
        graph.erase_node(taken)
    x = torch.randn(64, 48).to(bf16)
    assert [m.item() for m in run(graph, x)] == [x.abs().amax().item(), x.max().item()]
    assert sum(len(n.args) > 1 for n in graph.find_nodes(op="call_function", target=aten.amax.default)) == 1


@pytest.mark.parametrize("shape", [(64,), (64, 1), (1, 64), (), (0, 48)])
def test_a_tensor_without_rows_is_left(shape: tuple[int, ...]) -> None:
    graph = traced(lambda x: (x.abs().sum(), x.amax() if x.numel() else x.sum()), (shape, f32))
    with canonicalised(graph) as firsts:
        assert not firsts


def test_columns_are_the_contiguous_dim() -> None:
    graph = traced(lambda x: (x.t().amax(),), FULL)
    with canonicalised(graph) as firsts:
        (first,) = firsts
        assert first.args[1] == [1] and tuple(first.meta["val"].shape) == (48, 1)


@pytest.mark.parametrize("kept", [False, True])
def test_a_sum_of_all_is_one_of_rows_beside_a_sum_of_columns(kept: bool) -> None:
    """The step in between is in float32."""

    def sums(x: Any) -> Any:
        return x.exp().sum(0), (x * 2).sum((0, 1), keepdim=kept), x.float().sum()

    with restored(sums, FULL, draw=torch.rand, atol=0, rtol=1e-2) as (added, joining):  # no sum is near 0
        assert [tuple(n.meta["val"].shape) for n in added[::2]] == [(64, 1)] * 2 and not joining
        assert {n.meta["val"].dtype for n in added} == {f32}


def test_beside_a_sum_of_each_row_the_columns_are_those_that_it_adds_up() -> None:
    def sums(x: Any) -> Any:
        return (x - x.sum(-1, keepdim=True)).sum(), x.exp().sum(-1)

    with restored(sums, ((7, 5, 3), f32), draw=torch.rand, rtol=1e-5, atol=1e-5) as ((first, _), _):
        assert first.args[1] == [0, 1]


@pytest.mark.parametrize(
    ("shape", "over"),
    [((64, 48), [0]), ((7, 5, 3), [0]), ((8, 64, 96), [0]), ((8, 640, 96), [0, 1]), ((9, 9000), [0])],
)
def test_any_other_sum_of_all_is_one_of_columns(shape: tuple[int, ...], over: list[int]) -> None:
    """Enough columns for a tile, but only as many as one more kernel adds up. Sums of other tensors change
    nothing."""

    def sums(x: Any) -> Any:
        return x.sum(), x.new_ones(shape).exp().sum(0), x.new_ones(shape).exp().sum(-1)

    with restored(sums, (shape, bf16), draw=torch.rand, atol=0, rtol=1e-2) as ((first, _), joining):
        assert first.args[1] == over and first.meta["val"].dtype == f32 and not joining


def gated_sums(x: Any, dy: Any) -> Any:
    db, dw = dy.sum((0, 2, 3), keepdim=True), (dy * x).sum((0, 2, 3), keepdim=True)
    dx = dy - db - dw * x
    return dx, (dx * x).sum((2, 3)), (dx * x).sum((0, 1, 2, 3))


def sums_of_two_kinds(x: Any, dy: Any) -> Any:
    return (x * dy).sum((0, 1)), dy.sum((0, 1)), (x + dy).sum(0)


def sums_behind_a_product(x: Any, dy: Any) -> Any:
    gate = ((x * dy).sum((0, 3)) @ x.new_ones(4, 4)).view(1, 5, 4, 1)
    g = dy * gate
    return g - g.sum((0, 2, 3), keepdim=True) * x


@pytest.mark.parametrize(
    ("sums", "shape", "over"),
    [
        (gated_sums, (3, 5, 4, 6), [[2, 3]] * 3),
        (sums_of_two_kinds, (32, 5, 6), [[0], [0]]),
        (sums_of_two_kinds, (31, 5, 6), []),
        (sums_behind_a_product, (3, 5, 4, 6), []),
    ],
)
def test_sums_begin_with_what_others_are_over_as_well(
    sums: Any, shape: tuple[int, ...], over: list[list[int]]
) -> None:
    """Where elements are computed with them, or enough elements are added up; not if one waits for a matrix
    product that reads the other."""
    with restored(sums, *[(shape, f32)] * 2, draw=torch.rand, rtol=1e-5, atol=1e-5) as (added, _):
        assert [n.args[1] for n in added[::2]] == over


def groups_by_hand(x: Any, dy: Any) -> Any:
    g, h = x.view(3, 2, 120), dy.view(3, 2, 120)
    dx = h - (g * h).sum(2, keepdim=True) * g
    return dx.view(3, 10, 4, 6), (x * dy).sum((0, 2, 3)), dy.sum((0, 2, 3))


def groups_at_last(x: Any, dy: Any) -> Any:
    g, h = x.view(3, 40, 2, 3), dy.view(3, 40, 2, 3)
    dx = h - (g * h).sum((1, 3), keepdim=True) * g - g.mean((1, 3), keepdim=True)
    return dx.view(3, 10, 4, 6), (x * dy).sum((0, 1, 2))


def rows_of_rows(x: Any, dy: Any) -> Any:
    heads = dy.view(3, 10, 4, 2, 3)
    dh = heads - heads.sum(-1, keepdim=True)
    return (x - x.sum(-1, keepdim=True)) * dh.view(3, 10, 4, 6), (heads * dh).sum((0, 1, 2, 3))


@pytest.mark.parametrize(
    ("sums", "over"),
    [
        (groups_by_hand, [((3, 2, 5, 24), [3]), ((3, 10, 4, 6), [2, 3]), ((3, 10, 4, 6), [2, 3])]),
        (groups_at_last, [((3, 40, 2, 3), [1]), ((3, 40, 2, 3), [1]), ((3, 10, 4, 6), [1, 2])]),
        (rows_of_rows, []),
    ],
)
def test_sums_begin_so_through_views(sums: Any, over: list[tuple[tuple[int, ...], list[int]]]) -> None:
    """A norm's sums of groups and of channels, where it is written by hand; rows of a pair are left whole."""
    full = (3, 10, 4, 6), f32
    with restored(sums, full, full, draw=torch.rand, rtol=1e-5, atol=1e-5) as (every, _):
        added = [n for n in every if n.target is aten.sum.dim_IntList]
        firsts = [n for n in added if n.args[0] not in added and n.kwargs.get("dtype")]
        found = [(tuple(n.args[0].meta["val"].shape), n.args[1]) for n in firsts if n.args[2:] == (True,)]
        assert [one for one in found if one in over] == over and bool(added) == bool(over)


def centred(x: Any, dy: Any) -> Any:
    c = x - x.mean((0, 2, 3), keepdim=True)
    slope = (dy * c).sum((0, 2, 3), keepdim=True) / 720
    dc = dy * x.new_ones(10, 1, 1) + -slope * (2 * c)
    return dc - dc.sum((0, 2, 3), keepdim=True) / 720


def squared(x: Any, dy: Any) -> Any:
    dc = dy - (dy * x).sum((0, 2, 3), keepdim=True) * x
    return dc - (dc * dc).sum((0, 2, 3), keepdim=True)


def in_rows(x: Any, dy: Any) -> Any:
    dc = dy - (dy * x).sum(-1, keepdim=True) * x
    return dc - dc.sum(-1, keepdim=True)


@pytest.mark.parametrize(("sums", "count"), [(centred, 2), (squared, 0), (in_rows, 0)])
def test_a_sum_that_is_linear_in_another_ones_result(sums: Any, count: int) -> None:
    """It is one of sums of what needs none; not a sum of squares, nor a row's, which is on chip."""
    full = (3, 10, 4, 6), f32
    with restored(sums, full, full, atol=2e-5, rtol=1e-5) as (added, _):
        assert sum(n.target is aten.sum.dim_IntList for n in added) == count


def test_no_region_is_looked_for_one() -> None:
    """Stock has one kernel for a product and the maximum of all its elements, though not of its columns."""

    def function(x: Any, y: Any) -> Any:
        product = x * y
        return product, product.amax()

    graph = traced(function, ((4096, 1024), bf16), ((4096, 1024), bf16))
    with canonicalised(graph) as firsts:
        assert len(firsts) == 1
        assert not list(find_regions(graph, firsts)) and list(find_regions(graph))


def pieces(x: Any) -> Any:
    pairs = x.view(64, 24, 2)
    found = x[:, ::2], x[:, 1::4], x[1::2], pairs[..., 1], pairs.select(-1, -2), x.view(-1)[7::8]
    return [piece ^ 1 for piece in found]


BYTES = (64, 48), torch.uint8


def test_every_other_byte() -> None:
    with restored(pieces, BYTES, draw=functools.partial(torch.randint, 0, 256)) as (_, firsts):
        assert len(firsts) == 6


@pytest.mark.parametrize(
    ("function", "spec"),
    [
        (lambda x: x[:, ::2] + 1.0, FULL),  # no bytes
        (lambda x: x[:, ::3] + 1, BYTES),  # three to a byte
        (lambda x: x[:, 2::2] + 1, BYTES),  # not all of them
        (lambda x: x[:, :24:2] + 1, BYTES),
        (lambda x: x[:, 3] + 1, BYTES),  # of many
    ],
)
def test_other_pieces_are_left(function: Any, spec: Any) -> None:
    with canonicalised(traced(lambda x: (function(x),), spec)) as firsts:
        assert not firsts


def rows_of_both(x: Any) -> Any:
    y = x.view(5, 30, 90)
    return (
        x.abs().amax(-1),
        x.t().abs().amax(-1, keepdim=True),
        x.t().float().neg().max(1).values,
        y.amin(-1),
        y.permute(1, 2, 0).amin(1, keepdim=True),
        y.permute(2, 1, 0).amin(0),
        x.t().exp().sum(1, dtype=f32),
        x.t().float().mean(1, keepdim=True),
        x.t().float().var(1, correction=0),
        *torch.var_mean(x.t().float(), 1),
        *prims.prepare_softmax_online(x.t().float(), 1),
    )


def test_rows_of_a_transposed_tensor_are_columns() -> None:
    with restored(rows_of_both, WIDE) as (added, firsts):
        assert not firsts  # a region is looked for them as for any
        assert sum(0 in reduced(n).dims for n in added[0].graph.nodes if reduced(n)) == 9


def test_what_a_taken_one_read_is_erased() -> None:
    graph = traced(lambda x: (x.abs().amax(-1), x.t().abs().amax(-1)), WIDE)
    with canonicalised(graph):
        (taken,) = (n for n in graph.nodes if reduced(n) and list(reduced(n).dims) == [0])
        with graph.inserting_before(taken):
            other = graph.call_function(aten.amax.default, taken.args)
        taken.replace_all_uses_with(other)
        graph.erase_node(taken)
    assert not any(is_permutation(n) for n in graph.nodes)
    x = torch.randn(150, 90).to(bf16)
    assert torch.equal(run(graph, x)[1], x.abs().amax(0))


def of_rows_and_columns(x: Any, y: Any, z: Any) -> Any:
    product = (x * y + z).abs()
    return product.max(-1, keepdim=True).values, product.amin(-1), product.max(0).values


def test_the_extremum_of_a_long_row_is_one_of_blocks() -> None:
    def with_nan(shape: tuple[int, ...]) -> torch.Tensor:
        drawn = torch.randn(shape)
        drawn[3, 5] = float("nan")
        return drawn

    full = (8, 14336), f32
    with restored(of_rows_and_columns, full, full, full, draw=with_nan) as (added, _):
        assert [tuple(n.meta["val"].shape) for n in reductions(added)] == [(8, 14)] * 2


@pytest.mark.parametrize(
    ("function", "cols"),
    [
        (of_rows_and_columns, 8192),  # a program holds it
        (of_rows_and_columns, 14343),
        (lambda x, y, z: ((x * y + z).abs().amax(-1), x.new_ones(3)), 14336),  # no columns
        (lambda x, y, z: ((x * y + z).exp().sum(-1), x.amax(0)), 14336),
        (lambda x, y, z: ((t := x * y * z.sum(-1, keepdim=True)).amax(-1), t.amax(0), z.amax(0)), 14336),
        (lambda x, y, z: (((t := x * y + z) - t.amax(-1, keepdim=True)).exp().sum(-1), t.amax(0)), 14336),
    ],
)
def test_other_rows_are_whole(function: Any, cols: int) -> None:
    graph = traced(lambda *x: function(*x), *[((8, cols), f32)] * 3)
    before = snapshot(graph)
    with canonicalised(graph):
        assert snapshot(graph) == before


def test_rows_of_a_transposed_tensor_alone_are_left() -> None:
    graph = traced(lambda x: (x.t().abs().amax(-1), x.t().exp().sum(-1)), WIDE)
    before = snapshot(graph)
    with canonicalised(graph):
        assert snapshot(graph) == before


def test_columns_of_what_is_computed_behind_rows_are_columns() -> None:
    """A norm's result, and one whose rows are multiplied by sums of other rows."""

    def function(x: Any, z: Any) -> Any:
        y, other = x / x.sum(-1, keepdim=True), z * z[:3].sum(-1).repeat(50)[:, None]
        return y.t().abs().sum(-1), other.t().abs().sum(-1)

    unpermuted(function, [[0]])


def unpermuted(function: Any, dims: list[list[int]], count: int = 2) -> None:
    """What was a reduction of a permuted matrix is one of a matrix, along such dims, until the end."""
    with restored(function, *[((150, 90), f32)] * count) as (added, _):
        assert [list(reduced(n).dims) for n in reductions(added)] == dims


def test_rows_of_a_transposed_tensor_that_columns_are_computed_behind_are_rows() -> None:
    unpermuted(lambda x: ((x / x.t().sum(0)[:, None]).sum(0),), [[1]], 1)


def test_columns_of_a_flat_norm_behind_rows_of_batches_are_columns() -> None:
    def function(x: Any) -> Any:
        batches = x.view(5, 30, 90)
        flat = (batches / batches.sum(-1, keepdim=True)).view(-1, 90)
        return (flat.t().abs().sum(-1),)

    unpermuted(function, [[0]], 1)


def test_rows_and_columns_of_transposed_tensors_are_a_pair() -> None:
    unpermuted(lambda x, z: (x.t().abs().sum(0), x.t().exp().sum(-1), z.t().sum(0)), [[1], [0]])


def test_what_is_expanded_is_permuted_first() -> None:
    """Unless that moves elements of what is expanded."""

    def function(x: Any) -> Any:
        rows, block = x.sum(-1), x[:3, :50]
        permuted = block[:, None].expand(3, 7, 50).neg().permute(2, 1, 0) + 1
        return (
            x * (rows.expand(90, 150) / 90).t(),
            x[:3, None, :50] * block[:, None].exp().expand(3, 7, 50),
            permuted,
        )

    with restored(function, ((150, 90), f32)) as (added, _):
        assert sum(is_permutation(n) for n in added[0].graph.nodes) == 1


def test_a_part_of_what_pieces_were_written_to_is_its_pieces() -> None:
    def function(x: Any, z: Any) -> Any:
        whole = aten.slice_scatter(x, z[:, :40], 1, 50, 90)
        ends = ((0, 50), (10, 50), (50, 90), (60, -1), (40, 60))
        shifted = torch.constant_pad_nd(aten.slice_scatter(torch.zeros_like(x), z[:-1], 0, 1), [0, 0, -1, 2])
        summed = aten.slice_scatter(x, torch.zeros_like(z[:, :40]), 1, 50) + torch.constant_pad_nd(
            z[:, :40], [50, 0]
        )
        parts = [whole[:, start:end] for start, end in ends]
        return [part * 2 for part in (*parts, shifted, summed[:, 20:], summed[:, 60:])]

    with restored(function, *[((150, 90), f32)] * 2) as (added, _):
        cats = [n for n in added if n.target is aten.cat.default]
        assert [len(cat.args[0]) for cat in cats] == [2, 2, 2]


def take(graph: Graph, target: Any, kernel: Any) -> None:
    """Compute a node from the input by a kernel, and erase it and what only it read, as a region does."""
    (node,) = graph.find_nodes(op="call_function", target=target)
    with graph.inserting_before(node):
        result = graph.call_function(kernel, tuple(graph.find_nodes(op="placeholder")))
    result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    todo = [node]
    while todo:
        node = todo.pop()
        if not node.users and node.op == "call_function":
            todo += node.all_input_nodes
            graph.erase_node(node)


@pytest.mark.parametrize("function", [lambda y: y[:, ::2], lambda y: y[:, 1], lambda y: y.amax()])
def test_one_that_reads_what_a_region_computed_is_undone(function: Any) -> None:
    x = torch.randint(0, 256, (64, 2), dtype=torch.uint8)
    graph = traced(lambda x: (function(x.neg()),), ((64, 2), x.dtype))
    before = [n.target for n in graph.nodes][2:]
    with canonicalised(graph):
        take(graph, aten.neg.default, torch.neg)
    assert [n.target for n in graph.nodes][2:] == before
    assert torch.equal(run(graph, x)[0], function(x.neg()))


def test_one_that_a_region_computed_in_part_stays() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        pairs = x.neg().view(64, 24, 2)
        pairs[..., 1] = 0
        return pairs

    graph = traced(lambda x: (x.neg()[:, ::2] ^ 1,), BYTES)
    x = torch.randint(0, 256, (64, 48), dtype=torch.uint8)
    with canonicalised(graph):
        take(graph, aten.where.self, kernel)
    assert torch.equal(run(graph, x)[0], x.neg()[:, ::2] ^ 1)


def test_one_whose_operand_comes_later_stays() -> None:
    """A region that is launched late computes a part of it."""
    graph = traced(lambda x: (x.abs().amax(-1), x.t().abs().amax(-1)), WIDE)
    with canonicalised(graph):
        (permuted,) = (n for n in graph.nodes if reduced(n) and list(reduced(n).dims) == [0])
        (operand,) = (n for n in graph.nodes if n.target is aten.abs.default and is_permutation(n.args[0]))
        permuted.append(operand)
    x = torch.randn(150, 90).to(bf16)
    assert torch.equal(run(graph, x)[1], x.abs().amax(0))


def over_channels(x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x - x.mean(1, keepdim=True)
    return dy * w - y * (dy * y).sum(1, keepdim=True), (dy * y).sum((0, 2, 3)), dy.sum((0, 2, 3))


@pytest.mark.parametrize("follows", [True, False], ids=["canonicalised", "a result would lie otherwise"])
def test_a_norm_over_channels_is_as_before_if_no_region_takes_it(follows: bool) -> None:
    images = (4, 6, 5, 7), f32
    graph = traced(over_channels, images, images, ((6, 1, 1), f32))
    for node in graph.nodes:
        val = node.meta.get("val")
        if node.op == "placeholder" and val.ndim == 4:
            with val.fake_mode:
                node.meta["val"] = val.contiguous(memory_format=torch.channels_last)
        elif node.op == "call_function" and follows:
            node.meta["val"] = computed(node)
    before = [node.format_node() for node in graph.nodes]
    canonicaliser = Canonicaliser(graph)
    canonicaliser.begin()
    graph.lint()
    assert ([node.format_node() for node in graph.nodes] != before) == follows
    canonicaliser.end()
    graph.lint()
    assert [node.format_node() for node in graph.nodes] == before


def gated(h: Any, b: Any, dy: Any) -> Any:
    value, gate = (h + b).split(24, -1)
    dh = torch.cat([dy * gate.sigmoid(), (dy * value).sin()], -1)
    return dh, dh.sum(0), dh.view(5, 30, 48).exp().amax((0, 1)), dh.float().mean(1)


def of_slices(h: Any, b: Any, dy: Any) -> Any:
    """As autograd joins them; the reductions keep dims, and the whole is read behind a cast and a view."""
    zeros = torch.zeros_like(h)
    dh = aten.slice_scatter(zeros, dy * h[:, 24:], 1, 0, 24) + aten.slice_scatter(zeros, dy * b[:24], 1, 24)
    wide = dh.view(5, 30, 2, 24).permute(0, 2, 1, 3).exp()
    return wide @ wide.mT, wide.sum((0, 2), keepdim=True), wide.amin(2)


def with_a_column(h: Any, b: Any, dy: Any) -> Any:
    p = torch.cat([h, b[:1].expand(150, 1)], 1).exp()
    whole = torch.constant_pad_nd(dy, [0, 25]) * p
    dp = whole - p * whole.sum(-1, keepdim=True)
    return dp[:, :48] * 2, dp[:, 48:].sin(), whole.amax(1), whole.amin(1, keepdim=True)


def transposed(h: Any, b: Any, dy: Any) -> Any:
    """Zeros beside a piece that is rounded, read in another order and in another dtype."""
    zeros = torch.zeros((5, 30, 48), dtype=bf16, device=h.device)
    whole = aten.slice_scatter(zeros, dy[:, :1].reshape(5, 30, 1), 2, 47).permute(1, 0, 2).float()
    return (whole + h.view(30, 5, 48)).sum(-1), (whole * 2 - h.view(30, 5, 48)).amax((0, 2))


def of_rows(h: Any, b: Any, dy: Any) -> Any:
    sums = h.exp().view(5, 3, 10, 48).sum(-1, keepdim=True)
    return sums.sin().sum((0, 2)), sums.exp().sum((1, 3), keepdim=True)


def of_one_each(h: Any, b: Any, dy: Any) -> Any:
    values, places = h.max(1, keepdim=True)
    return aten.scatter.src(h.neg(), -1, places, values.sin()), aten.scatter.src(
        h, 0, places.new_zeros(1, 48), h[:1] * 2
    )


PIECEWISE = {
    gated: [aten.sum.dim_IntList] * 2 + [aten.amax.default] * 2,
    of_slices: [aten.sum.dim_IntList] * 2 + [aten.amin.default] * 2,
    with_a_column: [aten.sum.dim_IntList, aten.amax.default, aten.amin.default],
    transposed: [aten.sum.dim_IntList, aten.amax.default, aten.amax.default],
    of_rows: [aten.sum.dim_IntList] * 2,
    of_one_each: [],
}


@pytest.mark.parametrize("function", PIECEWISE)
def test_what_is_computed_of_pieces_is_as_before_if_no_region_takes_it(function: Any) -> None:
    shapes = ((150, 48), f32), ((48,), f32), ((150, 24), f32)
    with restored(function, *shapes, rtol=1.3e-6, atol=1e-5) as (added, joining):
        assert added and not {*joining}.intersection(added)
        assert [n.target for n in reductions(added)] == PIECEWISE[function]


def sinks_of_rows(x: Any) -> Any:
    rows = x.sum(-1, keepdim=True)
    return x * rows, (rows * rows).sum(0, keepdim=True)


def permuted_maxima(x: Any) -> Any:
    return x.abs().amax((1, 2)), x.permute(1, 0, 2).abs().amax(1, keepdim=True)


def permuted_rows(x: Any) -> Any:
    return x.abs().amax(0), x.permute(2, 1, 0).abs().amax((0, 1), keepdim=True)


def permuted_copies(x: Any) -> Any:
    rows = x.sum(-1, keepdim=True)
    return (rows.expand(x.shape).permute(2, 0, 1).contiguous() * 2,)


@pytest.mark.parametrize(
    ("function", "shape", "symbolic"),
    [
        (sinks_of_rows, (12, 5, 8), [0]),
        (sinks_of_rows, (12, 5, 8), [0, 1]),
        (permuted_maxima, (14, 3, 5), [0]),
        (permuted_rows, (14, 3, 5), [0]),
        (permuted_copies, (14, 3, 5), [0, 1]),
    ],
)
def test_sizes_may_be_symbols(
    function: Callable[..., Any], shape: tuple[int, ...], symbolic: Sequence[int]
) -> None:
    graph = traced_rows(function, (shape, f32), symbolic=symbolic)
    before = snapshot(graph)
    with canonicalised(graph):
        assert snapshot(graph) != before
        graph.lint()
        assert all("val" in n.meta for n in graph.nodes if n.op == "call_function" and n.target is not int)
    assert snapshot(graph) == before


def test_a_way_that_needs_a_guard_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(largest, FULL)
    before, value, calls = snapshot(graph), _Rewrite.value, list[Any]()

    def refuses(self: Any, *args: Any) -> Any:
        calls.append(self)
        if self is calls[0] and calls.count(self) == 2:  # it has added a node
            raise Decline(DeclineReason.DYNAMIC_SHAPE, "a guard")
        return value(self, *args)

    monkeypatch.setattr(_Rewrite, "value", refuses)
    with canonicalised(graph) as firsts:
        assert len(firsts) == 2
        assert all("val" in n.meta for n in graph.nodes if n.op == "call_function")
    assert snapshot(graph) == before
