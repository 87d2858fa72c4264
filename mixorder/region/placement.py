"""Where a region's kernels are launched, and which nodes have to move behind them.

The launch stands behind the last of the region's inputs or, to hold the results for a shorter time, in front
of what first uses one. What uses a result and stands before that place
moves behind it. A node whose order relative to such a node matters moves as well: see `region/effects.py`.

Reads the graph, changes nothing. Raises `Decline` where the order of effects leaves no place.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..inductor.graphs import get_node_storage
from .effects import between, has_effect, mutated_args
from .region import Region
from .walk import by_position, position


def place_of(region: Region) -> Node:
    """The node behind which the region's kernels are launched: its last input, or the last placeholder. For a
    late one it is what stands in front of the first user of a result, but no node behind the region's."""
    place = max(region.inputs, key=position)
    while place.next.op == "placeholder":
        place = place.next
    members = set(region.nodes)
    if region.late and (users := [u for n in region.outputs for u in n.users if u not in members]):
        late = min(min(users, key=position).prev, region.nodes[-1], key=position)
        return max(place, late, key=position)
    return place


def moved(region: Region) -> tuple[Node, ...]:
    """The nodes before the launch that have to come after it, in graph order.

    Raises `Decline` if one of them is needed before the launch.
    """
    waiting = _Waiting(region)
    if (chain := waiting.conflict()) is not None:
        early, *between, late = chain
        through = ", ".join(str(n.target) for n in between if has_effect(n)) or "what uses it"
        detail = f"a result of the region goes to {through}, and what the region reads comes after that"
        raise Decline(DeclineReason.ORDER, detail, early.name)
    return tuple(by_position(waiting.because))


class _Waiting:
    """The nodes that have to come after the launch; `because` names the node that each one follows from."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.place = place_of(region)
        self.last = position(self.place)
        self.because: dict[Node, Node] = {}
        for output in region.outputs:
            self.add_users(output)
        self.add_overtaken()

    def conflict(self) -> list[Node] | None:
        """The nodes from a result of the region to an input that has to come after it, or None."""
        for late in by_position(self.region.inputs):
            if late in self.because:
                chain = [late]
                while chain[-1] in self.because:
                    chain.append(self.because[chain[-1]])
                return chain[::-1]
        return None

    def add_users(self, node: Node) -> None:
        todo = [node]
        while todo:
            source = todo.pop()
            for user in source.users:
                if user not in self.because and position(user) <= self.last:
                    self.because[user] = source
                    todo.append(user)

    def add_overtaken(self) -> None:
        """Add nodes that a waiting node would move past, and must stay in front of.

        Effects keep their order. A read keeps its side of a write of the same memory. Each node that is added
        stands behind its reason, so that one walk finds all.
        """
        if not self.because:
            return
        span = list(between(min(self.because, key=position), self.place))
        writes = {node: memory_of(args) for node in span if (args := mutated_args(node))}
        effect: Node | None = None  # the first waiting node with an effect
        read: dict[object, Node] = {}  # memory, and the first waiting node that reads or writes it
        written: dict[object, Node] = {}
        for node in span:
            into = writes.get(node, frozenset())
            touched = memory_of((node, *node.all_input_nodes)) if writes else frozenset()
            if node not in self.because:
                reasons = [*map(read.get, into), *map(written.get, touched)]
                reasons.append(effect if has_effect(node) else None)
                if (reason := next(filter(None, reasons), None)) is None:
                    continue
                self.because[node] = reason
                self.add_users(node)
            if has_effect(node):
                effect = effect or node
            for memory in touched:
                read.setdefault(memory, node)
            for memory in into:
                written.setdefault(memory, node)


def memory_of(nodes: Iterable[Node]) -> frozenset[object]:
    """The memory in which the nodes' tensors lie, as keys."""
    return frozenset(map(get_node_storage, nodes)) - {None}
