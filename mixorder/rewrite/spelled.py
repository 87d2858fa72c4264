"""Nodes that are spelled as the reductions that they are, while regions are looked for.

The largest of all elements is the largest of each column's largest: the first step is a reduction over the
rows, as a pair's outer one, and may be computed where a region has the tensor at hand. Every other element of
a tensor is a reduction over pairs of which one element is 0: a tile of blocks has both, and can pack them.
The largest of each row of `x.t()` is that of each column of `x`: a pair with the largest of its rows.

No result differs by a bit. What no region takes is spelled as it was at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ..ir.program import PACKED
from ..ir.reductions import AMAX
from ..region.axes import product
from ..region.nodes import (
    fake,
    is_pointwise,
    keeps_dims,
    operands,
    reduced,
    reduced_dims,
    reduction_kind,
    shape_of,
    stated_by,
)
from ..region.orders import is_permutation
from ..region.tile import is_within_tile

aten, prims = torch.ops.aten, torch.ops.prims
_OF_ROWS = {
    aten.amax.default: aten.amax.default,
    aten.max.default: aten.amax.default,
    aten.amin.default: aten.amin.default,
    aten.min.default: aten.amin.default,
}
_BYTES = (torch.uint8, torch.int8)


@dataclasses.dataclass(frozen=True)
class _Spelled:
    """A node that reads `made[-1]`, a reduction, and how it was spelled before. `joining`: no region is
    looked for that reduction."""

    node: Node
    made: tuple[Node, ...]
    before: tuple[Any, ...]
    joining: bool = True

    def end(self, graph: Graph) -> None:
        """Restore the node, unless it was erased or what it reads was taken; else erase what it read."""
        if self.node.args and self.node.args[0] is self.made[-1]:
            self.node.target, self.node.args, self.node.kwargs = self.before
            for made in reversed(self.made):
                graph.erase_node(made)
            return
        dead = [self.before[1][0]]
        while dead:
            if not (node := dead.pop()).users and node.op == "call_function" and node.graph is graph:
                dead += node.all_input_nodes
                graph.erase_node(node)


@contextlib.contextmanager
def spelled_as_reductions(graph: Graph) -> Iterator[frozenset[Node]]:
    """Spell nodes as reductions. Gives those that may join a region, but that none is to be looked for. At
    the end those that no region has taken are spelled as before."""
    found: list[_Spelled] = []
    try:
        nodes = [n for n in graph.nodes if n.op == "call_function"]
        roots = {root for root, _ in filter(None, map(_reduced_root, nodes))}
        for node in nodes:
            if (kept := _columns(node)) is not None:
                found.append(_by_columns(graph, node, kept))
            elif (piece := _piece(node)) is not None:
                found.append(_by_pairs(graph, node, *piece))
            elif (other := _reduced_root(node)) and is_permutation(other[0]) and other[0].args[0] in roots:
                found.append(_unpermuted(graph, node, *other))
        yield frozenset(one.made[-1] for one in found if one.joining)
    finally:
        for one in reversed(found):
            one.end(graph)


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


def _by_columns(graph: Graph, node: Node, kept: int) -> _Spelled:
    """Put the reduction over all other dims before a node, which then reduces that one's result."""
    write = _Writer(graph, node)
    val = fake(write.source)
    assert val is not None
    dims = [d for d in range(val.ndim) if d != kept]
    shape = [n if d == kept else 1 for d, n in enumerate(val.shape)]
    write.add(_OF_ROWS[node.target], (write.source, dims, True), shape, val.dtype)  # type: ignore[index]
    return write.respelled(node.target, (write.made[-1], *node.args[1:]), node.kwargs)


def _piece(node: Node) -> tuple[int, int, int] | None:
    """The dim along which a node takes one of every few bytes, how many these are, and which one it takes;
    None for any other node."""
    source = node.args[0] if node.args else None
    if node.target not in (aten.slice.Tensor, aten.select.int) or not isinstance(source, Node):
        return None
    val, shape = fake(source), shape_of(source)
    if val is None or val.dtype not in _BYTES or not shape or not all(isinstance(n, int) for n in shape):
        return None
    if not all(isinstance(n, int) for n in node.args[1:]) or node.kwargs:
        return None
    dim, start, *others = (*node.args[1:], *(0, 0)[len(node.args) - 1 :])  # type: ignore[misc]
    dim %= len(shape)
    size: int = shape[dim]  # type: ignore[assignment]
    if node.target is aten.select.int:
        return (dim, size, start % size) if _packs(size) else None
    end, step = (*others, *(size, 1)[len(others) :])
    whole = end >= size and 0 <= start < step
    return (dim, step, start) if whole and _packs(step) and size % step == 0 else None


def _packs(count: int) -> bool:
    return 1 < count <= PACKED and count & (count - 1) == 0


def _by_pairs(graph: Graph, node: Node, dim: int, count: int, which: int) -> _Spelled:
    """Put the reduction over `count` elements next to each other before a node; all but one of them are 0."""
    write = _Writer(graph, node)
    val, result = fake(write.source), fake(node)
    assert val is not None and result is not None
    shape = list(val.shape)
    if node.target is aten.slice.Tensor:
        shape[dim : dim + 1] = [shape[dim] // count, count]
        dim += 1
        write.add(aten.reshape.default, (write.source, shape), shape, val.dtype)
    value = write.made[-1] if write.made else write.source
    kwargs = {"start": 0, "step": 1, "dtype": torch.int64, "device": val.device, "requires_grad": False}
    place = write.add(prims.iota.default, (count,), [count], torch.int64, kwargs)
    along = [count if d == dim else 1 for d in range(len(shape))]
    place = write.add(aten.reshape.default, (place, along), along, torch.int64)
    mask = write.add(aten.eq.Scalar, (place, which), along, torch.bool)
    kwargs = {"dtype": val.dtype, "device": val.device, "pin_memory": False}
    zero = write.add(aten.full.default, ([], 0), [], val.dtype, kwargs)
    one = write.add(aten.where.self, (mask, value, zero), shape, val.dtype)
    write.add(prims.xor_sum.default, (one, [dim]), result.shape, val.dtype)
    return write.respelled(aten.reshape.default, (write.made[-1], list(result.shape)), {})


def _reduced_root(node: Node) -> tuple[Node, list[Node]] | None:
    """The tensor that a maximum or minimum along dims is computed from by operators on one tensor each, and
    these, the last one first; None for any other node, and for blocks, which are found however they lie."""
    kind, what = reduction_kind(node), reduced(node)
    if kind is None or not kind.selects or what is None or len(what.dims) == len(what.shape):
        return None
    if is_within_tile(node):
        return None
    (source,) = operands(stated_by(node))
    between: list[Node] = []
    while is_pointwise(source) and len(operands(source)) == 1 and len(source.all_input_nodes) == 1:
        between.append(source)
        (source,) = operands(source)
    return source, between


def _unpermuted(graph: Graph, node: Node, permuted: Node, between: Sequence[Node]) -> _Spelled:
    """Put the same reduction of what is permuted before a node, which then permutes that one's result."""
    write = _Writer(graph, node)
    value, order = permuted.args[0], [d % len(permuted.args[1]) for d in permuted.args[1]]  # type: ignore[arg-type,union-attr,operator]
    assert isinstance(value, Node)
    val, result, kind = fake(value), fake(node), reduction_kind(node)
    assert val is not None and result is not None and kind is not None
    for one in reversed(between):
        args = tuple(value if arg in (permuted, *between) else arg for arg in one.args)
        value = write.add(one.target, args, val.shape, fake(one).dtype, dict(one.kwargs))  # type: ignore[union-attr]
    gone, kept = [order[d] for d in reduced_dims(node)], keeps_dims(node)
    left = [d for d in order if kept or d not in gone]
    shape = [1 if d in gone else val.shape[d] for d in sorted(left)]
    target = aten.amax.default if kind is AMAX else aten.amin.default
    write.add(target, (value, sorted(gone), kept), shape, result.dtype)
    back = [sorted(left).index(d) for d in left]
    spelled = write.respelled(aten.permute.default, (write.made[-1], back), {})
    return dataclasses.replace(spelled, joining=False)


class _Writer:
    """Adds nodes before a node."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.made: list[Node] = []

    @property
    def source(self) -> Node:
        """What the node reads."""
        source = self.node.args[0]
        assert isinstance(source, Node)
        return source

    def add(
        self,
        target: Any,
        args: tuple[Any, ...],
        shape: Sequence[int | torch.SymInt],
        dtype: torch.dtype,
        kwargs: dict[str, Any] | None = None,
    ) -> Node:
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(target, args, kwargs or {})
        made.meta.update({k: v for k, v in self.node.meta.items() if k != "val"})
        val = fake(self.node)
        assert val is not None
        with val.fake_mode:  # type: ignore[attr-defined]
            made.meta["val"] = val.new_empty(shape, dtype=dtype)
        self.made.append(made)
        return made

    def respelled(self, target: Any, args: tuple[Any, ...], kwargs: Any) -> _Spelled:
        """Spell the node as a function of the last one that was added."""
        node = self.node
        before = node.target, node.args, node.kwargs
        node.target, node.args, node.kwargs = target, args, kwargs
        return _Spelled(node, tuple(self.made), before)
