"""A tile's region, cut at the tensor in front of its reductions, where that needs values of whole rows.

Such as a norm's backward in front of block-wise casts: the sums of whole rows come from a kernel of their
own, which has all operands of dx at hand. It can write dx, so that the tile reads one tensor instead of
computing dx again from several.

Takes a region, gives another. `grow` decides what else stays.
"""

from __future__ import annotations

import dataclasses

from torch.fx import Node

from ..errors import Decline
from .grow import grow
from .nodes import fake, is_pointwise, operands, reduced_tensor, reduction_kind
from .region import Region
from .tile import TileSeed, above
from .walk import ancestors, dependents


def behind_row_values(region: Region) -> tuple[Region, Node] | None:
    """The region that reads the tensor in front of the reductions, and that tensor; None where no value of a
    whole row is computed for it, or the reductions have no one tensor in front of them."""
    seed = region.seed
    if not isinstance(seed, TileSeed) or not (seed.inner or seed.outer):
        return None
    if not any(is_of_rows(node, region) for node in region.inputs):
        return None
    if (tensor := _in_front(region)) is None:
        return None
    try:
        rest = grow(dataclasses.replace(seed, without=seed.without | {tensor}), region.name)
    except Decline:
        return None
    kept = set(rest.nodes).issuperset((*seed.inner, *seed.outer))
    return (rest, tensor) if kept and tensor in rest.inputs else None


def is_of_rows(node: Node, region: Region) -> bool:
    """Whether an input is computed from a reduction of one of the region's full tensors."""
    analysis = region.seed.analysis
    if analysis.is_full(node):
        return False
    full = {n for n in region.inputs if analysis.is_full(n)}
    reductions = [n for n in (node, *above([node])) if reduction_kind(n) is not None]
    tensors = [t for n in reductions if (t := reduced_tensor(n)) is not None]
    return any(not full.isdisjoint((t, *above([t]))) for t in tensors)


def _in_front(region: Region) -> Node | None:
    """The member from which alone, of all full tensors, the reductions and what depends on them are computed:
    of the narrowest elements, the last one."""
    seed, analysis = region.seed, region.seed.analysis
    below = dependents((*seed.inner, *seed.outer), region.nodes)
    above_all = [n for n in region.nodes if n not in below and analysis.is_full(n) and is_pointwise(n)]
    alone = [n for n in above_all if _is_alone(n, below, region)]
    return min(reversed(alone), key=_width, default=None)


def _is_alone(tensor: Node, below: set[Node], region: Region) -> bool:
    """Whether nothing below reads a full tensor but through this one."""
    members = {*region.nodes, *below} - {tensor}
    reads = (a for n in ancestors(below, members.__contains__) for a in operands(n))
    return not any(region.seed.analysis.is_full(n) for n in reads if n not in members and n is not tensor)


def _width(node: Node) -> int:
    val = fake(node)
    assert val is not None
    return val.dtype.itemsize
