"""Seeds without reductions: results that lie in memory in another order than what they are computed from.

Such as a tensor that is cast with scales of its columns, and stored transposed: the scales need all rows, so
they are computed before. Only elements of one byte are taken. Inductor's tiles of such a kernel are 32 x 32,
64 x 64, 16 x 256 or 256 x 16 elements: of one byte, none has runs of 128 bytes both ways. What Inductor may
store in the order of its inputs is no transposition: something has to read the order that the graph states.

Takes the FX graph; finds seeds for `grow`. Reads the graph, never writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.fx import Node

from .axes import Space
from .factors import Factor, Order, boundaries, flat, joined
from .layouts import has_stated_order, is_computed_by_loops
from .nodes import fake, is_pointwise, operands, reduced, shape_of
from .orders import Orders, is_loop
from .sizes import Size, product
from .space_analysis import SpaceAnalysis
from .tile import TileSeed, above
from .walk import by_position, following, needed_for, position

CAST = torch.ops.prims.convert_element_type.default
LEAST_RUN = 16  # elements next to each other: with fewer, a sector has elements of several runs


def may_be_transposed(node: Node) -> bool:
    """Whether a node is pointwise, has elements of one byte, and is stored in the order that it states."""
    val = fake(node)
    narrow = val is not None and val.dtype.itemsize == 1
    return narrow and is_pointwise(node) and has_stated_order(node)


def has_known_sizes(node: Node) -> bool:
    """Whether no size or stride of a node's tensor is symbolic."""
    val = fake(node)
    return val is not None and all(isinstance(n, int) for n in (*val.shape, *val.stride()))


def transposed_seed(node: Node) -> TileSeed | None:
    """The seed of a result that is transposed; None if it is not, or Inductor computes it beside a reduction.
    Symbolic sizes are those that the graph was traced with: such a seed is not to be grown."""
    loops, ends = _split(above([node]))
    loops.add(node)
    analysis = SpaceAnalysis(product(shape_of(node) or ()))
    full = by_position(n for n in ends if analysis.is_full(n))
    if not full or any(map(is_computed_by_loops, full)):
        return None
    if any(map(analysis.refusal, ends)) or has_known_sizes(node) != all(map(has_known_sizes, ends)):
        return None
    orders = _orders(full[0], loops)
    if not all(n in orders and orders.agrees(n) for n in by_position(loops)):
        return None
    if not any(is_transposed(node, source, orders) for source in full):
        return None
    if any(_is_fused_with_loops(n, full[0]) for n in ends):
        return None
    early = needed_for(ends, since=position(full[0]))
    results = [n for n in sibling_results(full, orders, analysis) if n is not node and n not in early]
    # What belongs to a row or a column is computed once, not in each tile; a cast costs less than a launch.
    small = {n for n in (*loops, *above(results)) if is_pointwise(n) and not analysis.is_full(n)}
    without = frozenset(n for n in small if n.target is not CAST and product(shape_of(n) or ()) != 1)
    return TileSeed(analysis, Space(()), (), (), root=full[0], results=(node, *results), without=without)


def sibling_results(full: Sequence[Node], orders: Orders, analysis: SpaceAnalysis) -> Iterator[Node]:
    """The results of full size that something reads in memory, and that loops compute from the tensors in
    `full` and smaller ones: Inductor stores them in the same kernel."""
    inside = set(full)
    for node in following(full[0].next):
        args = operands(node)
        if is_loop(node) and analysis.is_full(node) and not inside.isdisjoint(args):
            smaller = [a for a in args if a not in inside]
            known = (*smaller, *above(smaller))
            free = not any(analysis.is_full(n) or _is_fused_with_loops(n, full[0]) for n in known)
            if free and orders.find(node) and orders.agrees(node):
                inside.add(node)
                if is_pointwise(node) and analysis.is_written_anyway(node):
                    yield node


def _split(nodes: Iterable[Node]) -> tuple[set[Node], set[Node]]:
    """The nodes that are loops, and the others."""
    loops = set(filter(is_loop, nodes))
    return loops, set(nodes) - loops


def _orders(root: Node, loops: Iterable[Node]) -> Orders:
    return Orders(root, traced_shape).spread(loops)


def traced_shape(node: Node) -> tuple[Size, ...] | None:
    """The shape of a node, with the sizes that symbols had when the graph was traced."""
    val = fake(node)
    return None if val is None or shape_of(node) is None else _traced(val.shape)


def _traced(sizes: Iterable[int | torch.SymInt]) -> tuple[int, ...] | None:
    traced = [n if isinstance(n, int) else n.node.hint for n in sizes]
    return None if None in traced else tuple(map(int, traced))


def innermost(node: Node, order: Order) -> Factor | None:
    """The factor of the elements that lie next to each other in memory; None if none do."""
    val = fake(node)
    assert val is not None
    shape, strides = _traced(val.shape), _traced(val.stride())
    if shape is None or strides is None:
        return None
    run, following = list[Factor](), 1
    for stride, d in sorted((stride, d) for d, stride in enumerate(strides) if shape[d] != 1):
        if stride != following:
            break
        run[:0] = order[d]
        following *= shape[d]
    factors = joined(run)
    return factors[-1] if factors else None


def is_transposed(node: Node, source: Node, orders: Orders) -> bool:
    """Whether other elements lie next to each other in a result than in a tensor that it is computed from,
    and enough of them either way."""
    if source not in orders:
        return False
    result_factor, source_factor = (innermost(n, orders[n]) for n in (node, source))
    if result_factor is None or source_factor is None or result_factor.stride == source_factor.stride:
        return False
    cuts = boundaries((*flat(orders[node]), *flat(orders[source])))
    runs = (
        min(cut for cut in cuts if cut > run.stride) // run.stride for run in (result_factor, source_factor)
    )
    return min(runs) >= LEAST_RUN


def _is_fused_with_loops(node: Node, root: Node) -> bool:
    """Whether a node is a reduction of what is computed from `root`, and Inductor's kernel for it also has
    what is computed from its result: it is over whole rows or blocks, and not over all rows or elements."""
    what = reduced(node)
    if what is None or product(what.shape) != product(shape_of(root) or ()):
        return False
    orders = _orders(root, _split(above([node]))[0])
    if operands(node)[0] not in orders:
        return True
    run = orders.reduced(node)
    return len(run) != 1 or run[0].end != orders.size_of(root)
