"""How every region grows: by one sweep in graph order over a core and what is computed from it.

A node joins only if nothing outside that it uses depends on the region, so no cycle through outside nodes can
close. Each kind of region says which nodes it may have (`grow.py`, `tile.py`, `reduction_groups.py`).

Reads the graph, never writes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from .nodes import operands, reduction_kind
from .space_analysis import SpaceAnalysis
from .walk import ancestors, by_position, position


class Growth:
    """Grows one region.

    `members`: maps each to whether it depends on a reduction of the region. `column`: outer reductions, and
    what follows from them. `pending`: nodes outside that depend on the region, and that it takes once a node
    that joins needs them. `start`: no node before this position depends on the region.
    """

    members: dict[Node, bool]
    start: tuple[int, ...]

    def __init__(self, analysis: SpaceAnalysis) -> None:
        self.analysis = analysis
        self.column: set[Node] = set()
        self.pending: set[Node] = set()
        self._tainted: dict[Node, bool] = {}

    def joins(self, node: Node, args: list[Node]) -> bool:
        """Whether the region takes a node, which uses no tainted one."""
        raise NotImplementedError

    def waits(self, node: Node, args: list[Node]) -> bool:
        """Whether a node that does not join, and uses what the region gives, is one that it may compute."""
        raise NotImplementedError

    def spans_rows(self, node: Node) -> bool:
        """Whether a node is a reduction over all rows, which leaves an element for each column."""
        raise NotImplementedError

    def pull(self, arg: Node) -> None:
        """Take an operand of a member, if it waits for that."""
        raise NotImplementedError

    def is_given(self, member: Node) -> bool:
        """Whether nodes outside get a member from the region, and do not compute it as well."""
        raise NotImplementedError

    def visit(self, node: Node) -> bool:
        """Take a node that may be taken, or let it wait. Returns whether what uses it may be taken then."""
        args = operands(node)
        if self.uses_tainted(args):
            return False
        if self.joins(node, args):
            self.take(node, args)
        elif self.uses_given(args) and self.waits(node, args):
            self.pending.add(node)
        return node in self.members or node in self.pending

    def take(self, node: Node, args: Sequence[Node]) -> None:
        self.members[node] = reduction_kind(node) is not None or bool(self.live(args))
        if self.spans_rows(node) or not self.column.isdisjoint(args):
            self.column.add(node)
        for arg in args:
            self.pull(arg)

    def live(self, args: Sequence[Node]) -> list[Node]:
        """The members among some operands that depend on a reduction of the region."""
        return [a for a in args if self.members.get(a, False)]

    def uses_given(self, args: Sequence[Node]) -> bool:
        return any(self.is_given(a) if a in self.members else a in self.pending for a in args)

    def uses_tainted(self, args: Sequence[Node]) -> bool:
        return any(self.is_tainted(a) for a in args if a not in self.members and a not in self.pending)

    def is_tainted(self, node: Node) -> bool:
        """Whether a node outside depends on a member that it gets from the region."""

        def is_new(node: Node) -> bool:
            return not (node in self._tainted or node in self.members) and position(node) >= self.start

        if not is_new(node):
            return self._tainted.get(node, False)
        for ancestor in by_position(ancestors([node], is_new)):
            args = [a for a in operands(ancestor) if position(a) >= self.start]
            below = any(self._tainted.get(a, False) for a in args if a not in self.members)
            self._tainted[ancestor] = ancestor in self.pending or below or self.uses_given(args)
        return self._tainted[node]
