"""Comparisons whose result hangs on a rounding: of two values that are computed from one in half precision.

Inductor keeps a value in half precision unrounded where it computes it, and rounds what it stores. So a
stored maximum may equal no element that is computed again, as in the backward of `amax`, which then divides
by a count of zero. Eager compares rounded values only.

Takes nodes of a graph, answers questions, changes nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch.fx import Graph, Node

from ..inductor.graphs import OpOverload
from .nodes import float_bytes, is_pointwise, is_view, operands
from .space_analysis import takes_operands

aten, prims = torch.ops.aten, torch.ops.prims

_COMPARISONS = (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
_OF_TWO = frozenset(
    {
        *(op.Tensor for op in _COMPARISONS),
        aten.fmod.Tensor,
        aten.remainder.Tensor,
        aten.floor_divide.default,
        aten.div.Tensor_mode,
    }
)
_WITH_A_NUMBER = frozenset(op.Scalar for op in _COMPARISONS)
_STEPS = frozenset({aten.floor.default, aten.ceil.default, aten.trunc.default})
_SIGNS = frozenset({aten.sign.default, aten.sgn.default})
_EQUAL_AT = {aten.sub.Tensor: 0, aten.div.Tensor: 1}  # the result of two equal operands

# Give elements of their operands, or their negatives.
_SELECTING = frozenset(
    {
        aten.amax,
        aten.amin,
        aten.max,
        aten.min,
        aten.topk,
        aten.sort,
        aten.kthvalue,
        aten.median,
        aten.cummax,
        aten.cummin,
        aten.max_pool2d_with_indices,
        prims._low_memory_max_pool_with_offsets,
        aten.gather,
        aten.index,
        aten.index_select,
        aten.cat,
        aten.clone,
    }
)
_EXACT = frozenset(
    {aten.abs.default, aten.neg.default, aten.relu.default, aten.where.self, aten.maximum.default}
    | {aten.minimum.default}
)


def sides(node: Node) -> list[Node]:
    """The two values that a node compares, by themselves or by their difference or quotient; none for a node
    whose result does not jump where they are equal."""
    args = operands(node)
    if node.target in _OF_TWO:
        return args if len(args) == 2 else []
    if len(args) != 1 or (at := _EQUAL_AT.get(_without_casts(args[0]).target)) is None:
        return []
    both = operands(_without_casts(args[0]))
    return both if len(both) == 2 and _jumps(node, at) else []


def _jumps(node: Node, at: int) -> bool:
    """Whether the result of an operator on one tensor jumps where an element is this number."""
    if node.target in _WITH_A_NUMBER:
        return node.args[1] in (at, -at)
    if node.target is prims.convert_element_type.default:
        return float_bytes(node) == 0
    return node.target in _STEPS or (node.target in _SIGNS and at == 0)


def _without_casts(node: Node) -> Node:
    """What a node casts between floats, or takes the magnitude of."""
    while node.target in (prims.convert_element_type.default, aten.abs.default) and float_bytes(node):
        (node,) = operands(node)
    return node


def roundings(graph: Graph) -> frozenset[Node]:
    """The pointwise operators that have to round as in eager, for comparisons to be right whichever values
    are stored and whichever are computed again."""
    found = set[Node]()
    for node in graph.nodes:
        if both := sides(node):
            one, other = map(_computed_from, both)
            if any(map(_rounds, one & other)):
                found |= one | other | {node}
    return frozenset(n for n in found if is_pointwise(n) and n.target not in _EXACT and _is_half(n))


def compared(nodes: Iterable[Node]) -> frozenset[Node]:
    """The values in half precision that some nodes compare with others."""
    pairs = (map(_without_views, sides(n)) for n in nodes)
    return frozenset(n for pair in pairs for n in pair if float_bytes(n) == 2)


def _computed_from(node: Node) -> set[Node]:
    """A node and all that it is computed from, by operators that Inductor may compute again."""
    found, todo = {node}, [node]
    while todo:
        node = todo.pop()
        if is_pointwise(node) or _selects(node):
            new = set(operands(node)) - found
            found |= new
            todo += new
    return found


def _selects(node: Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return node.target is operator.getitem
    return node.target.is_view or node.target.overloadpacket in _SELECTING


def _rounds(node: Node) -> bool:
    """Whether a node's result is rounded to half precision in eager, where Inductor may not do so."""
    if _selects(node) or node.target in _EXACT:
        return False
    return takes_operands(node) and float_bytes(node) == 2


def _is_half(node: Node) -> bool:
    return any(float_bytes(n) == 2 for n in (node, *operands(node)))


def _without_views(node: Node) -> Node:
    while is_view(node):
        (node,) = operands(node)
    return node
