"""Layouts in memory: which ones Inductor is free to choose, and which the graph states.

The strides of a loop's result in the graph are those that eager would give it. Inductor stores it as suits
its loops, unless an operator that is no loop reads it: that gets the strides that the graph states.
"""

from __future__ import annotations

from collections.abc import Collection

from torch.fx import Node

from ..inductor.graphs import takes_stated_strides
from .gathers import COPIES, is_gather_view
from .nodes import fake, is_permutation, is_view, readers, shape_of, size_of, unviewed
from .sizes import Size
from .space_analysis import takes_operands


def is_free(node: Node) -> bool:
    """Whether Inductor chooses how a tensor lies in memory: loops compute it, and only loops read it."""
    source = unviewed(node, _is_view)
    return _is_loop(source) and not is_read_as_stated(source)


def is_read_as_stated(node: Node) -> bool:
    """Whether something that is no loop reads a tensor or a view of it, such as a convolution or the graph's
    caller."""
    return not all(map(_is_loop, readers(node, _is_view)))


def has_stated_order(node: Node) -> bool:
    """Whether Inductor has to store a tensor in the order that the graph states: the graph's caller reads it,
    or an operator that takes the strides as stated. A matrix product does not."""
    return any(user.op == "output" or takes_stated_strides(user.target) for user in readers(node, _is_view))


def is_joined(node: Node, members: Collection[Node]) -> bool:
    """Whether a `cat` or another copy that is stored, and is none of `members`, takes a tensor or a view of
    it. Inductor's own loops write their result to its place there; that of another kernel is copied."""
    copies = (user for user in readers(node, _is_view) if user.target in COPIES and user not in members)
    return any(not all(map(takes_operands, readers(copy, _is_view))) for copy in copies)


def is_computed_by_loops(node: Node) -> bool:
    """Whether a loop, a reduction or a copy that Inductor fuses computes a tensor or what it is a view of."""
    return _is_loop(unviewed(node, _is_view))


def is_row_major(node: Node) -> bool:
    """Whether the graph states strides that put a node's elements in the order of its dims, without gaps."""
    val, shape = fake(node), shape_of(node)
    stride: Size = 1
    if val is None or shape is None:
        return False
    for size, stated in zip(reversed(shape), reversed(val.stride()), strict=True):
        if size != 1 and size_of(stated) != stride:
            return False
        stride = stride * size
    return True


def _is_loop(node: Node) -> bool:
    return takes_operands(node) or node.target in COPIES


def _is_view(node: Node) -> bool:
    return is_permutation(node) or is_view(node) or is_gather_view(node)
