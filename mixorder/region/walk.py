"""Walks over a graph: up from nodes to what they are computed from, and down to what uses them.

`among` says of which nodes a walk consists: it does not go past any other. Nothing here changes the graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator

from torch.fx import Node

from .nodes import operands

Test = Callable[[Node], bool]


def position(node: Node) -> tuple[int, ...]:
    """A key that orders nodes as their graph does, also after insertions."""
    return node._sort_key


def by_position(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=position)


def closure(nodes: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """Some nodes, those that follow each, and so on: each node once."""
    seen = dict.fromkeys(nodes)
    todo = list(seen)
    while todo:
        node = todo.pop()
        yield node
        for successor in following(node):
            if successor not in seen:
                seen[successor] = None
                todo.append(successor)


def sources(nodes: Iterable[Node], through: Test) -> Iterator[Node]:
    """Some nodes, and what they are computed from: the operands of each for which `through` is true."""
    return closure(nodes, lambda node: operands(node) if through(node) else ())


def ancestors(nodes: Iterable[Node], among: Test) -> Iterator[Node]:
    """Some nodes, and what these are computed from."""
    return closure(filter(among, nodes), lambda node: filter(among, operands(node)))


def descendants(nodes: Iterable[Node], among: Test) -> Iterator[Node]:
    """Some nodes, and what is computed from these."""
    return closure(filter(among, nodes), lambda node: filter(among, node.users))


def inside(nodes: Iterable[Node], members: Collection[Node]) -> tuple[Node, ...]:
    """Of `members`, some nodes and what these are computed from without leaving them, in graph order."""
    return tuple(by_position(ancestors(nodes, members.__contains__)))


def following(node: Node) -> Iterator[Node]:
    """A node and all behind it, in graph order."""
    while node.op != "root":
        yield node
        node = node.next


def needed_for(nodes: Iterable[Node], since: tuple[int, ...]) -> set[Node]:
    """Some nodes and all that they are computed from, from a position on."""
    return set(ancestors(nodes, lambda node: position(node) >= since))


def dependents(nodes: Iterable[Node], members: Iterable[Node]) -> set[Node]:
    """Some nodes, and those of `members`, which are in graph order, that are computed from them."""
    computed = set(nodes)
    for node in members:
        if not computed.isdisjoint(operands(node)):
            computed.add(node)
    return computed


def sweep(nodes: Iterable[Node], visit: Test) -> None:
    """Visit some nodes and, where `visit` says so, the operators that use one, all in graph order."""
    queued = set(nodes)
    heap = [(position(node), node) for node in queued]
    heapq.heapify(heap)
    while heap:
        _, node = heapq.heappop(heap)
        if visit(node):
            for user in node.users.keys() - queued:
                if user.op == "call_function":
                    queued.add(user)
                    heapq.heappush(heap, (position(user), user))
