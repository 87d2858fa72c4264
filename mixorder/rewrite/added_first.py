"""Sums that begin with a sum over fewer elements, which a pair or another sum's loop has at hand.

A sum of all elements is that of each row's sum, beside a sum of each column, or else that of each column's.
Sums over several sets of axes begin with one over those that all are over: the gradients of a group norm's
weight and of its input both begin with the sum of each channel of each sample. The tensors may be views of
one another, as where a norm is written by hand.

Reads the graph, never writes it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch.fx import Node

from ..region.axes import Reduced, is_outer_like
from ..region.factors import Factor, Order, divided
from ..region.nodes import fake, is_permutation, is_view, operands, readers, reduced, shape_of
from ..region.orders import is_loop
from ..region.reduction_groups import reduced_further
from ..region.sizes import Size, product, ratio
from ..region.walk import by_position, closure, descendants, needed_for, position

_SUMS = (torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList)
MEAN = torch.ops.aten.mean.dim
MANY = 32  # elements of a sum, of which a result in fp32 is a few percent
COLUMNS, MOST_COLUMNS = 256, 8192  # lanes of a tile; sums that are added up in one more kernel of Inductor's


@dataclasses.dataclass(frozen=True)
class First:
    """The sum that another one begins with: for each dim of the operand, the sizes of what it is split into,
    and whether the first sum is over each."""

    dims: tuple[tuple[tuple[Size, bool], ...], ...]

    @property
    def sum(self) -> Reduced:
        splits = [split for dim in self.dims for split in dim]
        return Reduced(
            tuple(n for n, _ in splits), tuple(i for i, (_, summed) in enumerate(splits) if summed)
        )

    @property
    def left(self) -> tuple[Size, ...]:
        """The shape of the operand of the sum that follows."""
        return tuple(product(n for n, summed in dim if not summed) for dim in self.dims)


def added_first(nodes: Sequence[Node], above: Callable[[Node], set[Node]]) -> dict[Node, First]:
    """For each sum that begins with another one, that."""
    known = {n: what for n in nodes if (what := reduced(n)) is not None}
    some = {n: what for n, what in known.items() if len(what.dims) < len(what.shape)}
    sums = {n: what for n, what in some.items() if n.target in (*_SUMS, MEAN)}
    further = reduced_further(nodes)
    reads, by_read = functools.cache(_read_for), dict[Node, list[Node]]()
    for n in sums:
        for read in reads(n):
            by_read.setdefault(read, []).append(n)
    first_of = functools.partial(
        _of_reduction_groups, sums=sums, further=further, read_for=reads, by_read=by_read
    )
    firsts = {n: first for n, what in sums.items() if (first := first_of(n, what))}
    begun = {n: first.sum for n, first in firsts.items()}
    sums |= begun
    for node in [n for n in sums if n not in begun] if begun else ():
        if (first := _as_another(node, sums[node], begun, reads)) is not None:
            firsts[node] = first
    for node, what in known.items():
        if node.target in _SUMS and node not in some:
            first = first_of(node, what) or _of_rows(node, what, some, above)
            firsts |= {node: first} if first else {}
    return firsts


def is_traced(node: Node) -> bool:
    return is_loop(node) or reduced(node) is not None


def _of_rows(
    node: Node, what: Reduced, some: Mapping[Node, Reduced], above: Callable[[Node], set[Node]]
) -> First | None:
    """What a node that adds up all elements begins with. It is over the dims that another reduction of the
    same tensors keeps, rather the last one of them; otherwise over leading ones."""
    every, sources, candidates = range(len(what.shape)), above(operands(node)[0]), list[list[int]]()
    for reduction, over in some.items():
        kept = [d for d in every if d not in over.dims]
        alike = over.shape == what.shape and product(tuple(what.shape[d] for d in kept)) != 1
        if alike and not sources.isdisjoint(above(operands(reduction)[0])):
            candidates.insert(0 if every[-1] in kept else len(candidates), kept)
    for count in reversed(every[1:] if not candidates else ()):
        rows, cols = product(what.shape[:count]), product(what.shape[count:])
        if rows == 1 or not isinstance(cols, int) or (candidates and cols > MOST_COLUMNS):
            break
        candidates = [list(range(count))] if cols > 1 else []
        if cols >= COLUMNS:
            break
    return First(tuple(((n, d in candidates[0]),) for d, n in enumerate(what.shape))) if candidates else None


def _of_reduction_groups(
    node: Node,
    what: Reduced,
    sums: Mapping[Node, Reduced],
    further: Collection[Size],
    read_for: Callable[[Node], set[Node]],
    by_read: Mapping[Node, Sequence[Node]],
) -> First | None:
    """What a sum begins with that others of the same tensors are over too: that of a batch norm's channel,
    beside a gate's of each sample. Elements are computed with the sum. Or there are many to each result, as
    of a norm's parameters beside a table of positions. Of a sum of all elements, those of others that
    elements are computed with, none of which is a row's of a pair, or that begin so. `by_read`: the sums that
    read a tensor."""
    order, size, val = _order(what.shape), product(what.shape), fake(operands(node)[0])
    if order is None or val is None:
        return None
    factors = run = [factor for d in what.dims for factor in order[d]]
    of_all = len(what.dims) == len(what.shape)
    is_row = what.run is not None and [f.stride for f in what.run] == [1]
    alike = (n for n in _reading(read_for(node), by_read) if sums[n] == what)
    reads = read_for(node).union(*map(read_for, alike))  # dw has more than db
    for partner in by_position(_reading(reads, by_read)):
        over, seen = sums[partner], read_for(partner)
        if product(over.shape) != size or over.run is None:
            continue
        of_views = over.shape != what.shape
        if MEAN in (node.target, partner.target) and not of_views:
            continue  # a norm's forward, or a moment beside a variance
        if of_views and any(map(is_permutation, reads | seen)):
            continue
        both = _shared(run, over.run)
        count, all_own, all_over = (product(f.size for f in some) for some in (both, factors, over.run))
        is_outer, begins = is_outer_like(over), over != reduced(partner)
        if count in (1, all_own) or (of_all and not (is_outer or begins) and size not in further):
            continue
        below, after = ({*descendants(n.users, is_traced)} for n in (node, partner))
        has_elements, others_have = (any(_has_size(n, size) for n in s) for s in (below, after))
        if of_all:
            worthwhile = others_have or begins
        else:
            many = is_outer and isinstance(count, int) and count >= MANY and not others_have
            worthwhile = has_elements or (many and not of_views)
        first, last = by_position([node, partner])
        independent = first not in needed_for([last], position(first))
        contiguous = _is_contiguous(val, order, both)
        if independent and not of_all and count == all_over and contiguous:
            continue  # a pair with a common axis
        if of_views and (count == all_over or (is_row and not contiguous)):
            continue  # rows of rows
        traced = independent or last in (below if first is node else after)
        if worthwhile and traced:
            run = both
    return (
        None if run == factors else First(tuple(_split(n, order[d], run) for d, n in enumerate(what.shape)))
    )


def _has_size(node: Node, size: Size) -> bool:
    return product(shape_of(node) or ()) == size


def _reading(tensors: Iterable[Node], by_read: Mapping[Node, Sequence[Node]]) -> set[Node]:
    """The sums that read one of some tensors."""
    return {n for read in tensors for n in by_read.get(read, ())}


def _as_another(
    node: Node, what: Reduced, begun: Mapping[Node, Reduced], read_for: Callable[[Node], set[Node]]
) -> First | None:
    """What a sum begins with as another one does, whose operand is a view of what is computed of the same
    tensors: that of a group norm's weight, beside the groups'."""
    order, reads = _order(what.shape), read_for(node)
    factors = [] if order is None else [factor for d in what.dims for factor in order[d]]
    for partner, over in begun.items():
        seen, whole = read_for(partner), reduced(partner)
        if whole is None or whole.shape == what.shape or reads.isdisjoint(seen):
            continue
        if any(map(is_permutation, reads | seen)):
            continue
        both = _shared(factors, over.run or ())
        if product(f.size for f in both) == product(over.shape[d] for d in over.dims) and both != factors:
            return First(tuple(_split(n, order[d], both) for d, n in enumerate(what.shape)))  # type: ignore[index]
    return None


def _order(shape: tuple[Size, ...]) -> Order | None:
    return divided((Factor(1, product(shape)),), shape)


def _shared(factors: Iterable[Factor], others: Iterable[Factor]) -> list[Factor]:
    """The factors of the elements that two runs both have."""
    pairs = itertools.product(factors, others)
    return [shared for pair in pairs if (shared := _shared_part(*pair)) is not None]


def _shared_part(factor: Factor, partner: Factor) -> Factor | None:
    """The elements of a factor that another one has too; None if these are no factor."""
    if partner.covers(factor):
        return factor
    ends = factor.stride, factor.end, partner.stride, partner.end
    if not all(isinstance(n, int) for n in ends):
        return None
    start, end = max(ends[::2]), min(ends[1::2])  # type: ignore[type-var]
    size = ratio(end, start) if start < end else None  # type: ignore[operator]
    part = None if size is None else Factor(start, size)
    return part if part is not None and factor.covers(part) and partner.covers(part) else None


def _split(size: Size, run: Sequence[Factor], common: Sequence[Factor]) -> tuple[tuple[Size, bool], ...]:
    """The parts of a dim with a factor, or with none, and whether each is one of `common`."""
    factor = next((f for f in common if any(whole.covers(f) for whole in run)), None)
    if factor is None:
        return ((size, False),)
    (whole,) = run
    above, below = ratio(whole.end, factor.end), ratio(factor.stride, whole.stride)
    assert above is not None and below is not None
    splits = (above, False), (factor.size, True), (below, False)
    return tuple((n, summed) for n, summed in splits if n != 1)


def _is_contiguous(val: torch.Tensor, order: Order, run: Collection[Factor]) -> bool:
    """Whether a step of one of some factors is one to the next element in memory."""
    innermost = [dim[-1].stride for d, dim in enumerate(order) if dim and val.stride(d) == 1]
    return any(f.stride in innermost for f in run)


def _read_for(node: Node) -> set[Node]:
    """What a reduction's loop computes of as many elements as it reduces, and reads: what other operators
    read is in memory."""

    def above(value: Node) -> list[Node]:
        stored = value not in inputs and not all(map(is_traced, readers(value, is_view)))
        return [] if stored or not is_loop(value) else operands(value)

    inputs = operands(node)
    size = product(shape_of(inputs[0]) or ())
    return {n for n in closure(inputs, above) if product(shape_of(n) or ()) == size}
