"""Orders of nodes, against where eager puts the elements of a tensor of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import f32, traced

from mixorder.region.factors import Order
from mixorder.region.nodes import reduced
from mixorder.region.orders import Orders, is_loop

SHAPE = (64, 96)


def index_of(order: Order, numbers: torch.Tensor) -> torch.Tensor:
    """Of each element, by its number, the flat index that an order gives; sizes are those of its runs."""
    flat = torch.zeros_like(numbers)
    for run in order:
        for factor in run:
            flat = flat * factor.size + numbers // factor.stride % factor.size
    return flat


def known(function: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[Orders, list[Any]]:
    graph = traced(lambda *x: function(*x), *((shape, f32) for shape in shapes or (SHAPE,)))
    nodes = list(graph.nodes)
    orders = Orders(nodes[0])
    orders.spread([n for n in nodes if n.op == "call_function"])
    return orders, nodes


MOVES = [
    lambda x: x.view(2, 32, 3, 32),
    lambda x: x.t(),
    lambda x: x.t().reshape(96, 2, 32),
    lambda x: x.view(2, 32, 96).permute(2, 0, 1).reshape(-1, 32),
    lambda x: x.unsqueeze(1).squeeze(1).t().contiguous().view(-1),
    lambda x: x.view(4, 16, 96).permute(1, 0, 2).permute(2, 1, 0),
]


@pytest.mark.parametrize("move", MOVES)
def test_a_moved_tensor(move: Callable[..., Any]) -> None:
    orders, nodes = known(lambda x: move(x) * 2)
    (product,) = (n for n in nodes if n.target is torch.ops.aten.mul.Tensor)
    numbers = torch.arange(64 * 96)
    moved = move(numbers.view(SHAPE)).reshape(-1)
    assert torch.equal(index_of(orders[product], numbers), torch.argsort(moved))
    assert all(orders.agrees(n) for n in nodes if n.op == "call_function")


def test_an_operand_gets_its_order_from_the_operand_beside_it() -> None:
    orders, nodes = known(lambda x, w, r: x.t() * w.exp() * r, SHAPE, (64,), (96, 1))
    _, w, r, *_ = nodes
    assert index_of(orders[w], torch.arange(0, 64 * 96, 96)).tolist() == list(range(64))
    assert index_of(orders[r], torch.arange(96)).tolist() == list(range(96))


def test_a_reduction_keeps_the_other_dims() -> None:
    orders, nodes = known(lambda x: x.view(2, 32, 96).amax(1, keepdim=True) + x.view(2, 32, 96))
    (largest,) = (n for n in nodes if reduced(n) is not None)
    assert [len(run) for run in orders[largest]] == [1, 0, 1]
    assert [(f.stride, f.size) for f in orders.reduced(largest)] == [(96, 32)]


def test_a_tensor_beside_its_own_transposed_has_no_order() -> None:
    orders, nodes = known(lambda x: x + x.t(), (64, 64))
    (total,) = (n for n in nodes if n.target is torch.ops.aten.add.Tensor)
    assert is_loop(total) and not orders.agrees(total)


def test_a_view_that_cuts_through_a_block_has_no_order() -> None:
    orders, nodes = known(lambda x: x.t().reshape(5, -1) * 2, (64, 90))
    (product,) = (n for n in nodes if n.target is torch.ops.aten.mul.Tensor)
    assert product in orders
    orders, nodes = known(lambda x: x.t().reshape(7, -1) * 2, (63, 90))
    (product,) = (n for n in nodes if n.target is torch.ops.aten.mul.Tensor)
    assert product not in orders
