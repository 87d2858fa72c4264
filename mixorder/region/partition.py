"""Smaller regions, for a region that needs more registers or memory than there is.

A program holds a value from one reduction to the next for one of two reasons: the next reduction accumulates
it, or a node behind that reduction uses it. So a smaller region leaves out either one reduction and all that
depends on it, or all full-size nodes behind the inner reductions.

Takes a region, gives others. `grow` decides what else stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import torch
from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..inductor.graphs import TWO_MASKS
from .gathers import COPIES, is_gather
from .grow import grow
from .nodes import (
    float_bytes,
    is_constant,
    is_pointwise,
    is_view,
    operands,
    readers,
    reduced_tensor,
    unviewed,
)
from .region import Region, Seed
from .space_analysis import SMALL
from .tile import TileSeed
from .walk import ancestors, dependents


def partition(region: Region) -> list[Region]:
    """The regions that `region` can be reduced to: each still has an outer reduction, and an inner one if
    `region` has one."""
    found = []
    behind = frozenset(_behind_inner(region))
    for without in (*({n} for n in (*region.outer, *region.inner)), behind):
        if without and (part := _smaller(region, frozenset(without))) is not None:
            found.append(part)
    return found


def without_last_steps(region: Region) -> Region | None:
    """The region without the reductions of small results that no element needs, such as the last steps of the
    gradients of a norm's parameters; None if it has none."""
    full = region.seed.analysis.is_full
    small = (n for n in region.outer if not full(reduced_tensor(n)))
    last = {n for n in small if not any(map(full, dependents([n], region.nodes)))}
    return _smaller(region, frozenset(last)) if last else None


def leaner(region: Region, stored: Collection[Node]) -> list[Region]:
    """The region, and those of the reductions of one tensor, without the results that Inductor's loops would
    compute again as well: all but `stored`."""
    parts = (_smaller(region, frozenset(others)) for others in _other_tensors(region))
    found = []
    for part in filter(None, (region, *parts)):
        again = frozenset(part.outputs).difference(stored)
        one = _grown(dataclasses.replace(part.seed, again=again), region.name)
        if one is not None and set(one.outputs) < set(part.outputs):
            found.append(one)
    return found


def without_others(region: Region) -> Region | None:
    """A pair's region without the results that none of its reductions needs or gives, which it has only since
    it reads what they are computed from; None if it has no such result."""
    own = dependents((*region.inner, *region.outer), region.nodes).union(*map(operands, region.nodes))
    return _without(region, set(region.outputs) - own) if region.inner else None


def computing_inputs(region: Region, stored: Collection[Node]) -> Region | None:
    """The region that computes its inputs from what is in memory, those that Inductor's loops compute again
    as well: all but `stored`. Read, they are held from the forward that is recomputed to the region. None if
    it has no such input."""
    seed = region.seed
    if isinstance(seed, TileSeed):
        return None
    again = frozenset(ancestors(region.inputs, lambda n: n not in stored and seed.analysis.fusible(n)))
    part = _grown(dataclasses.replace(seed, without=seed.without - again, again=again), region.name)
    return part if part is not None and set(part.nodes) > set(region.nodes) else None


def _other_tensors(region: Region) -> Iterator[set[Node]]:
    """For each tensor that is reduced along rows and along columns, the reductions of all others."""
    tensors = {n: reduced_tensor(n) for n in (*region.outer, *region.inner)}
    for tensor in dict.fromkeys(tensors[n] for n in region.outer):
        if any(tensors[n] is tensor for n in region.inner):
            yield {n for n, other in tensors.items() if other is not tensor}


def _smaller(region: Region, without: frozenset[Node]) -> Region | None:
    """The region that does without some nodes; None if none is left that is smaller."""
    seed, rest = region.seed, region.seed.less(without)
    if not (rest.inner if seed.inner else rest.outer):
        return None
    part = _grown(rest, region.name)
    return part if part is not None and set(part.nodes) < set(region.nodes) else None


def without_gathers(region: Region) -> Region | None:
    """The region that reads the results of its gathers instead of computing them; None if it has none."""
    return _without(region, set(filter(is_gather, region.nodes)))


def with_stored_masks(region: Region) -> Region | None:
    """The region as Inductor's kernels compute it, which read masks; None if it computes none."""
    return _without(region, {n for n in region.nodes if n.meta.get(TWO_MASKS)})


def lighter(region: Region, heavy: Collection[str]) -> list[Region]:
    """Regions that compute less for each element, and read instead what is left outside: small tables that
    the nodes named in `heavy` are computed for, as they are before and after they are rounded, also the
    pieces that copying gathers put together, or the results of all gathers."""
    members = set(region.nodes)
    copies = (n for n in region.nodes if n.target in COPIES and is_gather(n))
    pieces = {unviewed(a) for n in copies for a in operands(n)} & members
    pieces = {n for n in pieces if not (is_gather(n) or is_constant(n))}
    tables = _tables(region, heavy)
    found: list[Region] = []
    exact = set(map(unrounded, tables))
    for way in (exact, tables, tables | pieces, set(filter(is_gather, region.nodes))):
        part = _without(region, way)
        if part is not None and (part.inner, part.outer) == (region.inner, region.outer):
            found.append(part)
    return list({part.nodes: part for part in found}.values())


def _tables(region: Region, heavy: Collection[str]) -> set[Node]:
    """The tensors behind nodes named in `heavy` that are spread over `SMALL` times as many elements, such as
    the sines of positions over all heads."""
    analysis, members = region.seed.analysis, set(region.nodes)
    below = dependents((*region.inner, *region.outer), region.nodes)
    named = {n for n in region.nodes if n.name in heavy}
    behind = dependents(named - below, (n for n in region.nodes if n not in below))

    def is_spread(node: Node) -> bool:
        loops = (u for u in readers(node) if u in members and is_pointwise(u))
        sizes = [(analysis.size(node), analysis.size(u)) for u in loops]
        return any(few and many and analysis.is_at_most(SMALL * few, many) for few, many in sizes)

    return {n for n in behind if not is_view(n) and is_spread(n)}


def unrounded(node: Node) -> Node:
    """What a cast to half precision rounds, or any other node itself. Inductor rounds no value between two
    operators of a kernel, and a region that reads the value as rounded is less exact. H100, the gradient of a
    QK-norm's weight: 2.1e-3 with rotary embeddings in bfloat16, by Inductor's kernel 1.7e-3."""
    size = float_bytes(node)
    if node.target is not torch.ops.prims.convert_element_type.default or not 0 < size < 4:
        return node
    source = unviewed(operands(node)[0])
    return source if float_bytes(source) > size else node


def without_culprit(region: Region, decline: Decline) -> Region | None:
    """The region without the operator that cannot be lowered. None if it was declined for another reason, or
    if no smaller region is left."""
    if decline.reason is not DeclineReason.UNSUPPORTED_OP:
        return None
    culprit = frozenset(n for n in region.nodes if n.name == decline.node_name)
    return _smaller(region, culprit) if culprit else None


def _behind_inner(region: Region) -> Iterator[Node]:
    """The full-size members that depend on an inner reduction, other than what further reductions need."""
    needed = set().union(*(region.seed.analysis.above(n) for n in (*region.inner, *region.outer)))
    below = dependents(region.inner, region.nodes).difference(region.inner, needed)
    return filter(region.seed.analysis.is_full, below)


def _without(region: Region, nodes: set[Node]) -> Region | None:
    """The region that reads some nodes instead of computing them; None if there are none, or it has none."""
    return _grown(region.seed.less(nodes), region.name) if nodes else None


def _grown(seed: Seed, name: str) -> Region | None:
    try:
        return grow(seed, name)
    except Decline:
        return None
