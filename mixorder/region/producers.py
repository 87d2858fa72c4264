"""A tile's region together with the values of whole rows that its tiles need.

Such as a norm's backward in front of block-wise casts: a tile needs sums of whole rows, which are wider than
it. Other programs of the same kernel compute them, the producers (`transform.producers`).

Takes a region, gives a larger one. Reads the graph, never writes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torch.fx import Node

from ..errors import Decline
from ..ir.program import AxisClass
from .nodes import is_relative, operands, reduced_tensor, reduction_kind
from .orders import Orders, is_loop
from .region import Region
from .tile import TileSeed, above
from .walk import ancestors, by_position


def with_row_values(region: Region) -> Region | None:
    """The region that also computes what it reads of whole rows; None where it reads nothing of the kind, or
    this would read another full tensor, or nodes outside use such a value as well."""
    seed = region.seed
    if not isinstance(seed, TileSeed) or region.orders is None:
        return None
    values = [node for node in region.inputs if _is_of_rows(node, region)]
    if not values:
        return None
    orders = Orders(seed.root)
    orders.update(region.orders)
    computed = _computed(values, region, orders)
    if computed is None or not computed.issuperset(values):
        return None
    members = computed.union(region.nodes)
    reductions = [n for n in by_position(computed) if reduction_kind(n) is not None]
    if not reductions or _is_used_elsewhere(computed, members, region):
        return None
    if not all(orders.find(n) and orders.agrees(n) for n in by_position(computed)):
        return None
    larger = dataclasses.replace(
        region,
        nodes=tuple(by_position(members)),
        inner=tuple(by_position((*region.inner, *reductions))),
        orders={n: orders[n] for n in orders if n in members or any(u in members for u in n.users)},
    )
    try:
        for read in larger.inputs:
            seed.analysis.check(read)
    except Decline:
        return None
    return larger


def _is_of_rows(node: Node, region: Region) -> bool:
    """Whether an input is computed from a reduction of one of the region's full tensors."""
    analysis = region.seed.analysis
    if analysis.is_full(node):
        return False
    full = {n for n in region.inputs if analysis.is_full(n)}
    reductions = [n for n in (node, *above([node])) if reduction_kind(n) is not None]
    tensors = [t for n in reductions if (t := reduced_tensor(n)) is not None]
    return any(not full.isdisjoint((t, *above([t]))) for t in tensors)


def _computed(values: Iterable[Node], region: Region, orders: Orders) -> set[Node] | None:
    """What the values are computed from, up to what the region reads anyway or what is small; None if they
    need another full tensor."""
    known = {*region.nodes, *region.inputs}.difference(values)
    computed = set(
        ancestors(values, lambda n: n not in known and (is_loop(n) or _is_over_rows(n, region, orders)))
    )
    reads = {a for n in computed for a in operands(n)} - computed - known
    return None if any(map(region.seed.analysis.is_full, reads)) else computed


def _is_over_rows(node: Node, region: Region, orders: Orders) -> bool:
    """Whether a node reduces whole rows, and leaves an element for each of them."""
    if reduction_kind(node) is None or is_relative(node):
        return False
    source = operands(node)[0]
    orders.spread({n for n in above([node]) if is_loop(n)}.union(region.nodes))
    if source not in orders or not orders.find(node):
        return False
    return orders.over(node) is AxisClass.COLUMN


def _is_used_elsewhere(computed: set[Node], members: set[Node], region: Region) -> bool:
    """Whether a value of fewer elements than the space has users outside, which would need it stored."""
    small = (n for n in computed if not region.seed.analysis.is_full(n))
    return any(user not in members for node in small for user in node.users if not _is_input(node, region))


def _is_input(node: Node, region: Region) -> bool:
    """Whether a value is computed from vectors alone, so that users outside recompute it."""
    return is_loop(node) and region.seed.analysis.recomputed(node)
