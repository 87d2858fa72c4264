"""Nodes that are spelled as the reductions, or as the `cat`, that they are, while regions are looked for.

The largest of all elements is the largest of each column's largest: the first step is a reduction over the
rows, as a pair's outer one, and may be computed where a region has the tensor at hand. Every other element of
a tensor is a reduction over pairs of which one element is 0: a tile of blocks has both, and can pack them.
A reduction of each row of `x.t()` is one of each column of `x`: a pair with those of its rows.

No result differs but for the sign of a zero that is the largest: eager does not state which of 0 and -0 that
is. What no region takes is spelled as it was at the end.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ..ir.program import PACKED
from ..ir.reductions import AMAX
from ..region.nodes import (
    EXTREMA,
    fake,
    is_permutation,
    is_pointwise,
    keeps_dims,
    operands,
    reduced,
    reduced_dims,
    shape_of,
    stated_by,
)
from ..region.sizes import product
from ..region.tile import is_within_tile
from ..region.walk import position
from .pieces import Pieced, pieces_of

aten, prims = torch.ops.aten, torch.ops.prims
_OF_ROWS = {
    aten.amax.default: aten.amax.default,
    aten.max.default: aten.amax.default,
    aten.amin.default: aten.amin.default,
    aten.min.default: aten.amin.default,
}
_BYTES = (torch.uint8, torch.int8)


class Spelling:
    """The nodes of a graph that are spelled as reductions or as a `cat`. `joining`: those reductions that may
    join a region, but that none is to be looked for, and what was added in front of each."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.found: list[_Spelled | Pieced] = []

    @property
    def joining(self) -> dict[Node, frozenset[Node]]:
        return {one.made[-1]: frozenset(one.made[:-1]) for one in self.found if one.joins and one.made}

    def begin(self) -> None:
        """Spell nodes as reductions."""
        nodes = [n for n in self.graph.nodes if n.op == "call_function"]
        roots = {root for root, _ in filter(None, map(_reduced_root, nodes)) if not is_permutation(root)}
        for node in nodes:
            if (kept := _columns(node)) is not None:
                _by_columns(self.one(node), kept)
            elif (piece := _piece(node)) is not None:
                _by_pairs(self.one(node), *piece)
            elif (other := _reduced_root(node)) and is_permutation(other[0]) and _root(other[0])[0] in roots:
                _unpermuted(self.one(node), *other)
        for node in reversed(nodes):
            if (pieces := pieces_of(node)) is not None:
                self.found.append(Pieced(self.graph, node, pieces))

    def one(self, node: Node) -> _Spelled:
        self.found.append(found := _Spelled(self.graph, node))
        return found

    def end(self) -> None:
        """Spell those that no region has taken as before."""
        for one in reversed(self.found):
            one.end(set(self.graph.nodes))
        self.found.clear()


class _Spelled:
    """A node that comes to read `made[-1]`, a reduction. `before`: how it was spelled. `reader`: which of
    `made` reads what the node did, and at which place. `joins`: no region is looked for that reduction."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.before = node.target, node.args, node.kwargs
        self.made: list[Node] = []
        self.reader: tuple[Node, int] | None = None
        self.joins = True

    @property
    def source(self) -> Node:
        """What the node reads."""
        source = self.before[1][0]
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
        """Add a node before this one."""
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(target, args, kwargs or {})
        self.made.append(made)
        if self.source in args:
            self.reader = made, args.index(self.source)
        made.meta.update({k: v for k, v in self.node.meta.items() if k != "val"})
        val = fake(self.node)
        assert val is not None
        with val.fake_mode:  # type: ignore[attr-defined]
            made.meta["val"] = val.new_empty(shape, dtype=dtype)
        return made

    def respell(self, target: Any, *args: Any, **kwargs: Any) -> None:
        """Spell the node as a function of the last one that was added."""
        self.node.target, self.node.args, self.node.kwargs = target, (self.made[-1], *args), kwargs

    def operand(self, alive: set[Node]) -> Node | None:
        """What the node reads once it is restored: its operand, or what a region has computed that as. None
        if the node or some of `made` was taken, or the operand now comes too late."""
        if not self.made or self.node.args[:1] != (self.made[-1],) or not alive.issuperset(self.made):
            return None
        operand: Any = self.reader[0].args[self.reader[1]] if self.reader else self.source
        return operand if operand in alive and position(operand) < position(self.node) else None

    def end(self, alive: set[Node]) -> None:
        """Restore the node, if nothing was taken of it; erase what nothing reads then. `alive`: the nodes of
        the graph."""
        if (operand := self.operand(alive)) is not None:
            self.node.target, (_, *args), self.node.kwargs = self.before
            self.node.args = operand, *args
        todo = [self.source, *self.made]
        while todo:
            node = todo.pop()
            if node in alive and not node.users and node.op == "call_function" and not node.is_impure():
                todo += node.all_input_nodes
                self.graph.erase_node(node)
                alive.discard(node)


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


def _by_columns(one: _Spelled, kept: int) -> None:
    """Put the reduction over all other dims before a node, which then reduces that one's result."""
    val, (target, args, kwargs) = fake(one.source), one.before
    assert val is not None
    dims = [d for d in range(val.ndim) if d != kept]
    shape = [n if d == kept else 1 for d, n in enumerate(val.shape)]
    one.add(_OF_ROWS[target], (one.source, dims, True), shape, val.dtype)  # type: ignore[index]
    one.respell(target, *args[1:], **kwargs)


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


def _by_pairs(one: _Spelled, dim: int, count: int, which: int) -> None:
    """Put the reduction over `count` elements next to each other before a node; all but one of them are 0."""
    val, result, value = fake(one.source), fake(one.node), one.source
    assert val is not None and result is not None
    shape = list(val.shape)
    if one.node.target is aten.slice.Tensor:
        shape[dim : dim + 1] = [shape[dim] // count, count]
        dim += 1
        value = one.add(aten.reshape.default, (value, shape), shape, val.dtype)
    kwargs = {"start": 0, "step": 1, "dtype": torch.int64, "device": val.device, "requires_grad": False}
    place = one.add(prims.iota.default, (count,), [count], torch.int64, kwargs)
    along = [count if d == dim else 1 for d in range(len(shape))]
    place = one.add(aten.reshape.default, (place, along), along, torch.int64)
    mask = one.add(aten.eq.Scalar, (place, which), along, torch.bool)
    kwargs = {"dtype": val.dtype, "device": val.device, "pin_memory": False}
    zero = one.add(aten.full.default, ([], 0), [], val.dtype, kwargs)
    value = one.add(aten.where.self, (mask, value, zero), shape, val.dtype)
    one.add(prims.xor_sum.default, (value, [dim]), result.shape, val.dtype)
    one.respell(aten.reshape.default, list(result.shape))


def _reduced_root(node: Node) -> tuple[Node, list[Node]] | None:
    """The tensor that a reduction along dims is computed from by operators on one tensor each, and these, the
    last one first; None for any other node, and for blocks, which are found however they lie."""
    what = reduced(node)
    if what is None or len(what.dims) == len(what.shape) or is_within_tile(node):
        return None
    return _root(stated_by(node))


def _root(node: Node) -> tuple[Node, list[Node]]:
    """What the operand of a node is computed from by operators on one tensor each, and these, the last one
    first."""
    (source,) = operands(node)
    between: list[Node] = []
    while is_pointwise(source) and len(operands(source)) == 1 and len(source.all_input_nodes) == 1:
        between.append(source)
        (source,) = operands(source)
    return source, between


def _unpermuted(one: _Spelled, permuted: Node, between: Sequence[Node]) -> None:
    """Put the same reduction of what is permuted before a node, which then permutes that one's result."""
    value, order = permuted.args[0], [d % len(permuted.args[1]) for d in permuted.args[1]]  # type: ignore[arg-type,union-attr,operator]
    assert isinstance(value, Node)
    val, result = fake(value), fake(one.node)
    assert val is not None and result is not None
    for node in reversed(between):
        args = tuple(value if arg in (permuted, *between) else arg for arg in node.args)
        value = one.add(node.target, args, val.shape, fake(node).dtype, dict(node.kwargs))  # type: ignore[union-attr]
    gone, kept = [order[d] for d in reduced_dims(one.node)], keeps_dims(one.node)
    left = [d for d in order if kept or d not in gone]
    shape = [1 if d in gone else val.shape[d] for d in sorted(left)]
    stated, dims = stated_by(one.node), sorted(gone)
    if stated.target in EXTREMA:
        target = aten.amax.default if EXTREMA[stated.target] is AMAX else aten.amin.default
        one.add(target, (value, dims, kept), shape, result.dtype)
    else:
        given = stated.args[1] if len(stated.args) > 1 else None
        args = value, dims[0] if isinstance(given, int) else dims, *stated.args[2:]
        one.add(stated.target, args, shape, result.dtype, dict(stated.kwargs))
        if stated is not one.node:
            one.add(operator.getitem, (one.made[-1], one.node.args[1]), shape, result.dtype)
    one.respell(aten.permute.default, [sorted(left).index(d) for d in left])
    one.joins = False
