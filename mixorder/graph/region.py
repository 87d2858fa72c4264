"""Find pairs of inner and outer reductions, and grow a region around each.

Takes the FX graph; gives `Region`s one after the other, or a `Decline` for a pair that cannot be taken. The
caller may rewrite the graph between two regions: each is grown on the graph as it then is. Nothing here
changes the graph, reads device properties, or weighs cost.

A region grows in one sweep over the graph in order. Its core is the reductions of the pair and all that
can be recomputed above them; the sweep adds the pointwise consumers of what depends on an inner reduction
(dx), outer reductions of those (a neighbouring Linear's bias gradient), and the epilogues of the outer
reductions (dw's cast). The sweep tracks which nodes outside depend on the region, so that what it adds
can never close a cycle through them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from torch.fx import Graph, Node

from ..errors import Decline, DeclineReason
from .nodes import (
    DTYPES,
    Space,
    fake,
    inner_space,
    is_full,
    is_pointwise,
    is_small,
    is_static,
    is_view,
    outer_space,
    reduction_kind,
)


@dataclasses.dataclass(frozen=True)
class Region:
    """Nodes that become one kernel and its finalisation.

    `nodes` are in graph order and closed under what `outputs` need; `outputs` are those whose value somebody
    outside uses. A node of `nodes` that is not an output may have users outside as well: it is cheap, stays
    in the graph for them, and is computed again in the kernel.
    """

    name: str
    space: Space
    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    inner: tuple[Node, ...]
    outer: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Tensors that the region reads, in order of first use."""
        members = set(self.nodes)
        found = {
            arg: None for node in self.nodes for arg in node.all_input_nodes if arg not in members
        }
        return tuple(found)

    def column_side(self) -> frozenset[Node]:
        """The outer reductions and every node of the region that depends on one (the epilogues)."""
        return frozenset(_downstream(self.nodes, self.outer))

    def __str__(self) -> str:
        def names(nodes: tuple[Node, ...]) -> str:
            return ", ".join(n.name for n in nodes)

        lines = [
            f"{self.name} {self.space}",
            f"  inner:   {names(self.inner)}",
            f"  outer:   {names(self.outer)}",
            f"  inputs:  {names(self.inputs)}",
            f"  outputs: {names(self.outputs)}",
            *(f"    {n.format_node()}" for n in self.nodes),
        ]
        return "\n".join(lines)


def find_regions(graph: Graph) -> Iterator[Region | Decline]:
    """Yield the graph's regions, or the reason against each, in the order of their first outer reduction."""
    finders: dict[Space, _Finder] = {}
    outers: list[tuple[Node, _Finder]] = []
    for node in graph.nodes:
        if (space := inner_space(node)) is not None:
            finders.setdefault(space, _Finder(graph, space)).inner[node] = None
        if (space := outer_space(node)) is not None:
            finder = finders.setdefault(space, _Finder(graph, space))
            finder.outer[node] = None
            outers.append((node, finder))
    count = 0
    for node, finder in outers:
        pair = finder.pair(node) if node in finder.outer else None
        if pair is None:
            continue
        try:
            region = finder.grow(f"region{count}", *pair)
        except Decline as decline:
            finder.forget((*pair[0], *pair[1]))
            yield decline
            continue
        count += 1
        for other in finders.values():
            other.forget(region.nodes)
        yield region


class _Finder:
    """Pairs and grows within one space. Reductions that a region took are forgotten."""

    def __init__(self, graph: Graph, space: Space) -> None:
        self.graph = graph
        self.space = space
        self.inner: dict[Node, None] = {}
        self.outer: dict[Node, None] = {}
        self._above: dict[Node, frozenset[Node]] = {}
        self._reads: dict[Node, frozenset[Node]] = {}

    def forget(self, nodes: Iterable[Node]) -> None:
        """Drop reductions that are spoken for, and what was concluded from nodes that may be rewritten."""
        gone = set(nodes)
        for table in (self.inner, self.outer):
            for node in gone.intersection(table):
                del table[node]
        for node, above in list(self._above.items()):
            if above & gone:
                del self._above[node]
        for node, reads in list(self._reads.items()):
            if reads & gone or node not in self._above:
                del self._reads[node]

    def fusible(self, node: Node) -> bool:
        val = fake(node)
        return (
            (is_pointwise(node) or is_view(node))
            and val is not None
            and (is_full(node, self.space) or is_small(node, self.space))
        )

    def above(self, reduction: Node) -> frozenset[Node]:
        """What can be recomputed above a reduction: fusible producers, and inner reductions on the way."""
        if reduction not in self._above:
            seen: set[Node] = set()
            todo = list(reduction.all_input_nodes)
            while todo:
                node = todo.pop()
                if node not in seen and (self.fusible(node) or node in self.inner):
                    seen.add(node)
                    todo.extend(node.all_input_nodes)
            self._above[reduction] = frozenset(seen)
        return self._above[reduction]

    def full_reads(self, reduction: Node) -> frozenset[Node]:
        """The full-size tensors that computing a reduction reads or passes through."""
        if reduction not in self._reads:
            nodes = {reduction, *self.above(reduction)}
            reads = {arg for n in nodes for arg in n.all_input_nodes if is_full(arg, self.space)}
            self._reads[reduction] = frozenset(n for n in reads if not self.is_broadcast(n))
        return self._reads[reduction]

    def is_broadcast(self, node: Node) -> bool:
        """Full size, but made from small tensors alone: nothing of full size is read for it."""
        return self.fusible(node) and not any(is_full(a, self.space) for a in node.all_input_nodes)

    def pair(self, outer: Node) -> tuple[list[Node], list[Node]] | None:
        """The inner and outer reductions that share full-size reads with `outer`, or None without an inner.

        Inner reductions that depend on each other make levels; the lowest level that shares a read is taken,
        so that norms in a chain give one region each.
        """
        if self.is_degenerate_inner(outer):
            return None
        reads = self.full_reads(outer)
        near = [n for n in self.inner if n is not outer and self.full_reads(n) & reads]
        lowest = [n for n in near if not any(other in self.above(n) for other in near)]
        if not lowest:
            return None
        reads = reads.union(*(self.full_reads(n) for n in lowest))
        outers = [
            n
            for n in self.outer
            if self.full_reads(n) & reads
            and not any(i in self.above(n) for i in self.inner)
            and n not in lowest
        ]
        if outer not in outers:
            outers.append(outer)
        return lowest, outers

    def is_degenerate_inner(self, outer: Node) -> bool:
        """With one row or one column, a reduction fits both sides; one whose result goes back into a
        full-size node is the inner one."""
        if 1 not in (self.space.rows, self.space.cols):
            return False
        todo, seen = list(outer.users), set()
        while todo:
            user = todo.pop()
            if user in seen or not self.fusible(user):
                continue
            seen.add(user)
            if any(
                is_full(a, self.space) and not self.is_broadcast(a) for a in user.all_input_nodes
            ):
                return True
            todo.extend(user.users)
        return False

    def grow(self, name: str, inner: list[Node], outer: list[Node]) -> Region:
        """One sweep over the graph; raises `Decline` where the pair cannot live in one kernel."""
        core = frozenset({*inner, *outer}.union(*(self.above(n) for n in (*inner, *outer))))
        for node in core:
            self.check(node)
        members = self.with_operands(_Sweep(self, core, frozenset(inner), frozenset(outer)).run())
        outputs = self.outputs(members)
        kept = _upstream(members, outputs)
        inner = [n for n in kept if n in self.inner]
        outer = [n for n in kept if reduction_kind(n) is not None and n not in self.inner]
        if not inner or not outer:
            blocker = (set(core) - set(kept)) & {*self.inner, *self.outer}
            raise Decline(
                DeclineReason.CYCLE,
                f"no inner and outer reduction of {self.space} are left that do not depend on each other "
                "through a node outside the region",
                next((n.name for n in blocker), None),
            )
        region = Region(name, self.space, tuple(kept), tuple(outputs), tuple(inner), tuple(outer))
        for node in region.inputs:
            self.check(node)
        return region

    def with_operands(self, members: dict[Node, bool]) -> dict[Node, bool]:
        """Add what only the sweep's finds need: producers that nobody else uses, or that can be recomputed.

        Such a node has no user outside that waits for it, so it cannot close a cycle.
        """
        pulled: set[Node] = set()
        for node in reversed(self.graph.nodes):
            users = [u for u in node.users if u in members or u in pulled]
            if node in members or not users or not self.fusible(node):
                continue
            if self.recomputed(node) or len(users) == len(node.users):
                pulled.add(node)
        return {n: members.get(n, False) for n in self.graph.nodes if n in members or n in pulled}

    def check(self, node: Node) -> None:
        val = fake(node)
        if val is None:
            raise Decline(
                DeclineReason.UNSUPPORTED_OP, f"{node.target} does not give one tensor", node.name
            )
        if not is_static(node):
            raise Decline(DeclineReason.DYNAMIC_SHAPE, f"{tuple(val.shape)}", node.name)
        if val.dtype.is_floating_point and val.dtype not in DTYPES or val.dtype.is_complex:
            raise Decline(DeclineReason.UNSUPPORTED_DTYPE, f"{val.dtype}", node.name)

    def recomputed(self, node: Node) -> bool:
        """Users outside get their own copy: a view, a small tensor, or no dearer to recompute than to read."""
        if is_view(node) or not is_full(node, self.space):
            return True
        reads = [a for a in node.all_input_nodes if is_full(a, self.space)]
        return sum(fake(a).nbytes for a in reads) <= fake(node).nbytes  # type: ignore[union-attr]

    def outputs(self, members: dict[Node, bool]) -> list[Node]:
        """The members whose value is needed outside and that are not recomputed there, in graph order.

        `members` maps each node to whether it depends on a reduction of the region.
        """
        outside: set[Node] = (
            set()
        )  # members that stay in the graph because somebody outside uses them
        outputs: list[Node] = []
        for node in reversed(members):
            if all(u in members and u not in outside for u in node.users):
                continue
            if is_view(node) or (not members[node] and self.recomputed(node)):
                outside.add(node)
            else:
                outputs.append(node)
        return outputs[::-1]


class _Sweep:
    """The state of one growing sweep. `members` maps a node to whether it depends on a region's reduction."""

    def __init__(
        self, finder: _Finder, core: frozenset[Node], inner: frozenset[Node], outer: frozenset[Node]
    ) -> None:
        self.finder = finder
        self.core = core
        self.inner = inner
        self.outer = outer
        self.members: dict[Node, bool] = {}
        self.column: set[Node] = set()  # outer reductions and their epilogues
        self.tainted: set[Node] = set()  # outside nodes that depend on the region
        self.pending: set[Node] = (
            set()
        )  # as tainted, but would be taken if a node that joins needs them
        self.elsewhere = frozenset().union(
            *(finder.above(n) for n in finder.inner if n not in inner)
        )

    def run(self) -> dict[Node, bool]:
        for node in self.finder.graph.nodes:
            if node.op == "output":
                break
            args = node.all_input_nodes
            if any(a in self.tainted for a in args):
                self.tainted.add(node)
            elif node in self.core or self.joins(node, args):
                self.add(node, args)
            elif any(a in self.pending or (a in self.members and not self.copied(a)) for a in args):
                above = self.finder.fusible(node) and not any(self.members.get(a) for a in args)
                (self.pending if above else self.tainted).add(node)
        return self.members

    def copied(self, node: Node) -> bool:
        return not self.members[node] and self.finder.recomputed(node)

    def add(self, node: Node, args: list[Node]) -> None:
        for arg in args:
            if arg in self.pending:
                self.pending.remove(arg)
                self.add(arg, arg.all_input_nodes)
        if node in self.core and node not in self.outer and any(a in self.column for a in args):
            self.tainted.add(node)
            return
        is_reduction = node in self.inner or node in self.finder.outer or node in self.finder.inner
        self.members[node] = is_reduction or any(self.members.get(a, False) for a in args)
        if (
            node in self.finder.outer
            and node not in self.finder.inner
            or any(a in self.column for a in args)
        ):
            self.column.add(node)

    def joins(self, node: Node, args: list[Node]) -> bool:
        """Whether a node outside the core is taken: it uses what depends on a reduction of the region."""
        live = [a for a in args if self.members.get(a, False)]
        if not live or not all(self.readable(a) for a in args):
            return False
        if node in self.finder.outer:
            return live[0] not in self.column
        if not self.finder.fusible(node):
            return False
        column = [a for a in args if a in self.column]
        if column:
            return len(column) == len(live) and not is_full(node, self.finder.space)
        if node in self.elsewhere:
            # The next norm's prologue: cut here unless following it does not add a tensor to write.
            return all(len(a.users) == 1 for a in live)
        return True

    def readable(self, node: Node) -> bool:
        return node in self.members or is_static(node)


def _downstream(nodes: tuple[Node, ...], roots: tuple[Node, ...]) -> set[Node]:
    found = set(roots)
    for node in nodes:
        if any(a in found for a in node.all_input_nodes):
            found.add(node)
    return found


def _upstream(members: dict[Node, bool], outputs: list[Node]) -> list[Node]:
    """The members that the outputs need, in order."""
    needed = set(outputs)
    for node in reversed(members):
        if node in needed:
            needed.update(a for a in node.all_input_nodes if a in members)
    return [n for n in members if n in needed]
