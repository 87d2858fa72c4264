"""Comparisons whose result hangs on a rounding: of two values that are computed from one in half precision.

Inductor keeps a value in half precision unrounded where it computes it, and rounds what it stores. So a
stored maximum may equal no element that is recomputed, as in the backward of `amax`, which then divides
by a count of zero. Eager compares rounded values only.

The backward of a ReLU, and of a LeakyReLU in place, compares what the forward stored with zero. Behind a
norm, it can compare the norm's result, which it computes from tensors that it reads for the norm's gradient
anyway.

Takes nodes of a graph, answers questions, changes nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.fx import Graph, Node

from ..inductor.graphs import OpOverload, has_kernel_of_its_own, is_recomputed
from ..inductor.tensors import unset_fake_temporarily
from .nodes import (
    VIEWS,
    fake,
    float_bytes,
    is_pointwise,
    operands,
    readers,
    reduction_kind,
    shape_of,
    shows,
    stated_by,
    unviewed,
)
from .sizes import Size, product
from .space_analysis import takes_operands
from .walk import by_position, closure, dependents, needed_for, position, sources

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

COPIED = 1 << 22  # elements of half precision that a GPU reads while it launches a kernel
_SUMS = (aten.add.Tensor, aten.sub.Tensor)
_AFFINE = frozenset({*_SUMS, aten.mul.Tensor, prims.convert_element_type.default})
_SIGNED = (aten.le.Scalar, aten.gt.Scalar)
_BENT = frozenset({aten.relu.default, aten.where.self, prims.convert_element_type.default})

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
    are stored and whichever are recomputed."""
    expressions, same = set[str](), functools.cache(lambda: _expressions(graph))
    for node in graph.nodes:
        if both := sides(node):
            left, right = ({same()[n]: n for n in _computed_from(side)} for side in both)
            if any(_is_rounded(left[shared]) for shared in left.keys() & right.keys()):
                expressions |= {*left, *right, same()[node]}
    return [n for n, name in same().items() if name in expressions and _rounds(n)] if expressions else []


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
    """A node and all that it is computed from, by operators that Inductor may recompute."""
    return set(sources([node], lambda n: is_pointwise(n) or _selects(n)))


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


@dataclasses.dataclass(frozen=True)
class Given:
    """A small operand of loops that is made of what the graph is given, such as a norm's bias."""

    node: Node
    loops: list[Node]
    """The loops that read it, in graph order."""

    statistic: Node | None
    """A statistic that the same loops read, with an element for each of its own; None if there is none."""


@dataclasses.dataclass(frozen=True)
class Mask:
    """The sign of an activation's input, by which its gradient is chosen."""

    node: Node
    """The comparison of what the forward stored with zero."""

    value: Node
    """What the stored elements are made of."""

    most: float
    """The largest number that is stored as zero."""

    given: Sequence[Given] = ()
    """What the backward has to save for it."""


def masks(graph: Graph, least: int) -> Iterator[Mask]:
    """The masks of a joint graph, of at least so many elements, that the backward can compute from what it
    reads anyway. It has what the forward stored as well, for Inductor's kernels, which would store the masked
    gradient."""
    late = functools.cache(lambda: _computed_from_gradients(graph))
    for node in (n for target in _SIGNED for n in graph.find_nodes(op="call_function", target=target)):
        stored = unviewed(node.args[0], lambda n: _is_reshaped(n) or _is_cast_from_half(n))
        size = _size(stored)
        if node.args[1] != 0 or (isinstance(size, int) and size < least) or is_recomputed(stored):
            continue
        if not _is_saved(stored, late()) or (mask := _by_sign(node, stored)) is None:
            continue
        alike = shape_of(mask.value) == shape_of(node) or isinstance(size, int)
        source = _normalised(mask.value) if alike else None
        if source is None or not _is_read_anyway(source, mask.value, late()):
            continue
        mask = dataclasses.replace(mask, given=_given(mask.value))
        copies = sum(given.statistic is None for given in mask.given)
        if not isinstance(size, int) or size >= copies * COPIED:
            yield mask


def _is_cast_from_half(node: Node) -> bool:
    return node.target is prims.convert_element_type.default and float_bytes(operands(node)[0]) == 2


def _is_reshaped(node: Node) -> bool:
    """Whether a node has an operand's elements, in their order."""
    return node.target in VIEWS and _size(node) == _size(operands(node)[0])


def _by_sign(node: Node, stored: Node) -> Mask | None:
    """A mask as the sign of one value, if what is stored is that value where it is positive, rounded to half
    precision or not, and has its sign elsewhere. A few numbers tell, since all operators in between are
    linear on either side of zero."""
    between = by_position(sources([node], _is_bent))
    value, *operators = between
    halves = {fake(n).dtype for n in operators if float_bytes(n) == 2}  # type: ignore[union-attr]
    if not float_bytes(value) or _is_bent(value) or not all(map(_is_bent, operators)) or len(halves) > 1:
        return None
    dtype = fake(value).dtype  # type: ignore[union-attr]
    info = torch.finfo(next(iter(halves), dtype))
    least = info.smallest_normal * info.eps
    with unset_fake_temporarily():
        numbers = torch.tensor([least, math.inf, 0, -1, -math.inf, math.nan], dtype=dtype, device="cpu")
        known = {value: numbers}
        for n in operators:
            known[n] = (
                known[operands(n)[0]]
                if _is_reshaped(n)
                else n.target(*torch.fx.map_arg(n.args, known.__getitem__), **n.kwargs)
            )
        signs = node.target(numbers, 0)  # type: ignore[operator]
        if not torch.equal(known[node], signs) or not torch.equal(known[stored][:2], numbers[:2]):
            return None
    # Of the two numbers that half of the smallest one is equally near to, 0 is even.
    return Mask(node, value, least / 2 if halves else 0.0)


def _is_bent(node: Node) -> bool:
    """Whether an operator is linear, or constant, on either side of zero."""
    if node.target is aten.mul.Tensor:
        return not isinstance(node.args[1], Node)
    compared = node.target in _WITH_A_NUMBER and node.args[1] == 0
    return compared or node.target in _BENT or _is_reshaped(node)


def _normalised(value: Node) -> Node | None:
    """The tensor whose norm a value is, if forward and backward compute the value from it with the same bits:
    both load it and its statistics, and a compiler can contract the products and sums in one way only. A
    tile's kernel contracts those of float32."""
    chain = list(sources([value], _is_computed))
    loops = [n for n in chain if is_pointwise(n) and _size(n) == _size(value)]
    leaves = [n for n in chain if not _is_computed(n)]
    full = [n for n in leaves if _size(n) == _size(value)]
    if len(full) != 1 or any(map(is_recomputed, chain)):
        return None
    statistics = needed_for([n for n in leaves if reduction_kind(n) is not None], position(full[0]))
    if full[0] not in statistics or not _is_loaded(full[0]):
        return None
    if not all(n.target in _AFFINE and float_bytes(n) == 4 and _is_contracted_alike(n) for n in loops):
        return None
    return full[0]


def _is_computed(node: Node) -> bool:
    """Whether loops compute a node of its operands' elements."""
    return is_pointwise(node) or shows(node)


def _given(value: Node) -> list[Given]:
    """What the loops that compute a value read of what the caller may change until the backward, which
    recomputes the value."""

    def is_made(node: Node) -> bool:
        return _is_computed(node) and bool(operands(node))

    chain = by_position(sources([value], _is_computed))
    loops = [n for n in chain if is_made(n) and _size(n) == _size(value)]
    read = dict[Node, list[Node]]()
    for loop in loops:
        for node in operands(loop):
            if _size(node) != _size(value):
                read.setdefault(node, []).append(loop)
    produced = {
        n
        for n in read
        if all(is_made(source) or _is_statistic(source, value) for source in sources([n], _is_computed))
    }
    # Without a view between loops, equal shapes say that elements meet.
    straight = all(is_pointwise(n) or not is_made(operands(n)[0]) for n in loops)

    def is_read_alike(node: Node, statistic: Node) -> bool:
        places = {_aligned(n, value) for n in (node, statistic)}
        dtypes = {fake(n).dtype for n in (node, statistic)}  # type: ignore[union-attr]
        return len(places) == len(dtypes) == 1 and position(statistic) < position(read[node][0])

    def find_statistic(node: Node) -> Node | None:
        return next((n for n in read if straight and n in produced and is_read_alike(node, n)), None)

    return [Given(n, users, find_statistic(n)) for n, users in read.items() if n not in produced]


def _is_statistic(node: Node, value: Node) -> bool:
    """Whether a node is a reduction of as many elements as a value has."""
    return reduction_kind(node) is not None and _size(operands(stated_by(node))[0]) == _size(value)


def _aligned(node: Node, value: Node) -> tuple[Size, ...]:
    """The shape of an operand, with as many dims as what is computed of it."""
    shape, whole = shape_of(node) or (), shape_of(value) or ()
    return (*(1,) * (len(whole) - len(shape)), *shape)


def _is_contracted_alike(node: Node) -> bool:
    """Whether a node is no sum, or one of at most one product, which is computed beside it, also in the
    backward: nothing else needs the product, so that it is not saved."""
    if node.target not in _SUMS:
        return True
    products = products_in(node)
    single_use = all(_size(n) == _size(node) and len(unviewed(n, shows).users) == 1 for n in products)
    return not node.kwargs and len(products) <= 1 and single_use


def products_in(node: Node) -> list[Node]:
    """The operands of a sum or a difference that are products; none of any other node."""
    if node.target not in _SUMS:
        return []
    return [n for n in operands(node) if unviewed(n, shows).target is aten.mul.Tensor]


def sums_of_products(value: Node) -> list[Node]:
    """The sums of products, as large as a mask's value, that the value is computed from."""
    chain = sources([value], _is_computed)
    return [n for n in chain if products_in(n) and _size(n) == _size(value)]


def _is_loaded(node: Node) -> bool:
    """Whether all that compute with a tensor load it, with the digits that it is stored with."""
    return float_bytes(node) > 2 or node.op == "placeholder" or has_kernel_of_its_own(node)


def _computed_from_gradients(graph: Graph) -> set[Node]:
    tangents = (n for n in graph.find_nodes(op="placeholder") if n.name.startswith("tangents"))
    return dependents(tangents, graph.nodes)


def _is_read_anyway(source: Node, value: Node, late: set[Node]) -> bool:
    """Whether loops compute something else from a tensor and from gradients (`late`)."""

    def is_early(node: Node) -> bool:
        return node is not value and node not in late and _is_computed(node)

    near = closure([source], lambda n: filter(is_early, n.users))
    return any(user in late and is_pointwise(user) for n in near for user in n.users)


def _is_saved(node: Node, late: set[Node]) -> bool:
    """Whether the backward reads a tensor in memory, such as a convolution's input."""
    return any(n in late and not (is_pointwise(n) or n.op == "output") for n in readers(node, shows))


def _size(node: Node) -> Size:
    return product(shape_of(node) or ())
