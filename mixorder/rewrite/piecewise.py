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
from ..region.walk import closure, sources
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
class Piecewise:
    """What is computed elementwise of a tensor that is put together.

    ranges: the pieces of that tensor, and of each that is computed of it.
    reductions: of these. slices: nodes that show a part of one, or of what the pieces are computed of.
    whole: those of these tensors that something else reads.
    """

    ranges: dict[Node, list[Range]]
    reductions: list[Node] = dataclasses.field(default_factory=list)
    slices: dict[Node, Range] = dataclasses.field(default_factory=dict)
    whole: list[Node] = dataclasses.field(default_factory=list)

    @property
    def nodes(self) -> set[Node]:
        """Those that are to be computed of the pieces."""
        return {*self.slices, *self.reductions, *self.whole}


def is_elementwise(node: Node) -> bool:
    """Whether each element of a node is computed of those at the same place of its operands."""
    return (is_pointwise(node) and not is_masked_write(node)) or node.target is aten.expand.default


def range_of(node: Node) -> Range | None:
    """The part of a tensor that a slice or a piece of a split shows; None for any other node."""
    source = operands(node)[0] if node.target is aten.slice.Tensor or is_piece(node) else node
    source = operands(source)[0] if source.target in SPLITS else source
    shape, part_shape = shape_of(source), shape_of(node)
    if source is node or not _are_numbers(shape) or not _are_numbers(part_shape):
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


def reshaped(range_: Range, tensor: Node) -> Range | None:
    """The same elements of another tensor, of which one is a view of the other without moved elements; None
    if they are no part of it."""
    shape, part_shape = shape_of(tensor), shape_of(range_.node)
    if not _are_numbers(shape) or part_shape is None:
        return None
    step, before = product(part_shape[range_.dim + 1 :]), product(part_shape[: range_.dim])
    for d, n in enumerate(shape):  # type: ignore[arg-type]
        behind: int = product(shape[d + 1 :])  # type: ignore[assignment,index]
        start, end = range_.start * step, range_.end * step
        if n != 1 and product(shape[:d]) == before and start % behind == end % behind == 0:  # type: ignore[index]
            return Range(tensor, d, start // behind, end // behind)
    return None


def permuted(range_: Range, tensor: Node, order: Sequence[int]) -> Range:
    """The same elements of another tensor, whose dims are in another order: `order[dim]` of `range_`'s."""
    return Range(tensor, order[range_.dim], range_.start, range_.end)


def find_piecewise(nodes: Sequence[Node]) -> Iterator[Piecewise]:
    """What is to be computed of each piece, the last in the graph first."""
    taken = set[Node]()
    for node in reversed(nodes):
        if node in taken or (pieces := joined_of(node)) is None:
            continue
        taken.update(pieces.inside)
        ends = itertools.pairwise((0, *itertools.accumulate(p.size for p in pieces.all)))
        piecewise = _computed_of(node, [Range(node, pieces.dim, *span) for span in ends])
        made_of = {i: p.source for i, p in enumerate(pieces.all) if isinstance(p.source, Node)}
        along = {_divides_rows(n, piecewise.ranges[operands(n)[0]][0].dim) for n in piecewise.reductions}
        sizes = sorted(p.size for p in pieces.all)
        if along == {True} and SMALL * sum(sizes[:-1]) <= sizes[-1]:
            pays = True
        elif pays := along == {False} and _are_added_up(piecewise, made_of):
            shown = {n: range_of(n) for n in _above(made_of.values())}
            piecewise.slices |= {
                n: range_ for n, range_ in shown.items() if range_ and is_inlined(range_.node)
            }
        if pays and taken.isdisjoint(piecewise.ranges.keys() - {node}):
            taken.update(piecewise.ranges)
            yield piecewise


def _divides_rows(reduction: Node, dim: int) -> bool | None:
    """Whether a reduction goes along the dim of the pieces. None where each row lies in one piece, as for the
    sum over all tokens, of which one stands for the class: one kernel adds up the rows of all pieces."""
    shape, dims = reduced(reduction).shape, reduced(reduction).dims  # type: ignore[union-attr]
    return None if dim in dims and not set(range(dim, len(shape))) <= set(dims) else dim in dims


def is_inlined(node: Node) -> bool:
    """Whether loops compute a tensor elementwise, and nothing needs it in memory."""
    return is_elementwise(node) and not is_read_as_stated(node)


def _computed_of(first: Node, pieces: list[Range]) -> Piecewise:
    piecewise = Piecewise({first: pieces})

    def below(node: Node) -> Iterator[Node]:
        for user in node.users:
            if user not in piecewise.ranges and (ranges := _ranges_below(user, piecewise.ranges[node])):
                piecewise.ranges[user] = ranges
            if user in piecewise.ranges:
                yield user

    for node in list(closure([first], below)):
        ends = {n for range_ in piecewise.ranges[node] for n in (range_.start, range_.end)}
        dim = piecewise.ranges[node][0].dim
        users = (u for user in node.users for u in (user.users if user.target in SPLITS else (user,)))
        for user in users:
            range_ = range_of(user)
            if user in piecewise.ranges:
                continue
            if range_ is not None and range_.dim == dim and {range_.start, range_.end} <= ends:
                piecewise.slices[user] = range_
            elif user.target in ADDED and reduced(user) is not None:
                piecewise.reductions.append(user)
            else:
                piecewise.whole.append(unviewed(node, shows))
    piecewise.whole = [n for n in dict.fromkeys(piecewise.whole) if n.target is not aten.cat.default]
    return piecewise


def _ranges_below(user: Node, ranges: list[Range]) -> list[Range] | None:
    """The pieces of what is computed of a tensor in pieces; None if that is not computed elementwise."""
    node, order = ranges[0].node, range(len(shape_of(ranges[0].node) or ()))
    if is_permutation(user):
        back: Sequence[int] = user.args[1]  # type: ignore[assignment]
        back = [d % len(order) for d in back]
        return [permuted(range_, user, [back.index(d) for d in order]) for range_ in ranges]
    if is_view(user) and not is_pair(user):
        views = (
            [reshaped(range_, user) for range_ in ranges] if user.target is not aten.expand.default else []
        )
        return None if None in views else views  # type: ignore[return-value]
    if is_pointwise(user) and not is_masked_write(user) and shape_of(user) == shape_of(node):
        return [dataclasses.replace(range_, node=user) for range_ in ranges]
    return None


def _are_added_up(piecewise: Piecewise, made_of: Mapping[int, Node]) -> bool:
    """Whether a kernel that computes a piece can add it up: one with a reduction along its rows, or one that
    computes two pieces of one size of the same tensors. `made_of`: the pieces' sources by their places."""
    above = {i: _above([n]) for i, n in made_of.items() if takes_operands(unviewed(n))}
    for i, those in above.items():
        ends = [(piecewise.ranges[operands(n)[0]][i], reduced(n)) for n in piecewise.reductions]
        outer = [Reduced(tuple(range_.shape), what.dims) for range_, what in ends if what]
        inner = [what for n in those if (what := reduced(n)) is not None]
        if any(_are_pair(*both) for both in itertools.product(inner, outer)):
            return True
    alike = (
        both for both in itertools.combinations(above, 2) if len({shape_of(made_of[i]) for i in both}) == 1
    )
    for i, j in alike:
        size = product(shape_of(made_of[i]) or ())
        read, also_read = (_above([made_of[k]], reductions=False) for k in (i, j))
        if any(product(shape_of(n) or ()) == size for n in read & also_read):
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

    def is_computed(node: Node) -> bool:
        shown = is_elementwise(node) or shows(node) or _shows_slice(node)
        return shown or (reductions and reduced(node) is not None)

    return {*sources(nodes, is_computed)}


def _shows_slice(node: Node) -> bool:
    return node.target is aten.slice.Tensor or is_piece(node) or node.target in SPLITS


def _are_numbers(shape: Sequence[object] | None) -> bool:
    return shape is not None and all(isinstance(n, int) for n in shape)
