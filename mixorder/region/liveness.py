"""Liveness: which of a region's inputs no node reads after it, so that an output may reuse their memory.

Takes a region in its graph as it is, before the rewrite; changes nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping

import torch
from torch.fx import Node

from ..inductor.graphs import triton_kernel_wrapper_functional
from .nodes import fake, leaves_the_graph, reduction_kind, size_of
from .region import Region
from .walk import needed_for, position

aten = torch.ops.aten

# Inductor gives each result of these a buffer of its own. Other operators may share memory: a `cat` with its
# parts, a cast to the same dtype with its operand, a collective with its input.
PRODUCERS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten._scaled_mm.default,
        aten.convolution_backward.default,
    }
)


def dead_after(region: Region, donated: Collection[Node] = ()) -> tuple[str, ...]:
    """The inputs that are dead after the region, or that it reads copies of, by their names in the region's
    loops. `donated`: the graph's inputs that are the graph's to overwrite."""
    reader = _Reader(region, donated)
    return tuple(name for name, n in region.input_buffers.items() if reader.why_not(n) is None)


def erased(region: Region) -> frozenset[Node]:
    """The members that the rewrite erases: those that are replaced, and those that only such members use."""
    gone = set(region.outputs)
    for node in reversed(region.nodes):
        if gone.issuperset(node.users):
            gone.add(node)
    return frozenset(gone)


def read_after(region: Region, place: int, index: Mapping[Node, int], stored: Collection[Node]) -> set[str]:
    """The inputs that a loop or another kernel reads after a launch, by their names in the region's loops.

    `place`: the launch's position. `index`: that of each node. `stored`: nodes that have memory of their own;
    others are computed by the loops that use them."""
    reader = _Reader(region)

    def is_later(node: Node) -> bool:
        if node in reader.gone:
            return False
        return index.get(node, 0) > place or (node not in stored and any(map(is_later, node.users)))

    return {name for name, n in region.input_buffers.items() if any(map(is_later, n.users))}


class _Reader:
    def __init__(self, region: Region, donated: Collection[Node] = ()) -> None:
        self.region = region
        self.gone = erased(region)
        self.donated = donated

    def why_not(self, node: Node) -> str | None:
        """Why an input's memory is still in use after the region; None if it is dead, as a copy is that only
        the region reads."""
        if node in self.region.made_contiguous:
            return None
        base = node
        while (source := _viewed(base)) is not None:
            base = source
        if not (base in self.donated or _owns_its_memory(base)):
            return "its memory may be shared"
        if base in self.donated and any(
            leaves_the_graph(n) and _same_size(n, base) for n in self.region.outputs
        ):
            return "autograd may hold it when the result has left the graph"
        if not _same_size(base, node):
            return "it is a part of a tensor"
        for alias in _aliases(base):
            if alias is not node and alias in self.region.inputs:
                return "the region reads it by two names"
            readers = [user for user in alias.users if _viewed(user) is not alias and user not in self.gone]
            if readers and not self.run_before(readers):
                return "another node reads it"
        return None

    def run_before(self, readers: Collection[Node]) -> bool:
        """Whether the launch waits for all kernels that compute these nodes: reductions and products that its
        inputs are made of. Inductor may compute anything else again in the loops of its users."""
        needed = needed_for(self.region.inputs, since=min(map(position, readers)))

        def is_before(node: Node) -> bool:
            if reduction_kind(node) is not None or node.target in PRODUCERS:
                return node in needed or node in self.gone
            return node in self.gone or (bool(node.users) and all(map(is_before, node.users)))

        return all(map(is_before, readers))


def _viewed(node: Node) -> Node | None:
    """The argument in whose memory a node's result lies."""
    val = fake(node)
    if val is None or node.op != "call_function":
        return None
    storage = val.untyped_storage()._cdata
    for arg in node.all_input_nodes:
        arg_val = fake(arg)
        if arg_val is not None and arg_val.untyped_storage()._cdata == storage:
            return arg
    return None


def _aliases(base: Node) -> Iterator[Node]:
    """A node and all that lie in its memory."""
    yield base
    for user in base.users:
        if _viewed(user) is base:
            yield from _aliases(user)


def _owns_its_memory(node: Node) -> bool:
    """Whether a node is a matrix product, a gradient of a convolution, or a result of one of our kernels."""
    target = getattr(node.args[0], "target", None) if node.target is operator.getitem else node.target
    return target is triton_kernel_wrapper_functional or target in PRODUCERS


def _same_size(base: Node, node: Node) -> bool:
    first, second = fake(base), fake(node)
    assert first is not None and second is not None
    return size_of(first.numel()) == size_of(second.numel())
