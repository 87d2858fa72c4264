"""Iteration space analysis: how nodes of the graph relate to a space of so many elements.

Answers questions of the modules that find and grow regions, and caches the answers.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

import sympy
import torch
from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..inductor.graphs import prepare_softmax_online
from .gathers import is_gather, is_gather_view, is_split
from .nodes import (
    fake,
    has_accumulator,
    is_constant,
    is_permutation,
    is_pointwise,
    is_readable_dtype,
    is_view,
    is_writable_dtype,
    operands,
    readers,
    reduction_kind,
    shape_of,
    shows,
    unviewed,
)
from .sizes import Size, product, ratio
from .walk import ancestors, by_position, closure

_LOOPS = (prepare_softmax_online, torch.ops.aten.gather.default, torch.ops.aten.copy.default)
SMALL = 8  # a tensor with at most 1 / SMALL of the space's elements is recomputed rather than written


def _is_loop(node: Node) -> bool:
    return is_pointwise(node) or is_view(node) or is_constant(node)


def _is_read(node: Node) -> bool:
    """Whether a kernel can read a node's elements, or compute them of what it can read."""
    val = node.meta.get("val")
    if isinstance(val, torch.Tensor) and not is_readable_dtype(val.dtype):
        return (
            is_writable_dtype(val.dtype)
            and _is_loop(node)
            and all(_is_read(unviewed(a, is_permutation)) for a in node.all_input_nodes)
        )
    return not isinstance(val, torch.SymBool)


def _is_on_one_device(node: Node, args: Iterable[Node]) -> bool:
    """Whether all that a node computes with lies on its own device: a scalar on the processor may be another
    operand of a tensor on the GPU."""
    devices = {val.device for n in (node, *args) if (val := fake(n)) is not None and not is_constant(n)}
    return len(devices) <= 1


class SpaceAnalysis:
    """Nodes beside a space of `numel` elements: the reductions of it that no region has taken yet, and what
    can be fused with them."""

    def __init__(self, numel: Size) -> None:
        self.numel = numel
        self.inner: set[Node] = set()
        self.outer: set[Node] = set()
        self._sources: dict[Node, frozenset[Node]] = {}
        self._recomputed: dict[Node, bool] = {}
        self._leaves: dict[Node, frozenset[Node]] = {}
        self._above: dict[Node, tuple[set[Node], set[Node]]] = {}  # and what was looked at
        for method in (self.is_full, self.size, self.fusible, self.computable, self.num_bytes):
            setattr(self, method.__name__, functools.cache(method))  # no rewrite changes these answers

    def is_full(self, node: Node) -> bool:
        return self.share(node) == 1

    def share(self, node: Node) -> Size:
        """How many times a tensor's elements go into the space; 0 if they do not, or the size is unknown."""
        size = self.size(node)
        return 0 if size is None else ratio(self.numel, size) or 0

    def size(self, node: Node) -> Size | None:
        """The elements of a node that gives one tensor of known size."""
        shape = shape_of(node)
        return None if shape is None else product(shape)

    def fusible(self, node: Node) -> bool:
        """Pointwise or a view, and of full size or a vector or scalar that broadcasts to it."""
        return self.share(node) != 0 and _is_loop(node)

    def computable(self, node: Node) -> bool:
        """Whether a node can be computed above reductions: it is fusible, a gather, or between gathers."""
        within = self.is_within(node) and (_is_loop(node) or is_gather(node))
        return self.fusible(node) or within or (is_split(node) and is_gather(node))

    def is_within(self, node: Node) -> bool:
        """Whether a tensor has at least one element, and at most as many as the space."""
        size = self.size(node)
        return bool(size) and self.is_at_most(size, self.numel)

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def is_at_most(size: Size, bound: Size) -> bool:
        """Whether a size is, for all values of its symbols."""
        if isinstance(size, int) and isinstance(bound, int):
            return size <= bound
        return bool(sympy.expand(sympy.sympify(bound) - size).is_nonnegative)

    @classmethod
    def is_less(cls, size: Size, bound: Size) -> bool:
        """Whether a size is smaller for all values of its symbols, each at least 1."""
        return not cls.is_at_most(bound, size) and cls.is_at_most(size, bound)

    def is_broadcast(self, node: Node) -> bool:
        """Full size, but made from small tensors alone: nothing of full size is read for it."""
        return self.fusible(node) and not any(map(self.is_full, operands(node)))

    def above(self, reduction: Node, without: Collection[Node] = ()) -> set[Node]:
        """What can be recomputed above a reduction: fusible producers, and inner reductions on the way."""
        if without:
            return set(ancestors(operands(reduction), lambda n: n not in without and self.is_traced(n)))
        if reduction not in self._above:
            producers = set(ancestors(operands(reduction), self.is_traced))
            self._above[reduction] = producers, {reduction}.union(*map(operands, (reduction, *producers)))
        return set(self._above[reduction][0])

    def is_traced(self, node: Node) -> bool:
        """Whether a node can be recomputed above a reduction."""
        return self.fusible(node) or node in self.inner

    def full_reads(self, reduction: Node) -> frozenset[Node]:
        """The full-size tensors that computing a reduction reads or passes through."""
        nodes = {reduction, *self.above(reduction)}
        reads = {arg for n in nodes for arg in operands(n) if self.is_full(arg)}
        return frozenset(n for n in reads if not self.is_broadcast(n))

    def leaves(self, reduction: Node) -> frozenset[Node]:
        """Those of its full-size reads that a loop would not compute. They are kept for each node above it:
        what is below shares them, in a deep network those of all layers."""
        if reduction not in self._leaves:
            unknown = ancestors(operands(reduction), lambda n: n not in self._leaves and self.is_traced(n))
            for node in (*by_position(unknown), reduction):
                args = operands(node)
                read = {a for a in args if self.is_full(a) and not self.fusible(a)}
                known = (self._leaves[a] for a in args if self.is_traced(a))
                self._leaves[node] = frozenset(read.union(*known))
        return self._leaves[reduction]

    def forget(self, nodes: set[Node]) -> None:
        """Remove reductions that a region has taken, and cached answers that a rewrite may change."""
        self.inner -= nodes
        self.outer -= nodes
        self._sources.clear()
        self._recomputed.clear()
        self._leaves.clear()
        self._above = {n: entry for n, entry in self._above.items() if nodes.isdisjoint(entry[1])}

    def depends_on(self, node: Node, reductions: Collection[Node], ignoring: set[Node]) -> bool:
        """Whether one of some inner reductions lies above a node, not looking above the nodes of `ignoring`.

        If not, all nodes that were looked at are added to `ignoring`.
        """
        seen: set[Node] = set()

        def new(nodes: Iterable[Node]) -> Iterable[Node]:
            return (n for n in nodes if n not in ignoring)

        for arg in closure(new(operands(node)), lambda n: new(operands(n)) if self.is_traced(n) else ()):
            if arg in reductions:
                return True
            seen.add(arg)
        ignoring |= seen
        return False

    def feeds_inner(self, node: Node, known: set[Node]) -> bool:
        """Whether a node feeds an inner reduction outside `known` with nothing but pointwise ops between."""
        todo, seen, free = [node], {node}, {*known, node}
        while todo:
            for user in todo.pop().users:
                if user in self.inner and user not in known:
                    return True
                if user in seen or not self.fusible(user):
                    continue
                seen.add(user)
                free.add(user)
                if not self.depends_on(user, self.inner, ignoring=free):
                    todo.append(user)
        return False

    def recomputed(self, node: Node) -> bool:
        """Whether users outside recompute a node: it is a view or small, or recomputing it reads no
        more bytes than loading its result."""
        if node not in self._recomputed:
            free = is_view(node) or is_gather_view(node) or self.is_small(node)
            self._recomputed[node] = free or self._reads_at_most(self.sources(node), node)
        return self._recomputed[node]

    def _reads_at_most(self, sources: Iterable[Node], node: Node) -> bool:
        """Whether some tensors have no more bytes than a node's result."""
        return self.is_at_most(sum(map(self.num_bytes, sources)), self.num_bytes(node))

    def num_bytes(self, node: Node) -> Size:
        """Bytes of a tensor; 0 for a symbolic number."""
        val, shape = fake(node), shape_of(node)
        return 0 if val is None or shape is None else product((*shape, val.dtype.itemsize))

    def sources(self, node: Node) -> frozenset[Node]:
        """The large tensors that a loop reads to compute a node.

        A pointwise producer is computed in that loop where this reads no more bytes than its result has.
        """
        todo = [node]
        while todo:
            current = todo[-1]
            large = [a for a in operands(current) if not self.is_small(a) and not is_constant(a)]
            unknown = [a for a in large if a not in self._sources and self.fusible(a)]
            if unknown and current not in self._sources:
                todo.extend(unknown)
                continue
            todo.pop()
            sources: set[Node] = set()
            for a in large:
                above = self._sources.get(a, frozenset())
                # An input is none of these, also where it was asked about before.
                cheap = self.fusible(a) and self._reads_at_most(above, a)
                sources |= above if cheap else {a}
            self._sources[current] = frozenset(sources)
        return self._sources[node]

    def is_written_anyway(self, node: Node) -> bool:
        """Whether some user needs a full-size tensor in memory, such as a matrix product."""
        return self.is_full(node) and not all(map(takes_operands, readers(node, shows)))

    def is_small(self, node: Node) -> bool:
        """Whether a tensor is small beside the space, such as a vector or a scalar."""
        size = self.size(node)
        return self.is_at_most(SMALL * (1 if size is None else size), self.numel)

    def check(self, node: Node, is_read: bool = False) -> None:
        """Raise `Decline` unless the node gives one tensor, of known size and a supported dtype. `is_read`:
        what it is computed by does not matter."""
        if refusal := self.refusal(node, is_read):
            raise refusal

    def takes(self, node: Node, args: Iterable[Node] | None = None) -> bool:
        """Whether the dtypes, sizes and devices of a node and its operands let a region compute it. `args`:
        what stands for the operands, if not they themselves."""
        args = operands(node) if args is None else list(args)
        return (
            all(map(_is_read, args))
            and _is_on_one_device(node, args)
            and (is_split(node) or self.refusal(node) is None)
        )

    def refusal(self, node: Node, is_read: bool = False) -> Decline | None:
        """Why a region cannot have a node's elements, read or computed; None if it can."""
        val = fake(node)
        if val is None:
            detail = f"{node.target} does not give one tensor"
            return Decline(DeclineReason.UNSUPPORTED_OP, detail, node.name)
        if shape_of(node) is None:
            return Decline(DeclineReason.DYNAMIC_SHAPE, f"{tuple(val.shape)}", node.name)
        if not (_is_read(node) and (is_read or has_accumulator(node))):
            return Decline(DeclineReason.UNSUPPORTED_DTYPE, f"{val.dtype}", node.name)
        return None


def takes_operands(node: Node) -> bool:
    """Whether Inductor computes a node in a loop into which it can fuse the operands."""
    loops = is_pointwise(node) or reduction_kind(node) is not None or node.target in _LOOPS
    return loops or torch.Tag.reduction in getattr(node.target, "tags", ())
