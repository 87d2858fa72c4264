"""Tensors that are canonicalised to a `cat` of their pieces while regions are looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, f32, outcomes, pair, snapshot, traced
from torch.fx import Graph, GraphModule, Interpreter

from mixorder.rewrite.canonicalise import Canonicaliser

aten = torch.ops.aten
PART, WHOLE = ((8, 4), bf16), ((8, 16), bf16)
Made = Callable[[Any, Any, Any], Any]


def placed(whole: Any, part: Any, start: int, dim: int = 1) -> Any:
    return torch.slice_scatter(whole, part, dim, start, start + part.shape[dim])


# Of two parts that loops compute and of a whole tensor; the sizes of the pieces that come of it.
CANONICALISED: dict[str, tuple[Made, list[int]]] = {
    "a slice write": (lambda a, b, x: placed(x, a, 4), [4, 4, 8]),
    "a slice write at the end": (lambda a, b, x: torch.slice_scatter(x, a, 1, -4), [12, 4]),
    "of zeros": (lambda a, b, x: placed(torch.zeros_like(x), a, 0), [4, 12]),
    "two slice writes": (lambda a, b, x: placed(placed(x, a, 0), b, 4), [4, 4, 8]),
    "one over the other": (lambda a, b, x: placed(placed(x, a, 2), b, 4), [2, 2, 4, 8]),
    "a sum": (
        lambda a, b, x: placed(torch.zeros_like(x), a, 0) + placed(torch.zeros_like(x), b, 8),
        [4, 4, 4, 4],
    ),
    "a sum of two chunks": (
        lambda a, b, x: torch.cat([a, a.new_zeros(8, 12)], 1) + torch.cat([a.new_zeros(8, 12), b], 1),
        [4, 8, 4],
    ),
    "a sum of two columns": (
        lambda a, b, x: (
            torch.cat([a[:, None], a.new_zeros(8, 4)[:, None]], 1)
            + torch.cat([a.new_zeros(8, 4)[:, None], b[:, None]], 1)
        ),
        [1, 1],
    ),
    "a sum with what is not written": (
        lambda a, b, x: placed(x, torch.zeros_like(a), 0) + placed(torch.zeros_like(x), a, 0),
        [4, 12],
    ),
    "padding": (lambda a, b, x: F.pad(a, (4, 8), value=2.0), [4, 4, 8]),
    "padding in front": (lambda a, b, x: F.pad(a, (4, 0)), [4, 4]),
    "padding of rows": (lambda a, b, x: F.pad(a, (0, 0, 0, 3)), [8, 3]),
    "padding of what is cut": (lambda a, b, x: F.pad(a, (-1, 4)), [3, 4]),
    "a column": (lambda a, b, x: torch.select_scatter(x.view(8, 4, 4), a, 1, 2), [2, 1, 1]),
    "a column from behind": (lambda a, b, x: torch.select_scatter(x.view(8, 4, 4), a, 1, -1), [3, 1]),
}
LEFT: dict[str, Made] = {
    "no elements": lambda a, b, x: torch.cat([a.new_zeros(0, 4), a[:0]]) + b[:0],
    "parts that meet": lambda a, b, x: placed(torch.zeros_like(x), a, 0) + placed(torch.zeros_like(x), b, 2),
    "a sum with a number": lambda a, b, x: (
        placed(torch.ones_like(x), a, 0) + placed(torch.zeros_like(x), b, 4)
    ),
    "a sum with a factor": lambda a, b, x: torch.add(
        placed(torch.zeros_like(x), a, 0), placed(torch.zeros_like(x), b, 4), alpha=2
    ),
    "every other column": lambda a, b, x: torch.slice_scatter(x, a, 1, 0, 8, 2),
    "two dims": lambda a, b, x: F.pad(a, (1, 1, 1, 1)),
    "what a loop reads": lambda a, b, x: placed(x, a, 4).sin(),
    "what a product reads": lambda a, b, x: F.pad(a, (0, 4)) @ a.new_ones(8, 8),
    "another dtype": lambda a, b, x: torch.cat([a, x.float()], 1) + torch.cat([x.float(), b], 1),
    "what is given": lambda a, b, x: placed(x, x[:, 8:12], 4),
}


def graph_of(made: Made) -> tuple[Graph, Callable[..., Any]]:
    def function(a: Any, b: Any, x: Any) -> Any:
        return made(a.neg(), b.neg(), x)

    return traced(function, PART, PART, WHOLE), function


def given() -> list[torch.Tensor]:
    a, b, x = (torch.randn(shape).to(dtype) for shape, dtype in (PART, PART, WHOLE))
    a[1] = b[1] = x[1] = 0.0  # whose negative is -0
    return [a, b, x]


@pytest.mark.parametrize("how", CANONICALISED)
def test_pieces_are_canonicalised_to_a_cat_and_restored(how: str) -> None:
    made, sizes = CANONICALISED[how]
    graph, function = graph_of(made)
    before, canonicaliser, inputs = snapshot(graph), Canonicaliser(graph), given()
    canonicaliser.begin()
    (cat,) = (n for n in graph.nodes if n.target is aten.cat.default)
    assert [n.meta["val"].shape[cat.args[1]] for n in cat.args[0]] == sizes
    assert not any(
        n.target in (aten.slice_scatter.default, aten.constant_pad_nd.default) for n in graph.nodes
    )
    mine, eager = Interpreter(GraphModule({}, graph)).run(*inputs), function(*inputs)
    mine = mine if isinstance(mine, torch.Tensor) else mine[0]
    assert torch.equal(mine, eager) and torch.equal(mine.signbit(), eager.signbit())
    canonicaliser.end()
    graph.lint()
    assert snapshot(graph) == before


def test_a_piece_that_others_read_is_copied_first_where_a_kernel_can_write_its_place() -> None:
    def function(a: Any, b: Any, x: Any) -> Any:
        return torch.cat([a.neg(), x, b.neg()], 1), torch.cat([b.neg(), x], 1), x @ x.t()

    graph = traced(function, ((8, 16), bf16), ((8, 4), bf16), WHOLE)
    before, canonicaliser = snapshot(graph), Canonicaliser(graph)
    canonicaliser.begin()
    (copy,) = (n for n in graph.nodes if n.target is aten.clone.default)
    ((cat, *none),) = (list(copy.users),)
    assert [n is copy for n in cat.args[0]] == [False, True, False] and not none
    canonicaliser.end()
    assert snapshot(graph) == before


@pytest.mark.parametrize("how", LEFT)
def test_what_is_no_matter_of_pieces_is_left(how: str) -> None:
    graph, _ = graph_of(LEFT[how])
    before, canonicaliser = snapshot(graph), Canonicaliser(graph)
    canonicaliser.begin()
    assert snapshot(graph) == before
    canonicaliser.end()
    assert snapshot(graph) == before


@pytest.mark.parametrize("min_numel", [0, 1 << 40])
def test_what_a_kernel_writes_a_piece_of_stays_a_cat(min_numel: int) -> None:
    def function(x: Any, dy: Any) -> Any:
        dx, dw = pair(x, dy)
        return placed(dx.new_zeros(64, 128), dx, 32), dw

    graph = traced(function, ((64, 32), f32), ((64, 32), f32))
    before = snapshot(graph)
    outcomes(graph, min_numel=min_numel)
    targets = [n.target for n in graph.nodes]
    assert (aten.cat.default in targets) == (min_numel == 0)
    assert (aten.slice_scatter.default in targets) == (min_numel > 0) and int not in targets
    assert (snapshot(graph) == before) == (min_numel > 0)


def test_sizes_that_torch_knows_by_now_are_no_pieces() -> None:
    """A node that asked for a symbolic size stays where the size has become a number."""
    graph = traced(lambda a, x: placed(x, a, 4), PART, WHOLE)
    (node,) = graph.find_nodes(op="call_function", target=aten.slice_scatter.default)
    with graph.inserting_before(node):
        size = graph.call_function(aten.sym_size.int, (node.args[1], 1))
    size.meta["val"] = 4
    node.args = (*node.args[:3], size, *node.args[4:])
    before = str(graph)
    Canonicaliser(graph).begin()
    assert str(graph) == before
