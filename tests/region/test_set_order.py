"""What is found in a graph is the same whatever the order of sets of its nodes."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import graphs
import pytest
import torch
from graphs import f32, traced
from support.quantised import RECIPES
from torch.fx import Graph, Node

from mixorder.errors import Decline, DeclineReason
from mixorder.region.find import find_regions
from mixorder.region.peak_memory import Timeline
from mixorder.region.region import Region
from mixorder.region.variants import lighter, smaller

ORDERS = 5
CASTS = ("norm_backward", "gelu_delayed", "blocks_both")


FULL = ((1024, 1024), f32)


def chained(x: Any, dy: Any, w: Any) -> tuple[Any, ...]:
    """What depends on dw is of no chained reduction."""
    scales = w.sin(), w.cos()
    z = x * scales[0] * scales[1]
    total, dw = (z * dy).sum(1, keepdim=True), (z * dy).sum(0)
    behind = dw * scales[0] * scales[1]
    return z - total, behind, ((z - total) * behind).sum(1)


def two_products(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, ...]:
    """A loop may write its result over either of two products; another loop reads one of them as well."""
    p, q = a @ b, c @ d
    return (q * q).sum(1), (q * q).sum(0), (p * q + 1) @ a


def places(x: Any, y: Any) -> tuple[Any, ...]:
    """Reductions of two tensors' elements, of which none is told of twice."""
    return (x * y).argmax(1), x.argmax(0), y.argmax(0), x.argmax(1), y.sum(1)


def of_complex(x: Any, y: Any) -> tuple[Any, ...]:
    z = torch.complex(x, y)
    total = (z * z).abs() * (z * y).abs()
    return total.sum(1), total.sum(0)


def cast(name: str) -> Graph:
    recipe = RECIPES[name]
    return traced(lambda *args: recipe.function(*args), *recipe.like(4096, 4096))


MADE: dict[str, Callable[[], Graph]] = {
    **{name: functools.partial(cast, name) for name in CASTS},
    "layer norm": lambda: graphs.layer_norm_backward(4096, 4096),
    "chained": lambda: traced(chained, FULL, FULL, ((1024,), f32)),
    "two products": lambda: traced(two_products, *[((2048, 64), f32), ((64, 2048), f32)] * 2),
    "places": lambda: traced(places, FULL, FULL),
    "complex numbers": lambda: traced(of_complex, FULL, FULL),
    "group norm": lambda: graphs.group_norm_backward(8, 4096, 320, 32, bias=True),
}


REFUSALS = (DeclineReason.ROW_TOO_WIDE, DeclineReason.MEMORY, DeclineReason.LAYOUT)


def moves(region: Region) -> Iterator[Region]:
    """All that the search may take instead of a region."""
    for reason in REFUSALS:
        yield from smaller(region, Decline(reason, "for a test"), ())
    yield from lighter(region, [n.name for n in region.nodes])


def told(graph: Graph) -> list[str]:
    """What a graph's regions and the smaller ones read, compute and write, why others are none, and how much
    memory they may take."""
    memory, found = Timeline(graph), list(find_regions(graph))
    assert found
    subregions = [subregion for one in found if isinstance(one, Region) for subregion in moves(one)]
    further = [subregion for one in subregions for subregion in moves(one)]
    return [str(one) for one in (memory.stock, memory.fused, *found, *subregions, *further)]


@pytest.mark.parametrize("name", MADE)
def test_the_same_is_found_in_any_order_of_sets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    for seed in range(ORDERS):
        numbers = random.Random(seed)

        def number(node: Node, numbers: random.Random = numbers) -> int:
            return node.__dict__.setdefault("number", numbers.getrandbits(60))

        with monkeypatch.context() as patch:
            patch.setattr(Node, "__hash__", number)
            orders.append(told(MADE[name]()))
    assert all(order == orders[0] for order in orders)
