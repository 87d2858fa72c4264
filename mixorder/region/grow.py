"""Grow a region from a seed.

The core of a region is its reductions and all that can be recomputed above them. One sweep in graph order
then adds the pointwise consumers of what depends on an inner reduction (dx), outer reductions of those (a
neighbouring Linear's bias gradient), and the epilogues of the outer reductions (dw's cast). A node joins
only if nothing outside that it uses depends on the region, so no cycle through outside nodes can close.

Reductions over blocks grow by rules of their own (`tile.py`). Reads the graph around the seed, never writes
it. Raises `Decline` where the seed cannot be one kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import torch
from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..inductor.config import emulates_precision_casts
from ..ir.program import AxisClass
from .axes import fits, reduces
from .cat_slices import cat_slices_of
from .factors import Run
from .gathers import is_gather, is_made_of_pieces, is_readable
from .growth import Growth
from .members import Members, used_outside
from .nodes import (
    fake,
    float_bytes,
    is_pointwise,
    operands,
    readers,
    reduced,
    reduction_kind,
    shape_of,
    shows,
    unviewed,
)
from .padding import has_gaps, with_gaps
from .reduction_groups import ReductionGroupGrowth, ReductionGroupSeed
from .region import Region, Seed
from .row_permutations import is_row_permutation, place_behind
from .sizes import product
from .space_analysis import takes_operands
from .tile import TileGrowth, TileSeed
from .walk import ancestors, by_position, descendants, inside, needed_for, position, sweep


def grow(seed: Seed, name: str) -> Region:
    """The region of a seed, without what is made for reductions that did not join."""
    while True:
        if isinstance(seed, ReductionGroupSeed):
            region = ReductionGroupGrowth(seed).grow(name)
        elif isinstance(seed, TileSeed):
            region = TileGrowth(seed).grow(name)
        else:
            region = _best(seed, name)
        members = set(region.nodes)
        left = (made for reduction, made in seed.made_for.items() if reduction not in members)
        without = seed.without.union(*(made for made in left if not members.isdisjoint(made)))
        if without == seed.without:
            return region
        seed = dataclasses.replace(seed, without=without)


def _best(seed: Seed, name: str) -> Region:
    """The region of a pair's seed.

    Several ways are tried, and the region with the most reductions is taken; of equal ones, the first.
    A cheap member may have to be in memory for a node outside. The region then writes it, since it reads the
    operands anyway. If such a node has to run before the region ends, the node outside recomputes it.
    A member whose result reaches the reductions through nodes outside is left to Inductor.
    """
    wanted = len(seed.inner) + len(seed.outer)
    regions: list[Region] = []
    refusal: Decline | None = None
    for tried in (seed, _without_sources_of_reads(seed)):
        if bool(tried.inner) != bool(seed.inner) or bool(tried.outer) != bool(seed.outer):
            continue
        for writes in (True, False):
            growth = _PairGrowth(tried, writes)
            try:
                regions.append(growth.grow(name))
            except Decline as decline:
                refusal = refusal or decline.kept()
            if not growth.members.written:
                break  # the other way is the same
        best = max(regions, key=_reductions, default=None)
        if best is not None and _reductions(best) >= wanted:
            return best
    if best is None:
        assert refusal is not None
        raise refusal
    return best


def _reductions(region: Region) -> int:
    return len(region.inner) + len(region.outer)


def _without_sources_of_reads(seed: Seed) -> Seed:
    """A seed without the nodes that its reads from outside depend on, other than those that are computed
    again in the region for nothing.

    Such a member closes a cycle, whether it is a reduction (the statistics of a forward that is recomputed in
    front of a matrix product) or pointwise (a residual's sum).
    """
    analysis = seed.analysis
    core = _core(seed)
    reads = {a for n in core for a in operands(n) if a not in core}
    early = needed_for(reads, since=min(map(position, core)))
    recomputed = {n for n in core & early if n in seed.must_recompute or analysis.recomputed(n)}
    outside = {n for n in core & early if reduction_kind(n) is not None or n not in recomputed}
    return seed.less(outside)


def _core(seed: Seed, without: frozenset[Node] = frozenset()) -> set[Node]:
    """A seed's reductions, and all that can be computed above them."""
    reductions = (*seed.inner, *seed.outer)
    return {*reductions}.union(*(seed.analysis.above(n, seed.without | without) for n in reductions))


def _of_other_axes(seed: Seed) -> frozenset[Node]:
    """The inner reductions above a seed's that run over other axes than its space's columns."""
    inner = ((n, reduced(n)) for n in _core(seed) & seed.analysis.inner)
    columns = (AxisClass.COLUMN, AxisClass.COMMON)
    return frozenset(n for n, what in inner if what is None or not reduces(seed.space, what, columns))


class _PairGrowth(Growth):
    """Grows one region: a sweep over the users of its core, then what these need.

    `core`: the seed's reductions and all that can be computed above them. `permuted`: the place of each
    member behind a row permutation. See `Members` for `writes`.
    """

    def __init__(self, seed: Seed, writes: bool) -> None:
        super().__init__(seed.analysis)
        self.seed = seed
        self.space = seed.space
        self.without = seed.without | _of_other_axes(seed)
        self.outer = frozenset(seed.outer)
        core = _core(seed, self.without)
        reductions = (*seed.inner, *seed.outer)
        if not seed.inner:
            # An outer reduction alone is computed in the loop that computes its source, such as a `cat`.
            core |= {a for n in core for a in operands(n) if is_made_of_pieces(a)} - self.without
        self.core = frozenset(core)
        self.inner = frozenset(self.core & self.analysis.inner)
        self.members: Members = Members(seed, writes)
        self.permuted: dict[Node, Run] = {}
        self._feeds_another: dict[Node, bool] = {}
        # Users outside recompute what is before.
        self.start = min(position(n) for n in self.core if n in reductions or not self.members.recomputed(n))

    def grow(self, name: str) -> Region:
        for node in by_position(self.core):
            self.analysis.check(node)
        sweep(self.core, self.visit)
        self.pull_operands()
        if self.members.writes and not self.seed.must_recompute:
            self.adopt()
        _, written = used_outside(self.members, self.members.stays)
        outputs = self.members.cheapest(written, self.permuted)
        nodes = inside(outputs, self.members)
        inner = tuple(n for n in nodes if n in self.inner)
        outer = tuple(n for n in nodes if reduction_kind(n) is not None and n not in self.inner)
        if not outer or (self.inner and not inner):
            lost = by_position((self.inner | self.outer) - set(nodes))
            raise Decline(
                DeclineReason.CYCLE,
                f"the reductions of {self.space} depend on each other through a node outside",
                lost[0].name if lost else None,
            )
        region = Region(name, self.space, nodes, tuple(outputs), inner, outer, self.seed)
        output_strides = {n: with_gaps(fake(n)).stride() for n in filter(has_gaps, outputs)}  # type: ignore[arg-type]
        kept_fp32 = self.kept_fp32(region)
        cat_slices = cat_slices_of([n for n in outputs if n not in kept_fp32], set(nodes))
        region = dataclasses.replace(
            region, kept_fp32=kept_fp32, output_strides=output_strides, cat_slices=cat_slices
        )
        if not region.inputs:
            raise Decline(DeclineReason.UNSUPPORTED_OP, "the region reads no tensor", outer[0].name)
        for node in region.inputs:
            self.analysis.check(node, is_read=True)
        return region

    def joins(self, node: Node, args: list[Node]) -> bool:
        if node in self.without:
            return False
        if node not in self.core:
            return self.follows(node, args)
        # A result of the outer reduction exists only after the loop over rows. What is behind a row
        # permutation is of another row.
        waits_for_rows = node not in self.outer and not self.column.isdisjoint(args)
        return not waits_for_rows and self.permuted.keys().isdisjoint(args)

    def take(self, node: Node, args: Sequence[Node]) -> None:
        super().take(node, args)
        self.members.note_copy(node)

    def pull(self, arg: Node) -> None:
        if arg in self.pending:
            self.pending.remove(arg)
            self.take(arg, operands(arg))

    def spans_rows(self, node: Node) -> bool:
        return node in self.analysis.outer and node not in self.inner

    def is_given(self, member: Node) -> bool:
        return member not in self.members.copied

    def follows(self, node: Node, args: list[Node]) -> bool:
        """Whether a node outside the core uses what depends on a reduction, in a way that can be fused."""
        live = self.live(args)
        if not live or any(a not in self.members and self.analysis.refusal(a) for a in args):
            return False
        theirs = (a for a in live if self.analysis.is_full(a) or self.feeds_another(node))
        if any(self.is_shared(a, other_than=node) and self.feeds_another(a) for a in theirs):
            # Another norm reads it. The region writes this one tensor, and that norm takes its users.
            return False
        if node in self.analysis.outer:
            fitting = any(fits(self.space, reduced(n), reduced(node)) for n in self.inner)
            in_place = live[0] not in self.column and live[0] not in self.permuted
            return in_place and fitting and self.analysis.takes(node)
        if not ((self.analysis.fusible(node) or is_row_permutation(node)) and self.analysis.takes(node)):
            return False
        column = [a for a in args if a in self.column]
        size = product(shape_of(node) or ())
        if (place := place_behind(node, (self.permuted.get(a, ()) for a in live))) is None:
            return False
        if place:
            self.permuted[node] = place
            return not column and size == self.space.numel
        if column:
            return len(column) == len(live) and size == self.members.result_size(AxisClass.ROW)
        return size in (self.space.numel, self.members.result_size(AxisClass.COLUMN))

    def is_shared(self, node: Node, other_than: Node) -> bool:
        """Whether a node has another user that is not certain to join."""
        return any(u not in self.core and u not in self.members and u is not other_than for u in node.users)

    def feeds_another(self, node: Node) -> bool:
        """Whether a node feeds an inner reduction of another region, with only pointwise ops between."""
        if node not in self._feeds_another:
            self._feeds_another[node] = self.analysis.feeds_inner(node, {*self.inner, *self.members})
        return self._feeds_another[node]

    def waits(self, node: Node, args: list[Node]) -> bool:
        if node in self.core or node in self.without or not self.analysis.computable(node):
            return False
        readable = not is_gather(node) or is_readable(node)
        return readable and self.analysis.takes(node) and not self.live(args)

    def pull_operands(self) -> None:
        """Add producers that only members use, or that users outside can recompute.

        No user outside waits for such a node, so it cannot close a cycle.

        Gathers join here. A gather reads a row at another place than it writes, so it must not read a result
        of the region's reductions. None of those that join does: what depends on a reduction of the region
        has joined in the sweep.
        """
        gathered: set[Node] = set()  # gathers, and what lies above them
        staying: set[Node] = set()  # members that stay in the graph for users outside
        todo = {*self.members, *(a for n in self.members for a in operands(n))}
        while todo:
            # Last first: all users of a node are decided before the node.
            node = max(todo, key=position)
            todo.remove(node)
            waited = any(u not in self.members or u in staying for u in node.users)
            if node not in self.members:
                if node in self.without or not (self.analysis.computable(node) and self.analysis.takes(node)):
                    continue
                if waited and not self.members.recomputed(node):
                    continue
                if is_gather(node) or any(u in gathered for u in node.users):
                    if not is_readable(node):
                        continue
                    gathered.add(node)
                self.members[node] = False
                self.members.note_copy(node)
            if waited and self.members.stays(node):
                staying.add(node)
            todo.update(a for a in operands(node) if a not in self.members)

    def adopt(self) -> None:
        """Add tensors that nodes outside need in memory, and that are computed from what the region reads and
        from tensors that are there before it: a loop outside would read the region's once more."""
        inputs = {a for n in self.members for a in operands(n) if a not in self.members}
        known = {n for n in (*inputs, *self.members) if not self.members.get(n, False)}
        made: dict[Node, set[Node]] = {}  # a node, and those that it is computed from, itself included
        todo = list(known)
        while todo:
            for user in todo.pop().users:
                if user not in known and (nodes := self.made_of(user, known)):
                    known.add(user)
                    made[user] = nodes.union(*(made.get(a, ()) for n in nodes for a in operands(n)))
                    todo.append(user)
        adopted: set[Node] = set()
        for node in filter(self.analysis.is_written_anyway, by_position(made)):
            nodes = adopted | made[node] - self.members.keys()
            read = inputs.union(*map(operands, nodes)) - nodes - self.members.keys()
            if not any(_reaches(n, read) for n in nodes):
                self.members.written.add(node)
                self.members.update(dict.fromkeys(nodes, False))
                adopted, inputs = nodes, read

    def made_of(self, node: Node, known: Collection[Node]) -> set[Node]:
        """A pointwise node and those that it is computed from; empty if it needs more than what is known and
        what is there before the region."""
        if not self.is_loop(node):
            return set()
        above = ancestors(operands(node), lambda n: n not in known and self.is_made_for_one(n))
        nodes = {node, *above}
        read = {a for n in nodes for a in operands(n)} - nodes
        return nodes if all(a in known or self.is_early(a) for a in read) else set()

    def is_loop(self, node: Node) -> bool:
        """Whether a loop over the space could be the region's."""
        return self.analysis.is_full(node) and is_pointwise(node) and self.may_take(node)

    def may_take(self, node: Node) -> bool:
        return node not in self.without and self.analysis.takes(node)

    def is_made_for_one(self, node: Node) -> bool:
        """Whether a loop computes a node for its only user, or again for each."""
        fusible = self.analysis.fusible(node) and self.may_take(node)
        return fusible and (len(node.users) == 1 or self.analysis.recomputed(node))

    def is_early(self, node: Node) -> bool:
        """Whether a tensor, such as a norm's bias or an activation, is there before the region: no loop
        computes it, or what it is a slice of."""
        source = unviewed(node, _shows_slice)
        there = position(source) < self.start and not takes_operands(source)
        fitting = shape_of(node) is not None and (self.analysis.is_small(node) or self.analysis.is_full(node))
        return fitting and there

    def kept_fp32(self, region: Region) -> frozenset[Node]:
        """Small outputs in half precision that only loops read.

        Inductor computes such loops in the reduction's own kernel, and rounds nothing in between. That is
        not so where it is asked to round as eager does (`emulate_precision_casts`).
        """
        if emulates_precision_casts():
            return frozenset()
        return frozenset(
            n
            for n in region.outputs
            if float_bytes(n) == 2
            and self.analysis.is_small(n)
            and all(map(takes_operands, readers(n)))
            and n not in region.rounded
        )


def _shows_slice(node: Node) -> bool:
    return shows(node) or node.target is torch.ops.aten.slice.Tensor


def _reaches(node: Node, targets: set[Node]) -> bool:
    """Whether one of `targets` depends on a node."""
    last = max(map(position, targets), default=())
    return not targets.isdisjoint(descendants(node.users, lambda user: position(user) <= last))
