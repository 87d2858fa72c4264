"""Regions that reduce over reduction groups, and then compute with every element of these again: the backward
of batch, group and instance norm, and the forward of a group norm in channels-last.

All of a region's sums of full size are over the same axes. What follows from them is small: a few values for
each channel, group or sample, some of which are reduced again. These are needed for every element, as by dx.

Takes the FX graph; finds seeds, and grows a `Region` around each by the rules of `tile.py`. Reads the graph,
never writes it.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence

import torch
from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..inductor.tensors import is_dense
from ..ir.program import AxisClass
from .axes import Space, space_of
from .factors import Order, Run, boundaries, flat
from .layouts import may_lie_otherwise
from .nodes import (
    fake,
    is_bit_view,
    is_moment,
    is_permutation,
    is_pointwise,
    is_relative_sum,
    is_variance,
    operands,
    reduced,
    reduction_kind,
    shape_of,
    size_of,
)
from .orders import Orders, is_loop
from .region import Region
from .sizes import Size, product
from .space_analysis import SpaceAnalysis
from .spans import bytes_of
from .tile import TileGrowth, TileSeed, above, is_row_major
from .transposed import traced_shape
from .walk import by_position, dependents, descendants, needed_for, position, sweep

SHORT = 64  # elements of a group, up to which one of Inductor's kernels reads each once, and is fast
SHORT_ROW = 2048  # of a row, which one kernel reads twice in less time


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReductionGroupSeed(TileSeed):
    """Sums over the same axes of what is computed from the elements of `root` and of other tensors."""


def may_be_over_reduction_group(node: Node) -> bool:
    """Whether a node is a sum over some axes of a tensor, and not over all."""
    kind = reduction_kind(node)
    if kind is None or not kind.compensable or is_relative_sum(node) or (what := reduced(node)) is None:
        return False
    if not what.run:
        return False
    return product(factor.size for factor in what.run) != product(what.shape)


def reduced_further(nodes: Iterable[Node]) -> set[Size]:
    """The numbers of elements of tensors that are reduced, with a result that loops reduce further: how many
    elements the second reduction has is another number. In one pass: a sum of a deep network has all layers
    behind it."""
    above: dict[Node, frozenset[Size]] = {}
    further = set[Size]()
    for node in nodes:
        if (what := reduced(node)) is None and not is_loop(node):
            continue
        sizes = frozenset[Size]().union(*(above.get(arg, ()) for arg in operands(node)))
        if what is not None:
            operand_size = {product(what.shape)}
            further |= sizes - operand_size
            sizes |= operand_size
        above[node] = sizes
    return further


def group_seed(
    node: Node, further: Collection[Size], paired: Collection[Node] = ()
) -> ReductionGroupSeed | None:
    """The seed that a sum belongs to; None if no element is computed from sums over its axes, or if Inductor
    has one kernel for it all. No pair has sums that are reduced further (of so many elements: `further`)
    before elements are computed; of `paired`, there are no others."""
    size = product(shape_of(operands(node)[0]) or ())
    if node in paired and size not in further:
        return None
    computed = above([node])
    sources = by_position(n for n in computed if not is_loop(n) and product(shape_of(n) or ()) == size)
    if not sources:
        return None
    if _is_statistic(node) and all(map(is_row_major, sources)) and not any(map(is_permutation, computed)):
        return None
    orders = Orders(sources[0]).spread({node, *filter(is_loop, computed)})
    candidates, below = [node], list[Node]()

    def is_below(user: Node) -> bool:
        known = is_loop(user) or reduced(user) is not None
        if not known or not orders.find(user) or not orders.agrees(user):
            return False
        below.append(user)
        if (
            user is not node
            and may_be_over_reduction_group(user)
            and orders.reduced(user) == orders.reduced(node)
        ):
            candidates.append(user)
        return True

    if node not in orders or not orders.agrees(node):
        return None
    if _is_statistic(node) and not any(_is_across_memory(node, orders, n) for n in sources if n in orders):
        return None
    sweep({user for n in sources if n in orders for user in n.users}, is_below)
    candidates = by_position(candidates)
    behind = dependents(candidates, below)
    first = [n for n in candidates if behind.isdisjoint(operands(n))]
    if node not in first:
        return None
    first = _independent(node, first)
    later = dependents(first, below)
    elements = [n for n in later if orders.size_of(n) == size and is_loop(n)]
    if not elements:
        return None
    small = {n for n in later if reduced(n) is not None and orders.size_of(operands(n)[0]) != size}
    chained = not small.isdisjoint(needed_for(elements, since=position(node)))
    if not chained and (node in paired or _is_left(node, orders.reduced(node), sources[0], bool(small))):
        return None
    return ReductionGroupSeed(SpaceAnalysis(size), Space(()), (), tuple(by_position(first)), root=sources[0])


def _is_statistic(node: Node) -> bool:
    return is_moment(node) or is_variance(node)


def _is_across_memory(node: Node, orders: Orders, source: Node) -> bool:
    """Whether the dims that a reduction reduces are in another order than in a tensor's memory. Inductor
    divides a long sum in the dims' order, and then reads one element of a sector. In the order of memory its
    kernels move as many bytes as ours."""
    val, what = fake(source), reduced(node)
    if val is None or what is None or not _has_known_strides(val):
        return False
    way = _in_memory(orders[source], val.stride())
    in_turn = [f for d in what.dims for f in orders[operands(node)[0]][d]]
    if not all(isinstance(f.stride, int) for f in (*way, *in_turn)):
        return False
    places = [
        (i, -max(of.stride, f.stride))
        for f in in_turn
        for i, of in sorted(enumerate(way), key=lambda entry: -entry[1].stride)
        if f.begins(of.stride) or of.begins(f.stride)
    ]
    return places != sorted(places)


def _independent(node: Node, candidates: list[Node]) -> list[Node]:
    """A node and those candidates that neither it nor one another needs, through whatever nodes: a network's
    layers read one another's gradients, and have sums over the same axes."""
    since, last = (position(by_position(candidates)[i]) for i in (0, -1))

    def below(node: Node) -> Iterator[Node]:
        return descendants([node], lambda n: position(n) <= last)

    taken, related = {node}, needed_for([node], since).union(below(node))
    for candidate in by_position(candidates):
        if candidate not in related:
            taken.add(candidate)
            related.update(below(candidate))
    return by_position(taken)


def _is_left(node: Node, run: Run, source: Node, reduced_further: bool) -> bool:
    """Whether sums over such axes, with which elements are computed right away, are left to Inductor and to
    the strategies for rows. A contiguous row is a reduction group only where results of several rows
    are reduced further, as for a channel of several samples."""
    whole, left = (traced_shape(tensor) for tensor in (operands(node)[0], node))
    is_row = len(run) == 1 and run[0].stride == 1 and is_row_major(source)
    if is_row and not reduced_further:
        return True
    if whole is None or left is None:
        return True
    return math.prod(whole) <= (SHORT_ROW if is_row else SHORT) * math.prod(left)


class ReductionGroupGrowth(TileGrowth):
    """Grows one region around sums over reduction groups."""

    def __init__(self, seed: ReductionGroupSeed) -> None:
        _check_strides(seed)
        super().__init__(seed)

    def grow(self, name: str) -> Region:
        region = super().grow(name)
        if not any(map(self.analysis.is_full, region.outputs)):
            raise Decline(DeclineReason.AXIS_CLASS, "nothing of full size is computed from the sums")
        return dataclasses.replace(region, output_strides=_as_read(region))

    def joins(self, node: Node, args: list[Node]) -> bool:
        if node in self.above or node in self.wanted:
            return self.fits(node, args)
        live = self.live(args)
        if not live:
            is_sibling = self.is_sibling_sum(node) or self.is_sibling_result(node)
            return node not in self.early and is_sibling and self.fits(node, args)
        if columns := [a for a in args if a in self.column]:
            fitting = is_loop(node) and len(columns) == len(live) and not self.analysis.is_full(node)
        else:
            small = reduced(node) is not None and not self.analysis.is_full(args[0])
            fitting = is_loop(node) or small or self.spans_rows(node)
        return fitting and self.fits(node, args)

    def is_sibling_sum(self, node: Node) -> bool:
        """Whether a node is a sum over more axes than the groups', of elements that the region reads: the
        gradient of a scale or of a shift of each channel, where statistics are of each sample."""
        wider = self.spans_rows(node) and self.orders.reduced(node) != self.run
        return wider and self.reads.issuperset(self.sources(node))

    def is_standalone(self, node: Node) -> bool:
        return super().is_standalone(node) or self.is_sibling_result(node)

    def is_sibling_result(self, node: Node) -> bool:
        """Whether a loop would write a node, of elements that the region reads: the gradient of a scale that
        has all elements."""
        is_full = is_pointwise(node) and not is_bit_view(node) and self.analysis.is_full(node)
        is_result = is_full and self.is_stored(node) and not any(map(is_loop, node.users))
        return is_result and self.reads.issuperset(self.sources(node))

    @property
    def run(self) -> Run:
        """The factors that the groups' sums reduce. The first one may be of a stored tensor that the others
        are not computed from: its order is looked for."""
        first = by_position(self.wanted)[0]
        if not self.orders.search(first):
            raise Decline(DeclineReason.AXIS_CLASS, "the sums are of tensors in different orders", first.name)
        return self.orders.reduced(first)

    def spans_rows(self, node: Node) -> bool:
        """Whether a node is a sum of elements over the groups' axes and maybe more, such as the gradient of a
        bias in front of the norm. All of these are over the same. A variance is none: it needs the mean's
        total."""
        full = (
            may_be_over_reduction_group(node)
            and not _is_statistic(node)
            and self.analysis.is_full(operands(node)[0])
        )
        if (
            not full
            or node in self.wanted
            or not self.orders.search(node)
            or operands(node)[0] not in self.orders
        ):
            return False
        node_run = self.orders.reduced(node)
        column_runs = {self.orders.reduced(n) for n in self.column if reduced(n) is not None}
        if not isinstance(product(f.size for f in node_run), int):
            return False
        return column_runs <= {node_run} and all(any(o.covers(f) for o in node_run) for f in self.run)

    def stays(self, node: Node) -> bool:
        """As for any region, but for what both passes compute from several tensors: the first pass stores it,
        and the second one reads that, as do users outside."""
        if self.analysis.is_full(node) and not self.members[node]:
            read = sum(map(bytes_of, self.sources(node)))
            if read > 2 * bytes_of(node):
                return False
        return super().stays(node)

    def sides(self, reductions: list[Node]) -> tuple[list[Node], list[Node]]:
        return [], reductions

    def check_left(self, nodes: Collection[Node], reductions: Collection[Node]) -> None:
        if lost := by_position(self.wanted.difference(nodes)):
            raise Decline(
                DeclineReason.CYCLE, "a sum depends on another one through a node outside", lost[0].name
            )

    def space(self, nodes: tuple[Node, ...]) -> Space:
        """The axes that the tensors tell apart: rows are those that the sums reduce, columns the others."""
        known = {*nodes, *(a for n in nodes for a in operands(n))}
        cuts = set().union(*(boundaries(flat(self.orders[n])) | self.gaps(n) for n in known))
        runs = [self.orders.reduced(n) for n in by_position(self.wanted)]
        kinds = {AxisClass.ROW: AxisClass.ROW}
        axes = space_of(self.analysis.numel, [], runs, cuts).axes
        return Space(tuple((size, kinds.get(kind, AxisClass.COLUMN)) for size, kind in axes))


def _check_strides(seed: ReductionGroupSeed) -> None:
    """Raise `Decline` where an axis of a kernel would have a stride that is no number, before
    the region is grown and lowered: that takes long with symbolic sizes."""
    node, val, shape = seed.outer[0], fake(seed.root), shape_of(seed.root)
    assert val is not None and shape is not None
    strides = [*map(size_of, val.stride())]
    if all(isinstance(n, int) for n in strides):
        return
    orders = Orders(seed.root).spread({node, *filter(is_loop, above([node]))})
    gone = orders.reduced(node)
    left, stride, inner = {d for d, n in enumerate(shape) if n != 1}, 1, list[tuple[Size, bool]]()
    while (dim := next((d for d in left if strides[d] == stride), None)) is not None:
        left.remove(dim)
        stride = product((stride, shape[dim]))
        for factor in reversed(orders[seed.root][dim]):
            boundary = factor.stride, any(reduced_factor.covers(factor) for reduced_factor in gone)
            if inner and boundary != inner[-1] and not isinstance(strides[dim], int):
                detail = f"of shape {tuple(val.shape)}, one tensor has strides {tuple(val.stride())}"
                raise Decline(DeclineReason.DYNAMIC_SHAPE, detail, node.name)
            inner.append((factor.end, boundary[1]))


def _as_read(region: Region) -> dict[Node, tuple[int, ...]]:
    """The strides of outputs that lie in memory as all inputs do, where the graph states others that nobody
    needs. Torch's group norm has contiguous gradients, also where convolutions give and take other ones."""
    assert region.orders is not None
    read, output_strides = list[tuple[Node, tuple[int, ...]]](), dict[Node, tuple[int, ...]]()
    for node in filter(region.seed.analysis.is_full, region.inputs):
        if (val := fake(node)) is not None and _has_known_strides(val):
            read.append((node, val.stride()))
    ways = {_in_memory(region.orders[node], strides) for node, strides in read}
    for node in filter(region.seed.analysis.is_full, region.outputs if len(ways) == 1 else ()):
        alike = (strides for tensor, strides in read if shape_of(tensor) == shape_of(node))
        strides = next(alike, None) or _lying(region.orders[node], *ways)
        if strides is not None and may_lie_otherwise(node, strides):
            output_strides[node] = strides
    return output_strides


def _has_known_strides(val: torch.Tensor) -> bool:
    """Whether a tensor is dense, and its strides are numbers: only then torch is asked, which takes long."""
    return all(isinstance(n, int) for n in val.stride()) and is_dense(val)


def _in_memory(order: Order, strides: Sequence[int]) -> Run:
    """The factors of a dense tensor's index, in the order of memory."""
    dims = sorted(zip(strides, order, strict=True), key=operator.itemgetter(0), reverse=True)
    return flat(tuple(run for _, run in dims))


def _lying(order: Order, way: Run) -> tuple[int, ...] | None:
    """The strides of a tensor whose elements are in memory in the order of some factors; None if no strides
    give that."""

    def place(dim: int) -> tuple[int, Size]:
        first = order[dim][0].stride if order[dim] else 0
        within = (i for i, factor in enumerate(way) if factor.begins(first))
        return next(within, -1), -first

    dims, strides = sorted(range(len(order)), key=place), [0] * len(order)
    stride: Size = 1
    for dim in reversed(dims):
        if not isinstance(stride, int):
            return None
        strides[dim] = stride
        stride = product((stride, *(factor.size for factor in order[dim])))
    return tuple(strides) if flat(tuple(order[dim] for dim in dims)) == way else None
