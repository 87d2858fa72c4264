"""Tensors that are put together along a dim, and what is computed of their pieces.

A reduction over other dims is a `cat` of the pieces' reductions, and one over the dim itself is the sum of
these, or the largest or smallest. So a kernel computes each piece once, instead of all of them for every
element of the whole, and a row of 513 elements is one of 512 and an element more.

Reads the graph, never writes it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch.fx import Node

from ..errors import Decline
from ..ir.program import AxisClass
from ..region.axes import Reduced, classify
from ..region.gathers import SPLITS, is_piece
from ..region.layouts import is_read_as_stated
from ..region.nodes import (
    argument,
    is_masked_write,
    is_pair,
    is_permutation,
    is_pointwise,
    is_view,
    operands,
    reduced,
    shape_of,
    shows,
    unviewed,
)
from ..region.sizes import product
from ..region.space_analysis import SMALL, takes_operands
from ..region.walk import closure
from .pieces import bounds, joined_of

aten = torch.ops.aten
ADDED = {aten.sum.dim_IntList: aten.add.Tensor, aten.amax.default: aten.maximum.default}
ADDED[aten.amin.default] = aten.minimum.default


@dataclasses.dataclass(frozen=True)
class Range:
    """A part of a tensor along a dim."""

    node: Node
    dim: int
    start: int
    end: int

    @property
    def shape(self) -> list[int]:
        shape: Sequence[int] = shape_of(self.node)  # type: ignore[assignment]
        return [self.end - self.start if d == self.dim else n for d, n in enumerate(shape)]

    @property
    def is_all(self) -> bool:
        return tuple(self.shape) == shape_of(self.node)


@dataclasses.dataclass
class Apart:
    """What is computed elementwise of a tensor that is put together.

    ranges: the pieces of that tensor, and of each that is computed of it.
    reductions: of these. parts: nodes that show a part of one, or of what the pieces are computed of.
    whole: those of these tensors that something else reads.
    """

    ranges: dict[Node, list[Range]]
    reductions: list[Node] = dataclasses.field(default_factory=list)
    parts: dict[Node, Range] = dataclasses.field(default_factory=dict)
    whole: list[Node] = dataclasses.field(default_factory=list)


def is_elementwise(node: Node) -> bool:
    """Whether each element of a node is computed of those at the same place of its operands."""
    return (is_pointwise(node) and not is_masked_write(node)) or node.target is aten.expand.default


def range_of(node: Node) -> Range | None:
    """The part of a tensor that a slice or a piece of a split shows; None for any other node."""
    source = operands(node)[0] if node.target is aten.slice.Tensor or is_piece(node) else node
    source = operands(source)[0] if source.target in SPLITS else source
    shape, own = shape_of(source), shape_of(node)
    if source is node or not _are_numbers(shape) or not _are_numbers(own):
        return None
    if node.target is aten.slice.Tensor:
        dim = argument(node, 1, "dim", 0) % len(shape)  # type: ignore[arg-type]
        if argument(node, 4, "step", 1) != 1 or len(node.all_input_nodes) > 1:
            return None
        return Range(source, dim, *bounds(node, 2, shape[dim]))  # type: ignore[index]
    split: Node = node.args[0]  # type: ignore[assignment]
    dim = argument(split, 2, "dim", 0) % len(shape)  # type: ignore[arg-type]
    sizes = [val.shape[dim] for val in split.meta["val"]]
    ends = [0, *itertools.accumulate(sizes)]
    return Range(source, dim, *ends[node.args[1] :][:2])  # type: ignore[index,misc]


def reshaped(part: Range, other: Node) -> Range | None:
    """The same elements of another tensor, of which one is a view of the other without moved elements; None
    if they are no part of it."""
    shape, own = shape_of(other), shape_of(part.node)
    if not _are_numbers(shape) or own is None:
        return None
    step, before = product(own[part.dim + 1 :]), product(own[: part.dim])
    for d, n in enumerate(shape):  # type: ignore[arg-type]
        behind: int = product(shape[d + 1 :])  # type: ignore[assignment,index]
        start, end = part.start * step, part.end * step
        if n != 1 and product(shape[:d]) == before and start % behind == end % behind == 0:  # type: ignore[index]
            return Range(other, d, start // behind, end // behind)
    return None


def permuted(part: Range, other: Node, order: Sequence[int]) -> Range:
    """The same elements of another tensor, whose dims are in another order: `order[dim]` of `part`'s."""
    return Range(other, order[part.dim], part.start, part.end)


def apart(nodes: Sequence[Node]) -> Iterator[Apart]:
    """What is to be computed of each piece, the last in the graph first."""
    taken = set[Node]()
    for node in reversed(nodes):
        if node in taken or (pieces := joined_of(node)) is None:
            continue
        taken.update(pieces.inside)
        ends = itertools.pairwise((0, *itertools.accumulate(p.size for p in pieces.all)))
        found = _computed_of(node, [Range(node, pieces.dim, *one) for one in ends])
        sources = {i: p.source for i, p in enumerate(pieces.all) if isinstance(p.source, Node)}
        along = {found.ranges[operands(n)[0]][0].dim in reduced(n).dims for n in found.reductions}  # type: ignore[union-attr]
        sizes = sorted(p.size for p in pieces.all)
        if along == {True} and SMALL * sum(sizes[:-1]) <= sizes[-1]:
            pays = True
        elif pays := along == {False} and _are_added_up(found, sources):
            shown = {n: range_of(n) for n in _above(sources.values())}
            found.parts |= {n: part for n, part in shown.items() if part and is_recomputed(part.node)}
        if pays and taken.isdisjoint(found.ranges.keys() - {node}):
            taken.update(found.ranges)
            yield found


def is_recomputed(node: Node) -> bool:
    """Whether loops compute a tensor elementwise, and nothing needs it in memory."""
    return is_elementwise(node) and not is_read_as_stated(node)


def _computed_of(first: Node, pieces: list[Range]) -> Apart:
    found = Apart({first: pieces})

    def below(node: Node) -> Iterator[Node]:
        for user in node.users:
            if user not in found.ranges and (ranges := _ranges_below(user, found.ranges[node])):
                found.ranges[user] = ranges
            if user in found.ranges:
                yield user

    for node in list(closure([first], below)):
        ends = {n for part in found.ranges[node] for n in (part.start, part.end)}
        dim = found.ranges[node][0].dim
        users = (u for user in node.users for u in (user.users if user.target in SPLITS else (user,)))
        for user in users:
            part = range_of(user)
            if user in found.ranges:
                continue
            if part is not None and part.dim == dim and {part.start, part.end} <= ends:
                found.parts[user] = part
            elif user.target in ADDED and reduced(user) is not None:
                found.reductions.append(user)
            else:
                found.whole.append(unviewed(node, shows))
    found.whole = [n for n in dict.fromkeys(found.whole) if n.target is not aten.cat.default]
    return found


def _ranges_below(user: Node, ranges: list[Range]) -> list[Range] | None:
    """The pieces of what is computed of a tensor in pieces; None if that is not computed elementwise."""
    node, order = ranges[0].node, range(len(shape_of(ranges[0].node) or ()))
    if is_permutation(user):
        back: Sequence[int] = user.args[1]  # type: ignore[assignment]
        back = [d % len(order) for d in back]
        return [permuted(part, user, [back.index(d) for d in order]) for part in ranges]
    if is_view(user) and not is_pair(user):
        found = [reshaped(part, user) for part in ranges] if user.target is not aten.expand.default else []
        return None if None in found else found  # type: ignore[return-value]
    if is_pointwise(user) and not is_masked_write(user) and shape_of(user) == shape_of(node):
        return [dataclasses.replace(part, node=user) for part in ranges]
    return None


def _are_added_up(found: Apart, sources: Mapping[int, Node]) -> bool:
    """Whether a kernel that computes a piece can add it up: one with a reduction along its rows, or one that
    computes two pieces of one size of the same tensors. `sources`: of pieces, by their places."""
    above = {i: _above([n]) for i, n in sources.items() if takes_operands(unviewed(n))}
    for i, those in above.items():
        ends = [(found.ranges[operands(n)[0]][i], reduced(n)) for n in found.reductions]
        outer = [Reduced(tuple(part.shape), what.dims) for part, what in ends if what]
        inner = [what for n in those if (what := reduced(n)) is not None]
        if any(_are_pair(*both) for both in itertools.product(inner, outer)):
            return True
    alike = (
        both for both in itertools.combinations(above, 2) if len({shape_of(sources[i]) for i in both}) == 1
    )
    for i, j in alike:
        size = product(shape_of(sources[i]) or ())
        read, other = (_above([sources[k]], reductions=False) for k in (i, j))
        if any(product(shape_of(n) or ()) == size for n in read & other):
            return True
    return False


def _are_pair(inner: Reduced, outer: Reduced) -> bool:
    if product(inner.shape) != product(outer.shape) or len(inner.dims) == len(inner.shape):
        return False
    try:
        space = classify(inner, outer)
    except Decline:
        return False
    return {kind for _, kind in space.axes} == {AxisClass.ROW, AxisClass.COLUMN}


def _above(nodes: Iterable[Node], reductions: bool = True) -> set[Node]:
    """Some nodes and what loops compute them of, also by reductions."""

    def above(node: Node) -> Iterable[Node]:
        shown = is_elementwise(node) or shows(node) or _shows_part(node)
        return operands(node) if shown or (reductions and reduced(node)) else ()

    return {*closure(nodes, above)}


def _shows_part(node: Node) -> bool:
    return node.target is aten.slice.Tensor or is_piece(node) or node.target in SPLITS


def _are_numbers(shape: Sequence[object] | None) -> bool:
    return shape is not None and all(isinstance(n, int) for n in shape)
