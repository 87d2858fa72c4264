"""Where a region is launched: what moves behind it, and that effects keep their order."""

from __future__ import annotations

from typing import Any
from unittest import mock

import graphs
import pytest
import torch
import torch.distributed._functional_collectives  # registers the operators  # noqa: F401
from graphs import ALWAYS, declined, f32, find, fused, outcomes, traced
from torch.fx import Graph, Node

from mixorder import pipeline
from mixorder.errors import DeclineReason, MixorderError
from mixorder.inductor.graphs import triton_kernel_wrapper_functional
from mixorder.region.effects import has_effect
from mixorder.region.peak_memory import Timeline
from mixorder.region.placement import moved
from mixorder.report import RegionRecord
from mixorder.rewrite import graph_writer, rewrite

FULL, COLUMN = ((512, 256), f32), ((256,), f32)
aten = torch.ops.aten


def all_reduce(x: torch.Tensor, how: str) -> torch.Tensor:
    c10d = torch.ops._c10d_functional
    return c10d.wait_tensor(c10d.all_reduce(x, how, "0"))


def random_sign(x: torch.Tensor) -> torch.Tensor:
    return torch.bernoulli(x.sigmoid())


def effects(graph: Graph) -> list[tuple[Any, ...]]:
    """What the graph does beside computing, in order; operands aside, which the rewrite replaces."""
    return [(n.target, *(a for a in n.args if not isinstance(a, Node))) for n in graph.nodes if has_effect(n)]


def needed_late(x: Any, dy: Any, w: Any) -> Any:
    """dw is sent off before the scale comes in that dx needs."""
    dx, dw = graphs.pair(x, dy)
    total = all_reduce(dw, "sum")
    return dx * all_reduce(w, "avg"), total


def both_late(x: Any, dy: Any, w: Any) -> Any:
    """dw is sent off before the scale comes in that the row sum needs."""
    total = all_reduce((x * dy).sum(0), "sum")
    scaled = dy * all_reduce(w, "avg")
    return scaled - x * (x * scaled).sum(-1, keepdim=True), total


def not_needed(x: Any, dy: Any, w: Any) -> Any:
    """Between dw's and the region's last input is a collective that the region does not need."""
    total, other = all_reduce((x * dy).sum(0), "sum"), all_reduce(w, "avg")
    late = torch.mm(dy, dy.t() @ dy)
    return late - x * (x * late).sum(-1, keepdim=True), total, other


def drawn(x: Any, dy: Any, w: Any) -> Any:
    first, second = random_sign((x * dy).sum(0)), random_sign(w)
    late = torch.mm(dy, dy.t() @ dy)
    return late - x * (x * late).sum(-1, keepdim=True), first, second


PROGRAMS = [needed_late, both_late, not_needed, drawn]


@pytest.mark.parametrize("program", PROGRAMS)
def test_effects_keep_their_order(program: Any) -> None:
    graph = traced(program, FULL, FULL, COLUMN)
    before = effects(graph)
    assert len(before) >= 2
    (end,) = outcomes(graph)
    assert effects(graph) == before
    assert isinstance(end, RegionRecord) or end.reason is DeclineReason.ORDER


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_order_does_not_depend_on_what_is_fused(program: Any) -> None:
    """Two processes of other sizes, of which one is too small, must meet in the same collectives."""
    large, small = (traced(program, ((rows, 256), f32), ((rows, 256), f32), COLUMN) for rows in (512, 200))
    outcomes(large, min_numel=100_000)
    outcomes(small, min_numel=100_000)
    assert effects(large) == effects(small)


def test_a_region_without_a_place_is_declined() -> None:
    decline = declined(traced(both_late, FULL, FULL, COLUMN))
    assert decline.reason is DeclineReason.ORDER
    assert "all_reduce" in str(decline)


def test_an_effect_that_the_region_does_not_need_moves_along() -> None:
    graph = traced(not_needed, FULL, FULL, COLUMN)
    (region,) = find(graph)
    assert [n for n in moved(region) if has_effect(n)] == [n for n in graph.nodes if has_effect(n)]
    fused(graph)


def written(x: Any, dy: Any, w: Any, new: Any) -> Any:
    """What uses dw reads w before w is written; the region's last input is made after that."""
    _, dw = graphs.pair(x, dy)
    early = dw * w
    w.copy_(new)
    dx, _ = graphs.pair(x, dy * torch.sin(new))
    return dx, early


def test_a_read_stays_before_a_write() -> None:
    graph = traced(written, FULL, FULL, COLUMN, COLUMN, in_place=True)
    (copy,) = (n for n in graph.nodes if n.target is aten.copy_.default)
    (early,) = (n for n in graph.nodes if n.target is aten.mul.Tensor and copy.args[0] in n.args)
    for region in find(graph):
        later = moved(region)
        assert (early in later) <= (copy in later)
    outcomes(graph)
    order = list(graph.nodes)
    assert order.index(early) < order.index(copy)


def test_a_launch_that_would_change_the_order_is_undone() -> None:
    """Whatever said that it may move: the rewrite compares, and puts everything back."""
    graph = traced(not_needed, FULL, FULL, COLUMN)
    before = [n.name for n in graph.nodes]

    def wrong(region: Any) -> tuple[Node, ...]:
        """Only the first effect, past the others."""
        return tuple(n for n in graph.nodes if has_effect(n))[:1]

    late = [n for n in graph.nodes if n.op == "call_function"][-1]
    with (
        mock.patch.object(rewrite, "moved", wrong),
        mock.patch.object(graph_writer, "place_of", lambda _: late),
        pytest.raises(MixorderError, match="order of effects"),
    ):
        pipeline.run(graph, ALWAYS)
    assert [n.name for n in graph.nodes] == before
    graph.lint()


def used_at_the_end(x: Any, dy: Any, w: Any) -> Any:
    """Products stand between the sums and the first use of a result, which is a product as well."""
    h = x * dy
    row, column = h.sum(1, keepdim=True), h.sum(0)
    product = (w @ w).relu() @ w
    return h - row, product, column[None] @ product


def test_a_late_launch_stands_in_front_of_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = FULL, FULL, ((256, 256), f32)
    early, late = (traced(used_at_the_end, *shapes) for _ in range(2))
    outcomes(early)
    monkeypatch.setattr(Timeline, "fits", lambda self, change: change.region.late)
    fused(late)
    products = [[launches_before(n) for n in g.nodes if n.target is aten.mm.default] for g in (early, late)]
    assert products == [[True, True, True], [False, False, True]]
    assert len(late.nodes) == len(early.nodes)


def launches_before(node: Node) -> bool:
    while node.op != "root":
        if node.target is triton_kernel_wrapper_functional:
            return True
        node = node.prev
    return False
