"""The moves of the search for a region (`search.py`): it leaves nodes to Inductor, or computes what it read.

A move changes the seed, and `grow` decides what else stays. Takes a region, gives others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import torch
from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..inductor.graphs import TWO_MASKS
from .gathers import is_gather, is_made_of_pieces
from .grow import grow
from .nodes import (
    float_bytes,
    is_pointwise,
    is_view,
    operands,
    readers,
    reduced_tensor,
    unviewed,
)
from .region import Region, Seed
from .space_analysis import SMALL
from .walk import ancestors, dependents

# The reasons that hold for all of a region's nodes, and may not hold for fewer.
TOO_LARGE = (
    DeclineReason.ROW_TOO_WIDE,
    DeclineReason.TOO_MANY_LIVE_TILES,
    DeclineReason.MEMORY,
    DeclineReason.ORDER,
)


def less(region: Region, nodes: Collection[Node]) -> Region | None:
    """The region that does not compute some nodes: what depends on them is left to Inductor if they are
    reductions, and else reads them. None if no region is left, or it has none of them."""
    seed, rest = region.seed, region.seed.less(frozenset(nodes))
    if not (rest.inner if seed.inner else rest.outer) or set(region.nodes).isdisjoint(nodes):
        return None
    subregion = _grown(rest, region.name)
    return subregion if subregion is not None and set(subregion.nodes) < set(region.nodes) else None


def with_recomputed(region: Region, nodes: Collection[Node]) -> Region | None:
    """The region that computes some nodes as often as loops outside do, instead of reading or writing them.
    None if it would read and write the same."""
    seed = region.seed
    rest = dataclasses.replace(
        seed, without=seed.without.difference(nodes), must_recompute=seed.must_recompute.union(nodes)
    )
    subregion = _grown(rest, region.name) if nodes else None
    same = subregion is None or (subregion.nodes, subregion.outputs) == (region.nodes, region.outputs)
    return None if same else subregion


def _grown(seed: Seed, name: str) -> Region | None:
    try:
        return grow(seed, name)
    except Decline:
        return None


def smaller(region: Region, why: Decline, stored: Collection[Node]) -> list[Region]:
    """What to try instead of a region that is refused. `stored`: nodes that have memory without it."""
    regions: list[Region | None] = []
    if why.reason is DeclineReason.UNSUPPORTED_OP:
        regions += [less(region, {n for n in region.nodes if n.name == why.node_name})]
    if why.reason in TOO_LARGE:
        regions += (less(region, nodes) for nodes in dict.fromkeys(_left_out(region, why.reason)))
    if why.reason is DeclineReason.MEMORY:
        regions += _recomputing(region, stored)
    elif not any(regions):
        regions += [less(region, set(filter(is_gather, region.nodes)))]
    return list(filter(None, regions))


def _left_out(region: Region, why: DeclineReason) -> Iterator[frozenset[Node]]:
    """What may be left out of a region that is too large."""
    if why in (DeclineReason.MEMORY, DeclineReason.ORDER):
        yield frozenset(_read_alike(region))
        tensors = _by_tensor(region)
        every = frozenset().union(*tensors)
        yield from (nodes for reductions in tensors for nodes in (every - reductions, reductions))
    if why is DeclineReason.ROW_TOO_WIDE:
        yield frozenset(_last_steps(region))
    yield from (frozenset({n}) for n in (*region.outer, *region.inner))
    yield frozenset(_behind_inner(region))


def _read_alike(region: Region) -> set[Node]:
    """The results that no reduction needs or gives, which the region has only since it reads what they are
    computed from."""
    used = dependents((*region.inner, *region.outer), region.nodes).union(*map(operands, region.nodes))
    return set(region.outputs) - used


def _by_tensor(region: Region) -> list[frozenset[Node]]:
    """The reductions of each tensor, such as those of its rows and those of its columns: between a tensor and
    its reductions are operators of one operand."""
    by_tensor = dict[Node, set[Node]]()
    for reduction in (*region.outer, *region.inner):
        source = reduction
        while len(args := operands(source)) == 1:
            source = args[0]
        by_tensor.setdefault(source, set()).add(reduction)
    return list(map(frozenset, by_tensor.values()))


def _last_steps(region: Region) -> set[Node]:
    """The reductions of small results that no element needs, such as the last steps of the gradients of a
    norm's parameters."""
    full = region.seed.analysis.is_full
    small = (n for n in region.outer if not full(reduced_tensor(n)))
    return {n for n in small if not any(map(full, dependents([n], region.nodes)))}


def _behind_inner(region: Region) -> set[Node]:
    """The full-size members that depend on an inner reduction, other than what further reductions need: a
    program holds what they use from that reduction on."""
    needed = set().union(*(region.seed.analysis.above(n) for n in (*region.inner, *region.outer)))
    below = dependents(region.inner, region.nodes).difference(region.inner, needed)
    return set(filter(region.seed.analysis.is_full, below))


def _recomputing(region: Region, stored: Collection[Node]) -> Iterator[Region | None]:
    """The region without the results that Inductor's loops recompute as well, and the region that
    computes its inputs from what is in memory: read, they are held from the forward that is recomputed to
    the region."""
    fusible = region.seed.analysis.fusible
    results = set(region.outputs).difference(stored)
    inputs = set(ancestors(region.inputs, lambda n: n not in stored and fusible(n)))
    yield from (with_recomputed(region, nodes) for nodes in (results, inputs, results | inputs))


def reading_masks(region: Region) -> Region | None:
    """The region as Inductor's kernels compute it, which read masks; None if it computes none."""
    return less(region, {n for n in region.nodes if n.meta.get(TWO_MASKS)})


def lighter(region: Region, heavy: Collection[str]) -> list[Region]:
    """Regions of the same reductions that compute less for each element, and read instead what is left
    outside: small tables that the nodes named in `heavy` are computed for, small pieces of a tensor that is
    put together, or the results of all gathers."""
    ways = _tables(region, heavy), _small_pieces(region), set(filter(is_gather, region.nodes))
    candidates = (candidate for way in ways if (candidate := less(region, way)) is not None)
    return [
        candidate
        for candidate in candidates
        if (candidate.inner, candidate.outer) == (region.inner, region.outer)
    ]


def _tables(region: Region, heavy: Collection[str]) -> set[Node]:
    """The tensors behind nodes named in `heavy` that are spread over `SMALL` times as many elements, such as
    the sines of positions over all heads, before they are rounded."""
    members = set(region.nodes)
    below = dependents((*region.inner, *region.outer), region.nodes)
    named = {n for n in region.nodes if n.name in heavy}
    behind = dependents(named - below, (n for n in region.nodes if n not in below))

    def is_spread(node: Node) -> bool:
        loops = (u for u in readers(node) if u in members and is_pointwise(u))
        return any(_is_few(region, node, u) for u in loops)

    return {_unrounded(n) for n in behind if not is_view(n) and is_spread(n)}


def _small_pieces(region: Region) -> set[Node]:
    """Pieces that the region computes for each element of the whole, which has `SMALL` times as many."""
    pairs = ((n, unviewed(p)) for n in filter(is_made_of_pieces, region.nodes) for p in operands(n))
    computed = ((n, piece) for n, piece in pairs if piece in region.nodes and is_pointwise(piece))
    return {piece for whole, piece in computed if _is_few(region, piece, whole)}


def _is_few(region: Region, node: Node, of: Node) -> bool:
    """Whether another node has `SMALL` times as many elements."""
    analysis = region.seed.analysis
    few, many = analysis.size(node), analysis.size(of)
    return few is not None and many is not None and analysis.is_at_most(SMALL * few, many)


def _unrounded(node: Node) -> Node:
    """What a cast to half precision rounds, or any other node itself. Inductor rounds no value between two
    operators of a kernel, and a region that reads the value as rounded is less exact. H100, the gradient of a
    QK-norm's weight: 2.1e-3 with rotary embeddings in bfloat16, by Inductor's kernel 1.7e-3."""
    size = float_bytes(node)
    if node.target is not torch.ops.prims.convert_element_type.default or not 0 < size < 4:
        return node
    source = unviewed(operands(node)[0])
    return source if float_bytes(source) > size else node
