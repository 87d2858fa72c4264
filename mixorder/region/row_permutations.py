"""Permutations of rows behind a region's reductions, such as of heads and tokens.

What lies behind a row permutation is computed where its element is, and stored at another place: in the
layout that a copy for a matrix product has, for instance. Each node behind one has the place of its element
as a run of factors of the space. Nodes of different places do not meet in one node of a region: an element of
one would need a reduction of another row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch.fx import Node

from .factors import Factor, Run, divided, flat
from .gathers import is_gather
from .nodes import is_permutation, operands, shape_of
from .sizes import product


def is_row_permutation(node: Node) -> bool:
    """Whether a node puts whole rows in another order, and copies nothing."""
    return is_permutation(node) and is_gather(node)


def place_behind(node: Node, places: Iterable[Run]) -> Run | None:
    """The place of a node's element from those of the operands that depend on a reduction, in which nothing
    stands for the rows' own order; None where these differ, or a permuted dim is no run of factors."""
    place, *rest = dict.fromkeys(places)
    if rest or shape_of(node) is None:
        return None
    if not is_row_permutation(node):
        return place
    shape = shape_of(operands(node)[0]) or ()
    order = divided(place or (Factor(1, product(shape)),), shape)
    return None if order is None else flat(tuple(order[d] for d in node.args[1]))  # type: ignore[index,union-attr,misc]


def permuted_places(nodes: Iterable[Node], reductions: Iterable[Node]) -> Mapping[Node, Run]:
    """The place of the element of each node behind a row permutation. `nodes`: of a region, in graph
    order."""
    places: dict[Node, Run] = dict.fromkeys(reductions, ())
    for node in nodes:
        if live := [a for a in operands(node) if a in places]:
            place = place_behind(node, map(places.__getitem__, live))
            assert place is not None
            places[node] = place
    return {node: place for node, place in places.items() if place}
