"""Which layouts Inductor chooses by itself, and what the prediction makes of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import f32, find, traced
from torch.fx import Graph

from mixorder.region.key import structural_key
from mixorder.region.layouts import is_free, is_read_as_stated, is_row_major, may_lie_otherwise

FULL = ((48, 64), f32)
TRANSPOSED = ((64, 48), f32)


def residual(computed: bool, read: str) -> Callable[..., Any]:
    """A norm's backward with a residual of the other layout. `computed`: by a loop, else it is a placeholder.
    `read`: what reads the result, in that other layout."""

    def function(x: Any, dy: Any, transposed: Any) -> Any:
        other = (transposed.sin() if computed else transposed).t()
        product = x * dy
        dx = other + (dy - x * product.sum(1, keepdim=True))
        back = dx.t()
        return product.sum(0), {
            "loop": lambda: back.cos(),
            "scan": lambda: back.cumsum(0),
            "caller": lambda: back,
        }[read]()

    return function


def graph_of(computed: bool, read: str) -> Graph:
    return traced(residual(computed, read), FULL, FULL, TRANSPOSED)


@pytest.mark.parametrize("computed", [True, False])
def test_the_layout_of_what_a_loop_computes_is_free(computed: bool) -> None:
    graph = graph_of(computed, "loop")
    transposed = next(n for n in graph.nodes if n.target is torch.ops.aten.permute.default)
    assert is_free(transposed) == computed and not is_row_major(transposed)


@pytest.mark.parametrize(("read", "stated"), [("loop", False), ("scan", True), ("caller", True)])
def test_what_is_no_loop_reads_the_stated_layout(read: str, stated: bool) -> None:
    graph = graph_of(True, read)
    (result,) = [n for n in graph.nodes if n.name == "add"]
    assert not is_row_major(result)
    assert is_read_as_stated(result) == stated and is_free(result) != stated


def test_strides_of_a_dim_of_one_element_do_not_matter() -> None:
    graph = traced(lambda x: x.sin(), ((64, 1), f32), transposed=(0,))
    (x,) = graph.find_nodes(op="placeholder")
    assert x.meta["val"].stride() == (1, 64) and is_row_major(x)


def test_regions_with_other_readers_have_keys_of_their_own() -> None:
    def function(*args: Any) -> Any:
        loop, scan = residual(True, "loop"), residual(True, "scan")
        return *loop(*args[:3]), *scan(*args[3:6]), *loop(*args[6:])

    graph = traced(function, *(FULL, FULL, TRANSPOSED) * 3)
    first, second, third = map(structural_key, find(graph))
    assert first == third != second


READERS: dict[str, tuple[Callable[[torch.Tensor], Any], bool]] = {
    "loop": (lambda t: t.cos(), True),
    "an operator": (lambda t: t.cumsum(0), True),
    "an operator, behind a view": (lambda t: t.unsqueeze(0).cumsum(1), True),
    "a view that would be a copy": (lambda t: t.view(-1).cos(), False),
    "an operator, of a part": (lambda t: t[:, :16].cumsum(0), True),
    "the caller": (lambda t: t, False),
    "the caller, of a part": (lambda t: t[:, :16], False),
    "the caller, behind a view": (lambda t: t.unsqueeze(0), False),
    "places in memory": (lambda t: t.as_strided((48,), (1,)).cos(), False),
}


@pytest.mark.parametrize("reader", READERS)
def test_which_readers_take_other_strides(reader: str) -> None:
    read, expected = READERS[reader]
    graph = traced(lambda t: read(t.exp()), FULL)
    (node,) = (n for n in graph.nodes if n.target is torch.ops.aten.exp.default)
    assert may_lie_otherwise(node, (1, 48)) == expected
    assert not may_lie_otherwise(node, (64, 1))  # those that it has


@pytest.mark.parametrize("view", [False, True])
def test_what_only_the_backward_reads_may_lie_otherwise(view: bool) -> None:
    graph = traced(lambda t: (t.cos(), t.exp().unsqueeze(0) if view else t.exp()), FULL)
    (node,) = (n for n in graph.nodes if n.target is torch.ops.aten.exp.default)
    assert not may_lie_otherwise(node, (1, 48))
    graph.output_node().meta["user_visible_output_idxs"] = [0]
    assert may_lie_otherwise(node, (1, 48))
