"""The estimate of a graph's peak memory, and that it decides about regions."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from graphs import declined, f32, fused, only, outcomes, traced
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph

from mixorder.errors import DeclineReason
from mixorder.inductor.graphs import triton_kernel_wrapper_functional
from mixorder.inductor.tensors import padded_strides
from mixorder.region import peak_memory
from mixorder.region.peak_memory import Span, Timeline, bytes_of
from mixorder.report import RegionRecord

ROWS, COLS = 4096, 256
FULL, COLUMN, NARROW = ((ROWS, COLS), f32), ((COLS,), f32), ((COLS, 8), f32)
SMALL = ((ROWS, 1), f32), COLUMN, NARROW
S = ROWS * COLS * 4


def written_in_place(x: Any, row: Any, w: Any) -> Any:
    """Stock has done with y before it writes z where the running sum lay; one kernel holds all three."""
    x = (x + row).cumsum(0)
    y = x * x.sigmoid() * (x.cos() + 2)
    product = y @ w
    z = x * x.cos()
    return y.sum(0), product, z.sum(0), z @ w


def norm(x: Any, dy: Any) -> Any:
    return dy - x * (x * dy).sum(-1, keepdim=True), (x * dy).sum(0)


def test_peak_of_a_chain_of_products() -> None:
    """At the second product both operands and its result are in memory; the first input is freed."""
    graph = traced(lambda x, w: ((x @ w) @ w).sum(), FULL, ((COLS, COLS), f32))
    assert Timeline(graph).stock == 2 * S + COLS * COLS * 4


@pytest.mark.parametrize("divided", [lambda y: y.chunk(2), lambda y: y.view(2, ROWS // 2, COLS).unbind()])
def test_what_is_divided_is_held_until_its_last_piece_is_read(divided: Any) -> None:
    """At the second product: a tensor of two pieces, the sines of one, and the product of these."""

    def function(x: Any, w: Any, wide: Any) -> Any:
        one, other = divided(x @ w)
        return one.sin() @ wide, other.sum()

    wide = (COLS, 4 * COLS), f32
    graph = traced(function, FULL, ((COLS, COLS), f32), wide)
    assert Timeline(graph).stock == S + S // 2 + 2 * S + 4 * COLS * COLS * 4


def test_what_a_recomputed_loop_reads_is_held_until_then() -> None:
    """The sum reads too much to be recomputed. What is made of it is, for the last product."""

    def function(w: Any, *terms: Any) -> Any:
        scaled = sum(terms) * 3
        return scaled * (scaled.sin() @ w)

    graph = traced(function, ((COLS, COLS), f32), *[FULL] * 9)
    timeline = Timeline(graph)
    (product,) = graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    (scaled,) = product.args[0].all_input_nodes
    (total,) = scaled.all_input_nodes
    (last,) = (user for user in scaled.users if user is not product.args[0])
    assert timeline.spans[total].last >= timeline.index[last] - 1


def test_the_estimate_is_of_the_region() -> None:
    """The kernel holds its two inputs and dx; stock, too, since dx has to wait for the row sums."""
    graph = traced(norm, FULL, FULL)
    region = only(graph)
    timeline = Timeline(graph)
    alone = timeline.change(region, ())
    assert alone.before == alone.after == timeline.stock
    shared = timeline.change(region, [n for n in region.inputs if bytes_of(n) == S][:1])
    assert shared.after < alone.after


def recomputed_norm(w: Any, *terms: Any) -> Any:
    """The forward of a norm for a product, and what its backward reads of the normalised rows."""
    total = sum(terms)
    mean = total.mean(-1, keepdim=True)
    rows = (total - mean) * (total * total).mean(-1, keepdim=True)
    product = (rows * 3) @ w
    rows = (total - mean).sin()
    return product * rows + rows.sum(0), (product @ w) * rows


def test_what_reads_a_norms_statistics_is_stored_with_them() -> None:
    """Inductor stores the rows in the kernel that reduces them, long before it reads them."""
    graph = traced(recomputed_norm, ((COLS, COLS), f32), *[FULL] * 4)
    timeline = Timeline(graph)
    (rows,) = graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    first, _ = graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    means = graph.find_nodes(op="call_function", target=torch.ops.aten.mean.dim)
    assert timeline.spans[rows].first == timeline.index[means[0]]
    assert timeline.index[means[0]] < timeline.index[first] < timeline.index[rows]


def test_what_also_reads_a_later_product_is_stored_after_it() -> None:
    def function(w: Any, *terms: Any) -> Any:
        total = sum(terms)
        mean = total.mean(-1, keepdim=True)
        product = (total * mean) @ w
        rows = ((total - mean) * product).sin()
        return product * rows + rows.sum(0), (product @ w) * rows

    timeline = Timeline(graph := traced(function, ((COLS, COLS), f32), *[FULL] * 4))
    (rows,) = graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    assert timeline.spans[rows].first == timeline.index[rows]


def test_a_member_is_held_until_the_last_node_outside_reads_it() -> None:
    """Stock keeps the recomputed xhat from the product to the norm. A region that recomputes it from the
    terms reads those instead."""

    def function(w: Any, *terms: Any) -> Any:
        xhat = sum(terms).float() * 2
        return norm(xhat, (xhat.bfloat16() @ w).float())

    graph = traced(function, ((COLS, COLS), torch.bfloat16), *[((ROWS, COLS), torch.bfloat16)] * 5)
    region, timeline = only(graph), Timeline(graph)
    (product,) = graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    (xhat,) = (n for n in region.nodes if n in timeline.stored and n not in region.outputs)
    change = timeline.change(region, ())
    assert timeline.spans[xhat].last > timeline.index[product] >= change.spans[xhat].last


def test_a_region_that_raises_the_peak_is_declined() -> None:
    graph = traced(written_in_place, *SMALL)
    before = str(graph)
    decline = declined(graph)
    assert decline.reason is DeclineReason.MEMORY
    assert "MB at the peak instead of" in decline.detail and str(graph) == before


@pytest.mark.parametrize("held", [False, True])
def test_an_input_that_is_held_counts_beside_its_copy(held: bool) -> None:
    """The result takes the copy's memory, so there are three such tensors, as with Inductor's kernels."""

    def function(a: Any, b: Any, dy: Any, w: Any) -> Any:
        x = (a @ b).t()
        return *norm(x, dy), x @ w if held else w

    end = fused(traced(function, ((COLS, 8), f32), ((8, ROWS), f32), FULL, NARROW))
    assert end.planning.peak is not None
    less = end.planning.peak[0] - end.planning.peak[1]
    assert less == 0 if held else less >= 0


def test_an_input_that_inductor_has_padded_is_as_large_as_a_result_with_gaps() -> None:
    """A head's logits with 3001 columns come from a forward that padded their rows to 3008. Inductor writes
    their gradient into the same memory, which a region's kernels cannot."""
    stride = padded_strides(torch.empty(64, 3001, dtype=torch.bfloat16, device="meta"))
    assert stride is not None and stride[0] > 3001
    graph, mode = Graph(), FakeTensorMode()
    with mode:
        padded = torch.empty_strided((64, 3001), stride, dtype=torch.bfloat16)
        plain = torch.empty(64, 3001, dtype=torch.bfloat16)
    for name, value in (("padded", padded), ("plain", plain)):
        graph.placeholder(name).meta["val"] = value
    found = [bytes_of(node) for node in graph.nodes]
    assert found == [2 * 64 * stride[0], 2 * 64 * 3001]


def test_logits_of_a_product_that_torch_has_padded() -> None:
    """Torch pads the products around a head to even columns. Inductor writes the gradient over the logits
    and fills the gaps there. Of an operator's memory it makes a copy: a region's result has its own."""
    rows, cols, even = 2048, 3001, 3008

    def function(x: Any, w: Any, label: Any, w2: Any) -> Any:
        logits = (x @ w)[:, :cols].float()
        dx = (torch.arange(cols) == label).float() - logits.exp() * 0.5
        dx = dx.to(torch.bfloat16)
        filled = torch.nn.functional.pad(dx, (0, even - cols))
        return dx.sum(0), filled @ w2

    half = torch.bfloat16
    specs = ((rows, 64), half), ((64, even), half), ((rows, 1), torch.int64), ((even, 64), half)
    graph = traced(function, *specs)
    size = 2 * rows * even
    assert size <= Timeline(graph).stock < 1.5 * size
    decline = declined(graph)
    assert decline.reason is DeclineReason.MEMORY


def recomputed(a: Any, b: Any, dy: Any, w: Any, p: Any, q: Any) -> Any:
    """A residual's sum of a forward that is recomputed, and the backward of its norm behind the peak."""
    x = a + b
    hidden = x.cos() @ w
    large = ((p @ q) * hidden.sum()).cumsum(0).sum()
    return norm(x, dy + (hidden * large) @ w)


LARGE = ((4 * ROWS, COLS), f32), ((COLS, COLS), f32)
RECOMPUTED = FULL, FULL, FULL, ((COLS, COLS), f32), *LARGE


def test_an_input_that_would_be_held_over_the_peak_is_recomputed() -> None:
    """Inductor does not store the sum: it recomputes it in each loop, and so does the region."""
    graph = traced(recomputed, *RECOMPUTED)
    (total,) = (n for n in graph.nodes if n.name == "add")
    stock = Timeline(graph).stock
    record = fused(graph)
    assert record.planning.peak is not None
    assert record.planning.peak[1] <= 1.005 * stock
    assert total.users and not any(n.target is triton_kernel_wrapper_functional for n in total.users)


@pytest.mark.parametrize("near", [0, 64])
def test_what_a_launch_alone_needs_in_memory_is_written_right_before(
    near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or in one of the last loops before it that read what it is made of: here, that of the cosine."""
    monkeypatch.setattr(peak_memory, "NEAR", near)
    graph = traced(recomputed, *RECOMPUTED)
    timeline, region = Timeline(graph), only(graph)
    (total,) = (n for n in region.inputs if n.name == "add")
    change = timeline.change(region, ())
    (cosine,) = graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default)
    first = timeline.index[cosine] if near else change.place
    assert change.spans[total] == Span(S, first, change.place)
    made_of = [change.spans[n] for n in total.all_input_nodes]
    assert all(span is not None and span.last >= change.place for span in made_of)
    assert timeline.fits(change) == (not near)


def test_what_is_made_of_another_loops_result_may_be_written_in_that_loop() -> None:
    """Inductor fuses a loop with the one that computes its operand, however far apart they are."""

    def function(a: Any, dy: Any, w: Any, p: Any, q: Any) -> Any:
        x = a * a.square().sum(-1, keepdim=True).rsqrt()
        hidden = x.cos() @ w
        large = ((p @ q) * hidden.sum()).cumsum(0).sum()
        return norm(a.cumsum(0) + x, dy + (hidden * large) @ w)

    graph = traced(function, FULL, FULL, ((COLS, COLS), f32), *LARGE)
    timeline = Timeline(graph)
    (cosine,) = graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default)
    (x,) = cosine.all_input_nodes
    assert x not in timeline.stored
    assert timeline._first(x, timeline.end) == timeline.index[x]


def test_a_result_behind_a_view_is_where_the_launch_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are written over products that have another shape, and the next region reads them."""
    timelines: dict[Timeline, None] = {}
    commit = Timeline.commit

    def noted(self: Timeline, *args: Any) -> None:
        timelines[self] = None
        commit(self, *args)

    monkeypatch.setattr(Timeline, "commit", noted)

    def function(x: Any, dy: Any, w: Any) -> Any:
        sums = []
        for _ in range(2):
            dx, dw = norm(x, (dy.view(ROWS, COLS) @ w).view(8, ROWS // 8, COLS))
            dy = dx.exp()
            sums.append(dw)
        return dy, *sums

    shape = (8, ROWS // 8, COLS)
    graph = traced(function, (shape, f32), (shape, f32), ((COLS, COLS), f32))
    records = outcomes(graph)
    assert [type(record) for record in records] == [RegionRecord] * 2
    (timeline,) = timelines
    views = graph.find_nodes(op="call_function", target=torch.ops.aten.reshape.default)
    items = [n.args[0] for n in views if n.args[0].target is operator.getitem]
    assert items
    for item in items:
        assert item in timeline.stored and timeline.spans[item].first == timeline.index[item.args[0]]
        assert all(timeline.base[view] is item for view in item.users if view in views)
