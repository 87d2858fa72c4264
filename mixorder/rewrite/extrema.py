"""Maxima and minima of all elements of a tensor, in two steps: of each column first, then of those.

The first step is a reduction over the rows, as a pair's outer one, and may be computed where a region has the
tensor at hand. The second one reads a single row. No result differs: a maximum has the same bits in whatever
order it is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.fx import Graph, Node

from ..region.axes import Size, product
from ..region.nodes import fake, reduced_dims, shape_of

aten = torch.ops.aten
_OF_ROWS = {
    aten.amax.default: aten.amax.default,
    aten.max.default: aten.amax.default,
    aten.amin.default: aten.amin.default,
    aten.min.default: aten.amin.default,
}


@contextlib.contextmanager
def extrema_in_two_steps(graph: Graph) -> Iterator[frozenset[Node]]:
    """Divide the maxima and minima of all elements while regions are looked for. Gives the first steps, which
    may join a region. At the end those that none has taken are undone, and the graph is as it was."""
    firsts: dict[Node, Node] = {}  # by the second step
    try:
        for node in list(graph.nodes):
            if (kept := _columns(node)) is not None:
                firsts[node] = _divided(graph, node, kept)
        yield frozenset(firsts.values())
    finally:
        for node, first in firsts.items():
            if node.args and node.args[0] is first:
                node.update_arg(0, first.args[0])
                graph.erase_node(first)


def _columns(node: Node) -> int | None:
    """The dim of the columns of a tensor that a node takes the maximum or minimum of; None if the node does
    anything else, or the tensor has no rows."""
    if node.target not in _OF_ROWS or not isinstance(node.args[0], Node):
        return None
    val, shape = fake(node.args[0]), shape_of(node.args[0])
    if val is None or not shape or len(reduced_dims(node)) < len(shape):
        return None
    long = [d for d, n in enumerate(shape) if n != 1]
    columns = [d for d in long if val.stride(d) == 1]
    return columns[0] if len(long) > 1 and columns and product(shape) != 0 else None


def _divided(graph: Graph, node: Node, kept: int) -> Node:
    """Put the reduction over all other dims before a node, which then reduces that one's result."""
    source = node.args[0]
    assert isinstance(source, Node)
    val = fake(source)
    assert val is not None
    dims = [d for d in range(val.ndim) if d != kept]
    with graph.inserting_before(node):
        first = graph.call_function(_OF_ROWS[node.target], (source, dims, True))  # type: ignore[index]
    first.meta.update({k: v for k, v in node.meta.items() if k != "val"})
    shape: list[Size | torch.SymInt] = [n if d == kept else 1 for d, n in enumerate(val.shape)]
    with val.fake_mode:  # type: ignore[attr-defined]
        first.meta["val"] = val.new_empty(shape)
    node.update_arg(0, first)
    return first
