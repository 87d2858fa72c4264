"""The members of a region while it grows: which are outputs, and which of them users outside recompute.

Holds the nodes that have been taken so far; `grow` decides which ones. Reads the graph, never writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from torch.fx import Node

from ..ir.program import AxisClass
from .gathers import is_gather_view
from .nodes import is_constant, is_pointwise, is_view, operands, shape_of
from .region import Seed
from .sizes import Size, product
from .walk import by_position


def used_outside(members: Collection[Node], stays: Callable[[Node], bool]) -> tuple[set[Node], list[Node]]:
    """The members that nodes outside use: those that stay in the graph for them, as `stays` says, and the
    outputs, in graph order."""
    staying: set[Node] = set()
    outputs: list[Node] = []
    for node in reversed(by_position(members)):
        if all(u in members and u not in staying for u in node.users):
            continue
        if stays(node):
            staying.add(node)
        else:
            outputs.append(node)
    return staying, outputs[::-1]


class Members(dict[Node, bool]):
    """Maps each member to whether it depends on a reduction of the region.

    `writes`: the region writes a tensor that is cheap to compute where a node outside needs it in memory
    anyway. `written`: the members for which that is so. `copied`: members that stay in the graph for their
    users outside, and whose operands all come from outside or stay as well.
    """

    def __init__(self, seed: Seed, writes: bool) -> None:
        super().__init__()
        self.analysis = seed.analysis
        self.space = seed.space
        self.writes = writes
        self.must_recompute = seed.must_recompute
        self.written: set[Node] = set()
        self.copied: set[Node] = set()

    def result_size(self, reduced: AxisClass) -> Size:
        """Elements of a reduction's result, where the reduction is over the axes of the class `reduced`."""
        return product(size for size, kind in self.space.axes if kind not in (reduced, AxisClass.COMMON))

    def note_copy(self, node: Node) -> None:
        """Note if a member stays in the graph for users outside: it is cheap, and needs no result of the
        region."""
        from_copies = all(a in self.copied for a in operands(node) if a in self)
        if from_copies and not self[node] and self.recomputed(node):
            self.copied.add(node)

    def recomputed(self, node: Node) -> bool:
        """Whether users outside recompute a node instead of reading it."""
        if not (node in self.must_recompute or self.analysis.recomputed(node)):
            return False
        view = is_view(node) or is_gather_view(node) or is_constant(node)
        if self.writes and not view and self.analysis.is_written_anyway(node):
            self.written.add(node)
            return False
        return True

    def cheapest(self, outputs: Sequence[Node], permuted: Collection[Node]) -> list[Node]:
        """What to write for nodes outside. An output that only loops read is recomputed by them, if what it
        is made of has fewer bytes to write and to read. `permuted`: members behind a row permutation."""
        sources: dict[Node, frozenset[Node]] = {}
        for node in by_position(self):
            sources[node] = self._sources(node, sources, outputs, permuted)
        written = frozenset[Node]().union(*(sources[n] for n in outputs))
        return by_position(written.intersection(self))

    def _sources(
        self,
        node: Node,
        known: Mapping[Node, frozenset[Node]],
        outputs: Sequence[Node],
        permuted: Collection[Node],
    ) -> frozenset[Node]:
        """The tensors in memory that loops outside read for a member: itself, or what it is made of."""
        itself = frozenset({node})
        made_of = (known.get(a, frozenset({a})) for a in operands(node) if not is_constant(a))
        sources = frozenset[Node]().union(*made_of)
        if self.stays(node):
            return sources
        if node in permuted or not is_pointwise(node) or not self.analysis.is_full(node):
            return itself
        if self.analysis.is_written_anyway(node) or not all(map(self._can_be_read, sources)):
            return itself

        if node in self.must_recompute and not any(n in self for n in sources):
            return sources

        def moves(tensors: frozenset[Node]) -> Size:
            new = (n for n in tensors if n in self and (n is node or n not in outputs or known[n] != {n}))
            return sum((self.analysis.num_bytes(n) for n in (*tensors, *new)), start=0)

        # What the region reads for this one alone, it reads in any case if a member uses the result.
        uses = () if any(u in self for u in node.users) else operands(node)
        exclusive = (
            a for a in uses if a not in self and not any(u in self for u in a.users if u is not node)
        )
        inside = moves(itself) + sum(map(self.analysis.num_bytes, exclusive), start=0)
        return sources if self.analysis.is_less(moves(sources), inside) else itself

    def _can_be_read(self, node: Node) -> bool:
        """Whether a tensor is in memory, or the kernels can store it."""
        size = product(shape_of(node) or ())
        return node not in self or size in (self.space.numel, self.result_size(AxisClass.COLUMN))

    def stays(self, node: Node) -> bool:
        """Whether a member stays in the graph for its users outside: a view, a copy, or of a size that the
        kernels do not store."""
        if is_view(node) or is_gather_view(node) or node in self.copied:
            return True
        stored = (self.space.numel, self.result_size(AxisClass.COLUMN))
        return not self[node] and product(shape_of(node) or ()) not in stored
