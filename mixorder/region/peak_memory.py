"""Peak memory: how many bytes of tensors a graph holds at most, without a region's kernels and with them.

An estimate from liveness. What is assumed of Inductor:

- Kernels run in the order of the graph. Inductor reorders them for less memory, so of the places for a launch
  only the first and the last are looked at.
- A pointwise node has no memory of its own if only loops use it that run before the next matrix product or
  the like, or if it is cheap: Inductor recomputes it in each of them. Its operands live until then.
- A loop writes its result where an operand of the same size lay that nothing reads afterwards, unless that is
  an input that others hold.
- What a loop computes for a `cat` alone is written to its place there.
- A stored value that is made of a reduction along its rows, such as a norm's statistics, is written in that
  one's kernel, however long before it is read.
- What would not be in memory is written for a launch that reads it, or a copy of it, right before the launch.
  Or it is written in a loop before, with which Inductor fuses it: one that computes an operand, however long
  before, or one of the last kernels, that reads an operand as well.

A launch reads its inputs, or copies of them, and holds its workspace at its place, and its results from there
on. The timeline of a graph is made once. A region costs a walk over its nodes and their users, and one pass
over the positions.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate

import torch
from torch.fx import Graph, Node

from ..inductor.config import realize_threshold
from ..inductor.graphs import OpOverload, donated, get_node_storage, may_overwrite_inputs
from .cat_slices import cat_slices_of
from .liveness import erased
from .nodes import is_constant, is_pointwise, is_view, readers, reduction_kind, shape_of
from .padding import fills_gaps
from .placement import moved, place_of
from .region import Region
from .space_analysis import takes_operands
from .spans import Span, add, bytes_of
from .walk import closure, needed_for, position

# Inductor fuses two loops of which neither reads the other's result only if they are at most so many kernels
# apart (`are_long_distant_nodes`).
NEAR = 64
# A value that several nodes use is also stored if it takes more than 30 of Inductor's operations, of which
# there are two or three to a node.
INLINED = 8
TOLERANCE = 0.005  # of the stock graph's peak
PIECE = 2**21  # bytes that torch's allocator takes from the GPU for small tensors: less is not seen there


@dataclasses.dataclass(frozen=True)
class Launch:
    """A region's launch: its position, the nodes that move behind it, those that are erased, and those that
    are written for it, with their positions."""

    region: Region
    place: int
    late: frozenset[Node]
    gone: frozenset[Node]
    written: Mapping[Node, int]


@dataclasses.dataclass(frozen=True)
class Change(Launch):
    """What a region does to a graph's memory. `before`, `after`: the peaks in bytes, without it and with it.

    `spans`: of the nodes whose memory changes; None where it is gone. `copies`: of tensors that are no nodes
    of the graph yet."""

    before: int
    after: int
    spans: Mapping[Node, Span | None]
    copies: Collection[Span]


class Timeline:
    """The memory of a graph over its positions. `stock`: the peak in bytes without any region; `fused`: the
    most that it can be, whichever loops Inductor fuses."""

    def __init__(self, graph: Graph) -> None:
        self.index = {node: i for i, node in enumerate(graph.nodes)}
        self.end = len(self.index) - 1
        self.base: dict[Node, Node] = {}  # a view, and the node in whose memory it lies
        self.stored: set[Node] = set()
        self.realised: set[Node] = set()  # the results of other operators, and of loops of their own
        self.spans: dict[Node, Span] = {}
        self.is_loop = functools.cache(_is_loop)
        self.loops = set(filter(self.is_loop, graph.nodes))
        self._find_bases(graph)
        self._find_stored(graph)
        self.wholes = self._find_wholes(graph)
        loops = filter(is_pointwise, self.stored)
        self.early = {n: at for n in loops if (at := self._if_fused(n)) < self.index[n]}
        self.changes = [0] * (self.end + 2)
        for node in filter(self.stored.__contains__, graph.nodes):
            self._set(node, self._span(node, self._computed(node)))
        inputs = donated(graph)
        self.writable = inputs if may_overwrite_inputs() else frozenset()
        overwritten = self._share(inputs)
        self.stock = self.peak = max(accumulate(self.changes))
        self.fused = self._peak_if_fused(overwritten)

    def _find_bases(self, graph: Graph) -> None:
        first: dict[object, Node] = {}
        for node in graph.nodes:
            if (key := _storage(node)) is not None:
                base = first.setdefault(key, node)
                inside = _is_broadcast(node) or fills_gaps(node)
                self.base[node] = self.base[node.args[0]] if inside else base

    def _find_stored(self, graph: Graph) -> None:
        """Find the nodes with memory of their own: results of other operators, and of loops that have to
        write them."""
        epoch: dict[Node, int] = {}  # how many operators other than loops a node's loop has to wait for
        reads: dict[Node, set[Node]] = {}  # what is read from memory to compute a node
        realised, reads_shared = self.realised, realize_threshold("reads")
        reads_in_all = realize_threshold("acc_reads")
        for node in graph.nodes:
            args = node.all_input_nodes
            epoch[node] = max((epoch[a] + (a not in self.loops) for a in args), default=0)
            if node not in self.loops or node.op == "placeholder":
                realised.add(node)
                reads[node] = {node}
                continue
            reads[node] = set().union(*(reads[a] for a in args)) if len(args) != 1 else reads[args[0]]
            count = len(reads[node])
            is_base: bool = self.base.get(node) is node
            if is_base and not is_constant(node):
                shared = count > reads_shared and len(node.users) > 1
                if shared or count > reads_in_all or not is_pointwise(node) or self._is_needed(node):
                    realised.add(node)
                    reads[node] = {node}
        latest: dict[
            Node, int
        ] = {}  # the last of the kernels that read a node, or compute what they read of it
        for node in reversed(graph.nodes):
            inside = ((u, u in realised or u not in self.loops) for u in node.users)
            latest[node] = max(
                (epoch[u] if kernel else latest[u] for u, kernel in inside), default=epoch[node]
            )
        for node in realised:
            if self.base.get(node) is not node:
                continue
            needs_memory = node not in self.loops or self._is_needed(node) or self._is_cut(node)
            if needs_memory or latest[node] > epoch[node]:
                self.stored.add(node)

    def _find_wholes(self, graph: Graph) -> dict[Node, Node]:
        """Find the loops that write to their places in a larger tensor, and the first of each tensor's."""
        wholes = dict[Node, Node]()
        for node, cat_slice in cat_slices_of(filter(is_pointwise, self.stored), ()).items():
            self.stored.discard(node)
            first = wholes.setdefault(cat_slice.whole, node)
            wholes[cat_slice.whole] = min(first, node, key=position)
        return wholes

    def _is_needed(self, node: Node) -> bool:
        """Whether a node outside of loops reads it."""
        return not self.loops.issuperset(self._users(node))

    def _is_cut(self, node: Node) -> bool:
        """Whether loops of fewer elements read a slice of it: they are other kernels."""
        views = closure([node], lambda n: (user for user in n.users if self._is_view_of(user, node)))
        return any(bytes_of(view) < bytes_of(node) for view in views)

    def _users(self, node: Node) -> Iterable[Node]:
        """The users of a node, behind views."""
        return readers(node, lambda user: self._is_view_of(user, node))

    def _span(self, node: Node, first: int, change: Launch | None = None) -> Span:
        last = self._last(node, first, change)
        if node.op == "placeholder":
            first = 0
            if node.name.startswith(("primals", "arg")):  # the caller keeps it, as Inductor assumes as well
                last = self.end
        elif node.target is operator.getitem:
            first = self.index.get(node.all_input_nodes[0], first)
        elif node in self.wholes:
            first = min(first, self.index[self.wholes[node]])
        return Span(bytes_of(node), first, last)

    def _last(self, node: Node, first: int, change: Launch | None) -> int:
        """The last position at which a tensor is read, by kernels that compute what has no memory itself. A
        launch reads none of its region's members: it computes those that nodes outside read as well, too."""
        last = first
        inside = change is not None and node in change.region.nodes
        for user in self._kernels(node, change):
            if user.op == "output":
                return self.end
            if change is not None and user in change.gone:
                last = last if inside else max(last, change.place)
            else:
                moved_to = change.place if change is not None and user in change.late else first
                last = max(last, moved_to, self._computed(user, first))
        return last

    def _kernels(self, node: Node, change: Launch | None = None) -> set[Node]:
        """The nodes whose kernels read a node, or compute what they read of it."""

        def inlined(source: Node) -> list[Node]:
            left = source.users if change is None else source.users.keys() - change.gone
            return [u for u in left if self._is_view_of(u, source) or not self._is_kernel(u, change)]

        sources = list(closure([node], inlined))
        return {user for source in sources for user in source.users}.difference(sources)

    def _readers(self, node: Node) -> list[int]:
        """The positions of the kernels that read a node, or compute what they read of it."""
        return [self._computed(user, self._position(user)) for user in self._kernels(node)]

    def _is_view_of(self, node: Node, source: Node) -> bool:
        return node in self.base and self.base[node] is self.base.get(source)

    def _is_kernel(self, node: Node, change: Launch | None) -> bool:
        """Whether a kernel runs for a node, which reads its operands."""
        written = node in self.stored or (change is not None and node in change.written)
        return written or not self.is_loop(node)

    def _set(self, node: Node, span: Span | None) -> None:
        if (old := self.spans.pop(node, None)) is not None:
            add(self.changes, old, -1)
        if span is not None:
            self.spans[node] = span
            add(self.changes, span, 1)

    def _share(self, inputs: frozenset[Node]) -> set[Node]:
        """End the memory of operands in which a loop writes its result, and return them."""
        overwritten: set[Node] = set()
        dying: dict[tuple[int, int], list[Node]] = {}
        for node, span in self.spans.items():
            if span.last < self.end and (node.op != "placeholder" or node in inputs):
                dying.setdefault((span.last, span.bytes), []).append(node)
        for node in [n for n in self.spans if n.op == "call_function" and is_pointwise(n)]:
            span = self.spans[node]
            for operand in dying.get((span.first, span.bytes), ()):
                if operand is not node and self.spans[operand].first < span.first:
                    dying[span.first, span.bytes].remove(operand)
                    self._set(operand, dataclasses.replace(self.spans[operand], last=span.first - 1))
                    overwritten.add(operand)
                    break
        return overwritten

    def _peak_if_fused(self, overwritten: Collection[Node]) -> int:
        """The peak if all loops from one other operator to the next are one kernel: the most that fusion can
        hold at once, as all of the kernel's results exist before its operands are freed. What several of the
        loops read is not overwritten: on a GPU, a reduction over rows is another kernel."""
        nodes = list(self.index)
        start, end = list(range(len(nodes) + 1)), list(range(len(nodes) + 1))
        for i in range(1, len(nodes)):
            if nodes[i] in self.loops and nodes[i - 1] in self.loops:
                start[i] = start[i - 1]
        for i in range(len(nodes) - 2, -1, -1):
            if start[i] == start[i + 1]:
                end[i] = end[i + 1]
        changes = [0] * (self.end + 2)
        for node, span in self.spans.items():
            at = start[min(span.last + 1, self.end)]
            sole_reader = node in overwritten and len([i for i in self._readers(node) if i >= at]) == 1
            last = at - 1 if sole_reader else end[span.last]
            add(changes, Span(span.bytes, start[span.first], last), 1)
        return max(accumulate(changes))

    def change(self, region: Region, over: Collection[Node]) -> Change:
        """What a region would do. `over`: the inputs in whose memory, or in that of whose copies, it writes
        results.

        Raises `Decline` where the order of effects leaves no place for the region.
        """
        place = self._position(place_of(region))
        bases = {n: self.base.get(n, n) for n in region.inputs if n in region.made_contiguous}
        copied = {n: base for n, base in bases.items() if base not in self.stored}
        read = {self.base.get(n, n) for n in region.inputs if n not in bases}
        originals = set(bases.values()).difference(read, copied.values())  # in memory, beside their copies
        # What nothing else reads is free again before the results are there.
        results = sum(bytes_of(n) for n in region.outputs if n not in region.cat_slices)
        freed = originals if sum(map(bytes_of, originals)) <= results else ()
        written = {n: self._first(n, place) for n in read if n in self.base and n not in self.stored}
        launch = Launch(region, place, frozenset(moved(region)), erased(region), written)
        late = [n for n, first in written.items() if first > self.index.get(n, first)]
        held = read.union(*(self._made_of(n)[0] for n in (*late, *copied.values())))
        spans: dict[Node, Span | None] = {n: None for n in launch.gone if n in self.spans}
        for node in self.spans.keys() & set(region.nodes) - launch.gone:
            span = self._span(node, self.spans[node].first, launch)
            spans[node] = self._shared(span, node, place)
        for node in self._read_by(region, read | originals):
            old = self.spans.get(node)
            first = old.first if old is not None and old.first <= place else self._first(node, place)
            span = self._span(node, first, launch)
            if node in held or node in originals:
                last = max(span.last, place)
                span = dataclasses.replace(span, last=last - (node in freed and last == place))
            shared = node in over and node not in bases and span.last == place
            spans[node] = (
                dataclasses.replace(span, last=span.last - 1) if shared else self._shared(span, node, place)
            )
        for whole in {cat_slice.whole for cat_slice in region.cat_slices.values()}:
            span = self.spans.get(whole) or self._span(whole, self._position(whole), launch)
            spans[whole] = dataclasses.replace(span, first=min(span.first, place))
        spans |= dict.fromkeys(region.cat_slices)
        for node in (n for n in region.outputs if n not in region.cat_slices):
            size = 0 if _is_first_step(node) else bytes_of(node) * (2 if node in region.kept_fp32 else 1)
            spans[node] = self._shared(Span(size, place, self._last(node, place, launch)), node, place)
        starts = {n: place if n in self.stored else self._first(n, place) for n in bases.values()}
        copies = [Span(bytes_of(n), starts[base], place - (n in over)) for n, base in bases.items()]
        changes = self.changes.copy()
        for copy in copies:
            add(changes, copy, 1)
        for node, now in spans.items():
            if node in self.spans:
                add(changes, self.spans[node], -1)
            if now is not None:
                add(changes, now, 1)
        return Change(
            **vars(launch), before=self.peak, after=max(accumulate(changes)), spans=spans, copies=copies
        )

    def _first(self, node: Node, place: int) -> int:
        """The first position at which a tensor is held that is written for a launch. As early as in the graph
        if Inductor may store it there, or fuse it with the loop that computes an operand."""
        node_place = min(self.index.get(node, place), place)
        if node in self.realised and node not in self.stored:
            return node_place
        made_of, inlined = self._made_of(node)
        loops = [n for n in made_of if self.is_loop(n)]
        operators = [n for n in made_of if n not in loops]
        # A loop is not fused with one that has to wait for another operator which waits for the first.
        before = needed_for(operators, since=min(map(position, loops))) if loops else ()
        if inlined > INLINED or any(n not in before for n in loops):
            return node_place
        kernels = sorted(self.index.get(n, place) for n in self.realised if n.op == "call_function")
        before_place = bisect_left(kernels, place)
        near = kernels[max(0, before_place - NEAR)] if before_place else place
        fused = any(near <= at < place for n in made_of for at in self._readers(n))
        return max(node_place, near) if fused else place

    def _if_fused(self, node: Node) -> int:
        """The position at which a loop's result is stored: in the kernel of a reduction along its rows that
        it reads, however long before, if all else that it reads exists there."""
        made_of = set[Node]().union(*(self._made_of(a)[0] for a in node.all_input_nodes))
        reductions = [n for n in made_of if _is_row_of(n, node)]
        if not reductions:
            return self.index[node]
        before = needed_for(made_of.difference(reductions), since=min(map(position, reductions)))
        last = max(self.index[n] for n in made_of)
        return last if any(n not in before for n in reductions) else self.index[node]

    def _computed(self, node: Node, default: int = 0) -> int:
        """The position at which a node is computed."""
        return self.early.get(node, self.index.get(node, default))

    def _made_of(self, node: Node) -> tuple[set[Node], int]:
        """What a loop reads from memory to compute a node, and of how many nodes it computes then."""

        def is_read(node: Node) -> bool:
            return node in self.stored or node in self.realised or not self.is_loop(node)

        nodes = set(closure([node], lambda n: () if is_read(n) else n.all_input_nodes))
        reads = set(filter(is_read, nodes))
        return reads, sum(map(is_pointwise, nodes - reads))

    def _position(self, node: Node) -> int:
        """The position of a node; of what a rewrite has added, that of the node in front of it."""
        while node not in self.index:
            node = node.prev
        return self.index[node]

    def _shared(self, span: Span, node: Node, place: int) -> Span:
        """A node's new span; it ends where a loop outside of the region still writes where the node lay."""
        old = self.spans.get(node)
        if old is None or span.last == place or (old.bytes, old.last) != (span.bytes, span.last - 1):
            return span
        return dataclasses.replace(span, last=old.last)

    def _read_by(self, region: Region, read: Collection[Node]) -> set[Node]:
        """The nodes that are in memory because of a region's members, or that they are computed from. `read`:
        those that its launch reads."""

        members = set(region.nodes)

        def bases(node: Node) -> Iterable[Node]:
            return (b for a in node.all_input_nodes if (b := self.base.get(a, a)) not in members)

        starts = (base for node in (*region.nodes, *region.inputs) for base in bases(node))
        nodes = closure(starts, lambda n: () if n in self.stored else bases(n))
        tensors = {*read, *filter(self.stored.__contains__, nodes)}
        return {n for n in tensors if n in self.base and not is_constant(n)}

    def fits(self, change: Change) -> bool:
        """Whether a region leaves the peak where stock may have it, or where earlier regions do.

        Its workspace does not count: it is a few percent of the region's tensors, and a model has hundreds.
        """
        most = self.fused + max(self.fused * TOLERANCE, PIECE)
        return change.after <= max(most, change.before)

    def commit(self, change: Change, results: Mapping[Node, Node]) -> None:
        """Note that the graph was rewritten; `results`: what replaces the region's outputs."""
        for node, span in change.spans.items():
            self._set(node, None)
            self.stored.discard(node)
            result = results.get(node, node)
            new = _launched(result) if node in results else node
            if span is not None:
                self._set(new, span)
                self.stored.add(new)
            cat_slice = change.region.cat_slices.get(node)
            self.base.setdefault(new, new if cat_slice is None else cat_slice.whole)
            shown = self.base.setdefault(result, new if is_view(result) else result)
            self.base.update((u, shown) for u in result.users if self.base.get(u) is node)
        for copy in change.copies:
            add(self.changes, copy, 1)
        for node in change.late:
            self.index[node] = max(self.index.get(node, 0), change.place)
            self.early.pop(node, None)
        for node, at in change.written.items():
            self.index[node] = max(self.index.get(node, 0), at)
        self.peak = change.after
        todo = list(results.values())
        self.realised.update(map(_launched, todo))
        while todo:
            node = todo.pop()
            if node not in self.index:
                self.index[node] = change.place
                todo.extend(node.all_input_nodes)


def _launched(result: Node) -> Node:
    """What a launch gives, behind a view or a cast of it."""
    source = result.args[0]
    return source if getattr(source, "target", None) is operator.getitem else result  # type: ignore[return-value]


def _is_first_step(node: Node) -> bool:
    """Whether nothing but sums read a sum: it is as small as the workspace of one that is divided."""
    return reduction_kind(node) is not None and all(reduction_kind(u) is not None for u in node.users)


def _is_loop(node: Node) -> bool:
    """Whether Inductor computes a node in loops that may be fused with others, or it is a view."""
    if node.op != "call_function":
        return False
    if takes_operands(node) or is_constant(node):
        return True
    if _is_broadcast(node):
        return True
    key = _storage(node)
    return key is not None and any(_storage(a) == key for a in node.all_input_nodes)


def _storage(node: Node) -> object:
    """The memory of a node's result; of several that are views, such as the pieces of a split, that of what
    they are views of."""
    gives_several = isinstance(node.meta.get("val"), (tuple, list))
    divides = gives_several and isinstance(node.target, OpOverload) and node.target.is_view
    return get_node_storage(node.args[0] if divides else node)  # type: ignore[arg-type]


def _is_row_of(node: Node, result: Node) -> bool:
    """Whether a node is a reduction's result with one element for each row of a loop's."""
    shape, rows = shape_of(result), shape_of(node)
    if reduction_kind(node) is None or not shape or not rows or len(rows) != len(shape):
        return False
    kept = [d for d, n in enumerate(rows) if n == shape[d]]
    return (
        kept == list(range(len(kept))) and len(kept) < len(shape) and all(n == 1 for n in rows[len(kept) :])
    )


def _is_broadcast(node: Node) -> bool:
    """Whether a node is a view even where a pass of Inductor gave it a fake tensor with memory of its own."""
    return node.target is torch.ops.aten.expand.default
