"""Reductions over blocks that could be scales of blocks, but are in no region, and results that could be
transposed but for sizes that are not known: the reason why not.

Looks for them as `tile.py` does, with blocks of other lengths, tensors of symbolic sizes by those that they
were traced with, and tensors that do not lie row by row. A block is a part of a dim of the tensor that it
comes from: pooling, heads and groups of channels are none, nor is what runs along rows alone.

So are reductions along rows and over rows of the same elements that are in no region together, such as a
variance over rows beside a sum along them.

Takes the FX graph that is left; yields a `Decline` for each group. Changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

import torch
from torch.fx import Graph, Node

from ..errors import Decline, DeclineReason
from .axes import Reduced, is_inner_like, is_outer_like
from .nodes import (
    EXTREMA,
    fake,
    is_bit_view,
    is_pair,
    is_pointwise,
    is_variance,
    operands,
    reduced,
    reduced_dims,
    shape_of,
    stated_by,
)
from .orders import Orders
from .provenance import about
from .sizes import Size, product
from .space_analysis import SpaceAnalysis
from .tile import block_lengths, block_reductions, full_sources, is_row_major, is_within_tile
from .transposed import has_known_sizes, may_be_transposed, traced_shape, transposed_seed
from .walk import by_position, needed_for, position

PLACES = (torch.ops.aten.argmax.default, torch.ops.aten.argmin.default)
LEAST, MOST = 8, 1024  # elements along one axis of what may be meant as a block


def near_misses(graph: Graph, answered: Collection[Node]) -> Iterator[Decline]:
    """Yield the reason against each group of reductions over blocks, except where one has an answer; against
    each result that could be transposed; and what keeps casts outside of a region."""
    seen, swept = set(answered), set[Node]()
    for node in graph.nodes:
        if node in seen or not _may_be_over_blocks(node):
            continue
        sources = full_sources(node, traced_shape)
        roots = [n for n in sources if is_row_major(n)] or sources
        if not roots or roots[0] in swept:
            continue
        swept.add(root := roots[0])
        reductions = _group(root)
        if reductions and seen.isdisjoint(reductions) and (decline := _reason(root, reductions)) is not None:
            yield about(decline, by_position(reductions))
        seen.update(reductions)
    for node in graph.nodes:
        if may_be_transposed(node) and not has_known_sizes(node) and transposed_seed(node):
            sizes = " x ".join(map(str, shape_of(node) or ()))
            detail = f"a transposed result of {sizes}, of which every size must be known"
            yield about(Decline(DeclineReason.DYNAMIC_SHAPE, detail, node.name), [node])
    if answered:
        yield from _casts_of_exponents(graph)
    yield from _unpaired(graph, answered)


def _unpaired(graph: Graph, answered: Collection[Node]) -> Iterator[Decline]:
    """Yield the reason against two reductions over different axes of one tensor's elements, where one of them
    has no answer. What has got one is not told of again."""
    analyses: dict[Size, SpaceAnalysis] = {}
    sides: dict[tuple[Size, Node], tuple[list[Node], list[Node]]] = {}
    for node in graph.nodes:
        what = _reduced_or_sought(node)
        if what is None or not (numel := product(what.shape)):
            continue
        is_outer = is_outer_like(what)
        if is_outer or is_inner_like(what):
            for leaf in by_position(analyses.setdefault(numel, SpaceAnalysis(numel)).leaves(node)):
                sides.setdefault((numel, leaf), ([], []))[is_outer].append(node)
    seen = set(answered)
    for inner, outer in sides.values():
        for both in itertools.product(inner, outer):
            if not seen.issuperset(both) and (decline := _why_not(*both, seen)) is not None:
                seen.update(both)
                yield about(decline, both)


def _reduced_or_sought(node: Node) -> Reduced | None:
    """What a reduction reduces, or an operator that gives the places of maxima or minima."""
    if not _gives_places(node):
        return reduced(node)
    shape = shape_of(operands(node)[0])
    return None if shape is None else Reduced(shape, reduced_dims(node))


def _gives_places(node: Node) -> bool:
    return node.target in PLACES or (node.target in EXTREMA and not is_pair(node))


def _operator(node: Node) -> str:
    return str(stated_by(node).target).split(".")[1]


def _why_not(inner: Node, outer: Node, seen: Collection[Node]) -> Decline | None:
    """Why no region has two reductions, of which one or none has been `seen` in a region or a reason."""
    both = f"{_operator(inner)} along rows and {_operator(outer)} over rows of the same elements"
    for node in (inner, outer):
        if _gives_places(node) and node not in seen:
            detail = f"{both}: the kernels give no indices of maxima"
            return Decline(DeclineReason.UNSUPPORTED_OP, detail, node.name)
    if is_variance(outer) and outer not in seen:
        detail = f"{both}: a variance over rows takes their mean first, and so a second read"
        return Decline(DeclineReason.UNSUPPORTED_OP, detail, outer.name)
    for first, second in ((inner, outer), (outer, inner)):
        if inner not in seen and outer not in seen and first in needed_for([second], since=position(first)):
            detail = f"{both}: one is computed from the other, and they share no region"
            return Decline(DeclineReason.CYCLE, detail, second.name)
    return None


def _casts_of_exponents(graph: Graph) -> Iterator[Decline]:
    """Yield the reason against casts from and to a dtype of exponents, for which Inductor has no loop: what
    follows from such a scale is not fused. A view as that dtype costs nothing."""
    for node in graph.nodes:
        values = [fake(n) for n in (node, *operands(node))] if is_pointwise(node) else []
        if not is_bit_view(node) and any(v is not None and v.dtype == torch.float8_e8m0fnu for v in values):
            detail = "a cast of torch.float8_e8m0fnu: shift an exponent in uint8, and view that as e8m0"
            yield about(Decline(DeclineReason.UNSUPPORTED_DTYPE, detail, node.name), [node])
            return


def _group(root: Node) -> list[Node]:
    """The reductions over parts of the dims of `root`."""
    orders = Orders(root, traced_shape)

    def is_over_blocks(node: Node) -> bool:
        if not _may_be_over_blocks(node) or operands(node)[0] not in orders:
            return False
        factors = orders.reduced(node)
        return len(factors) == len(_lengths(node)) and all(map(orders.is_within_dim, factors))

    return block_reductions(root, orders, is_over_blocks)


def _may_be_over_blocks(node: Node) -> bool:
    """Whether a node is a reduction over one or two runs of dims of a block's length."""
    lengths = _lengths(node)
    return len(lengths) in (1, 2) and all(isinstance(n, int) and LEAST <= n <= MOST for n in lengths)


def _lengths(node: Node) -> list[Size]:
    """Elements of each run of dims that a node reduces, as traced; none if it is no reduction."""
    what = reduced(node)
    shape = None if what is None else traced_shape(operands(node)[0])
    return [] if what is None or shape is None else block_lengths(Reduced(shape, what.dims))


def _reason(root: Node, reductions: list[Node]) -> Decline | None:
    for node in reductions:
        shape = shape_of(operands(node)[0]) or ()
        if not all(isinstance(n, int) for n in shape):
            sizes = " x ".join(map(str, shape_of(root) or ()))
            detail = f"blocks of a tensor of {sizes}, of which every size must be known"
            return Decline(DeclineReason.DYNAMIC_SHAPE, detail, node.name)
    for node in reductions:
        if not is_within_tile(node):
            sizes = " x ".join(map(str, _lengths(node)))
            detail = f"blocks of {sizes} elements; 16, 32, 64 and 128 are supported"
            return Decline(DeclineReason.AXIS_CLASS, detail, node.name)
    if not is_row_major(root):
        sizes = " x ".join(map(str, shape_of(root) or ()))
        detail = f"blocks of a tensor of {sizes}, which is not row-major"
        return Decline(DeclineReason.LAYOUT, detail, reductions[0].name)
    return None
