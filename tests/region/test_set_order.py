"""A graph's regions, and the smaller ones of each, are the same whatever the order of sets of its nodes."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator

import graphs
import pytest
from graphs import traced
from support.quantised import RECIPES
from torch.fx import Graph, Node

from mixorder.region.find import find_regions
from mixorder.region.partition import (
    computing_inputs,
    leaner,
    lighter,
    partition,
    with_stored_masks,
    without_gathers,
    without_others,
)
from mixorder.region.region import Region

ORDERS = 5
CASTS = ("norm_backward", "swiglu_backward", "gelu_delayed", "blocks_both")


def cast(name: str) -> Graph:
    recipe = RECIPES[name]
    return traced(lambda *args: recipe.function(*args), *recipe.like(4096, 4096))


MADE: dict[str, Callable[[], Graph]] = {
    **{name: functools.partial(cast, name) for name in CASTS},
    "layer norm": lambda: graphs.layer_norm_backward(4096, 4096),
    "group norm": lambda: graphs.group_norm_backward(8, 4096, 320, 32, bias=True),
}


def smaller(region: Region) -> Iterator[Region | None]:
    """All that the pipeline may take instead of a region, of it and of its parts."""
    for one in (region, *partition(region)):
        yield from (*partition(one), *leaner(one, ()), *lighter(one, [n.name for n in one.nodes]))
        yield from (
            without_others(one),
            computing_inputs(one, ()),
            without_gathers(one),
            with_stored_masks(one),
        )


def told(graph: Graph) -> list[str]:
    """What a graph's regions and the smaller ones read, compute and write."""
    found = [one for one in find_regions(graph) if isinstance(one, Region)]
    assert found
    return [str(one) for region in found for one in (region, *smaller(region))]


@pytest.mark.parametrize("name", MADE)
def test_regions_are_the_same_in_any_order_of_sets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    for seed in range(ORDERS):
        numbers = random.Random(seed)

        def number(node: Node, numbers: random.Random = numbers) -> int:
            return node.__dict__.setdefault("number", numbers.getrandbits(60))

        with monkeypatch.context() as patch:
            patch.setattr(Node, "__hash__", number)
            orders.append(told(MADE[name]()))
    assert all(order == orders[0] for order in orders)
