"""Orders: where in one space the elements of each node lie, through views, permutations and broadcasts.

Begins at one tensor, whose elements number the space, and gives the order of nodes around it. Reads the
graph, never writes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import torch
from torch.fx import Node

from ..ir.program import AxisClass
from .factors import Factor, Order, Run, are_disjoint, broadcast, divided, flat, joined
from .nodes import (
    is_constant,
    is_permutation,
    is_pointwise,
    is_view,
    keeps_dims,
    operands,
    reduced,
    shape_of,
    shows,
)
from .sizes import Size, product
from .walk import ancestors, by_position

aten = torch.ops.aten


def is_loop(node: Node) -> bool:
    """Whether each element of a node is computed from one element of each operand."""
    return is_pointwise(node) or shows(node) or is_constant(node)


class Orders(dict[Node, Order]):
    """The order of each node that was asked for. The first answer for a node stays: a node that is needed in
    two orders has none that all its neighbours agree with. `shape` gives the shapes of nodes."""

    def __init__(self, root: Node, shape_of: Callable[[Node], tuple[Size, ...] | None] = shape_of) -> None:
        super().__init__()
        self.root = root
        self.shape_of = shape_of
        self.asked: set[Node] = set()  # what was searched
        shape, size = shape_of(root) or (), self.size_of(root)
        order = divided((Factor(1, size),), shape)
        if order is not None:
            self[root] = order

    def size_of(self, node: Node) -> Size:
        """Elements of a node's tensor."""
        return product(self.shape_of(node) or ())

    def operand(self, node: Node, arg: Node) -> Order | None:
        """The order in which a node with a known order reads an operand."""
        order, shape = self[node], self.shape_of(arg)
        if shape is None:
            return None
        if is_permutation(node):
            back = {d % len(order): run for d, run in zip(node.args[1], order, strict=True)}  # type: ignore[arg-type,operator]
            return tuple(back[d] for d in range(len(order)))
        if is_view(node) and node.target is not aten.expand.default:
            return divided(flat(order), shape)
        return broadcast(order, shape) if is_loop(node) and len(shape) <= len(order) else None

    def result(self, node: Node) -> Order | None:
        """The order of a node from those operands whose orders are known."""
        shape = self.shape_of(node)
        known = [arg for arg in operands(node) if arg in self]
        if shape is None or not known:
            return None
        if (what := reduced(node)) is not None:
            runs = self[known[0]]
            kept = keeps_dims(node)
            return tuple(
                () if d in what.dims else run for d, run in enumerate(runs) if kept or d not in what.dims
            )
        if is_permutation(node):
            return tuple(self[known[0]][d] for d in node.args[1])  # type: ignore[index,union-attr]
        if is_view(node) and node.target is not aten.expand.default:
            return divided(flat(self[known[0]]), shape)
        if not is_loop(node):
            return None
        order = self._widest(node, known)
        return self._as_used(node) if order is None and is_view(node) else order

    def _as_used(self, node: Node) -> Order | None:
        """The order in which a result reads a node that gives one element several places: another operand of
        the result tells them apart."""
        chain = [node]
        while len(chain) == 1 or not self.search(chain[-1]):
            users = filter(is_loop, chain[-1].users)
            if (user := next(users, None)) is None:
                return None
            chain.append(user)
        for arg, by in reversed([*itertools.pairwise(chain)]):
            if (order := self.operand(by, arg)) is None:
                return None
            self.setdefault(arg, order)
        return self[node]

    def _widest(self, node: Node, known: Iterable[Node]) -> Order | None:
        """A pointwise result's order: along each dim that of an operand as long as the result. None if two
        dims would be of the same factor, as in an outer product of a vector with itself: it has elements
        that no place in the space has; or if a dim has fewer elements than an operand, as torch may state of
        a symbolic size of one."""
        shape, runs = self.shape_of(node) or (), dict[int, Run]()
        for arg in known:
            arg_shape = self.shape_of(arg) or ()
            for d, n in enumerate(arg_shape, start=len(shape) - len(arg_shape)):
                if n != 1:
                    runs.setdefault(d, self[arg][d - len(shape) + len(arg_shape)])
        if any(product(factor.size for factor in runs.get(d, ())) != n for d, n in enumerate(shape)):
            return None
        order = tuple(runs.get(d, ()) for d in range(len(shape)))
        return order if are_disjoint(flat(order)) else None

    def find(self, node: Node) -> bool:
        """Find a node's order from its operands. Returns whether it has one."""
        if node not in self and (order := self.result(node)) is not None:
            self[node] = order
        return node in self

    def search(self, node: Node) -> bool:
        """Find a node's order from its operands, and theirs from their own. Returns whether it has one."""

        def is_new(node: Node) -> bool:
            return node not in self and node not in self.asked and is_loop(node)

        unknown = by_position(ancestors(operands(node), is_new))
        self.asked.update(unknown)
        for current in (*unknown, node):
            self.find(current)
        return node in self

    def spread(self, nodes: Iterable[Node]) -> Orders:
        """Find the orders of some nodes, and of their operands, from each other."""
        nodes, before = by_position(nodes), -1
        while len(self) > before:
            before = len(self)
            for node in nodes:
                self.find(node)
            for node in reversed(nodes):
                if node in self and is_loop(node):
                    for arg in operands(node):
                        if arg not in self and (order := self.operand(node, arg)) is not None:
                            self[arg] = order
        return self

    def agrees(self, node: Node) -> bool:
        """Whether every operand of a node is in the order that the node reads it in. Operands that had no
        order get that one."""
        for arg in operands(node):
            if reduced(node) is not None:
                if arg not in self or self.result(node) != self[node]:
                    return False
                continue
            wanted = self.operand(node, arg)
            if wanted is None or self.setdefault(arg, wanted) != wanted:
                return False
        return True

    def is_within_dim(self, factor: Factor) -> bool:
        """Whether a factor is a part of one dim of the first tensor, and not all of it."""
        dims = (f for run in self.get(self.root, ()) for f in run)
        return any(d.stride <= factor.stride and factor.end <= d.end and factor.size < d.size for d in dims)

    def over(self, node: Node) -> AxisClass | None:
        """The class of a reduction's axes if it is over all rows, and leaves an element for each column, or
        the other way round; None for any other."""
        kept, gone = flat(self[node]), self.reduced(node)
        if len(kept) != 1 or len(gone) != 1:
            return None
        column, row = sorted((*kept, *gone), key=lambda factor: factor.stride)
        if (column.stride, column.end, row.end) != (1, row.stride, self.size_of(self.root)):
            return None
        return AxisClass.ROW if (row,) == gone else AxisClass.COLUMN

    def reduced(self, node: Node) -> Run:
        """The factors that a reduction reduces."""
        what = reduced(node)
        assert what is not None
        runs = self[operands(node)[0]]
        return joined(factor for d in what.dims for factor in runs[d])
