"""Comparisons whose result hangs on a rounding: of two values that are computed from one in half precision.

Inductor keeps a value in half precision unrounded where it computes it, and rounds what it stores. So a
stored maximum may equal no element that is computed again, as in the backward of `amax`, which then divides
by a count of zero. Eager compares rounded values only.

Takes nodes of a graph, answers questions, changes nothing.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

import torch
from torch.fx import Graph, Node

from ..inductor.graphs import OpOverload
from .nodes import float_bytes, is_pointwise, operands, unviewed
from .space_analysis import takes_operands
from .walk import closure

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

_SELECTING = {  # give elements of their operands, or their negatives
    "amax", "amin", "max", "min", "topk", "sort", "kthvalue", "median", "cummax", "cummin", "gather", "index",
    "max_pool2d_with_indices", "_low_memory_max_pool_with_offsets", "index_select", "cat", "clone", "where",
    "maximum", "minimum", "abs", "neg", "relu",
}  # fmt: skip


def sides(node: Node) -> list[Node]:
    """The two values that a node compares, by themselves or by their difference or quotient; none for a node
    whose result does not jump where they are equal."""
    both = operands(node)
    if node.target not in _OF_TWO:
        if len(both) != 1 or not _jumps(node, _EQUAL_AT.get(_without_casts(both[0]).target)):
            return []
        both = operands(_without_casts(both[0]))
    return both if len(both) == 2 and all(map(float_bytes, both)) else []


def _jumps(node: Node, at: int | None) -> bool:
    """Whether the result of an operator on one tensor jumps where an element is this number."""
    if at is None:
        return False
    if node.target in _WITH_A_NUMBER:
        return node.args[1] in (at, -at)
    if node.target is prims.convert_element_type.default:
        return float_bytes(node) == 0
    return node.target in _STEPS or (node.target in _SIGNS and at == 0)


def _without_casts(node: Node) -> Node:
    """What a node casts between floats, or takes the magnitude of."""
    casts = (prims.convert_element_type.default, aten.abs.default)
    return unviewed(node, lambda n: n.target in casts and float_bytes(n) > 0)


def roundings(graph: Graph) -> list[Node]:
    """The pointwise operators that have to round as in eager, for comparisons to be right whichever values
    are stored and whichever are computed again."""
    found, same = set[str](), functools.cache(lambda: _expressions(graph))
    for node in graph.nodes:
        if both := sides(node):
            one, other = ({same()[n]: n for n in _computed_from(side)} for side in both)
            if any(_is_rounded(one[shared]) for shared in one.keys() & other.keys()):
                found |= {*one, *other, same()[node]}
    return [n for n, name in same().items() if name in found and _rounds(n)] if found else []


def _expressions(graph: Graph) -> dict[Node, str]:
    """For each node, the name of the first one that computes the same: AOTAutograd may make one of both."""
    names, first = dict[Node, str](), dict[str, str]()
    for node in graph.nodes:
        key = node.name
        if isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded not in node.target.tags:
            key = f"{node.target}{torch.fx.map_arg((node.args, node.kwargs), names.__getitem__)}"
        names[node] = first.setdefault(key, node.name)
    return names


def compared(nodes: Iterable[Node]) -> frozenset[Node]:
    """The values in half precision that some nodes compare with others."""
    values = (unviewed(side) for node in nodes for side in sides(node))
    return frozenset(n for n in values if float_bytes(n) == 2)


def _computed_from(node: Node) -> set[Node]:
    """A node and all that it is computed from, by operators that Inductor may compute again."""
    return set(closure([node], lambda n: operands(n) if is_pointwise(n) or _selects(n) else ()))


def _selects(node: Node) -> bool:
    """Whether a node's elements are elements of its operands, so that they need no rounding of their own."""
    if not isinstance(node.target, OpOverload):
        return node.target is operator.getitem
    return node.target.is_view or node.target.overloadpacket.__name__ in _SELECTING


def _is_rounded(node: Node) -> bool:
    """Whether eager rounds a node's result to half precision, and Inductor where it stores it."""
    return takes_operands(node) and float_bytes(node) == 2 and not _selects(node)


def _rounds(node: Node) -> bool:
    """Whether a pointwise node rounds anything to half precision in eager: its result, or an operand that is
    the result of a reduction."""
    operands_too = (node, *map(unviewed, operands(node)))
    return is_pointwise(node) and not _selects(node) and any(map(_is_rounded, operands_too))
