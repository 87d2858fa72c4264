"""Find pairs of inner and outer reductions, and have a region grown around each.

Takes the FX graph; gives `Region`s one after the other, or a `Decline` for a pair that cannot be taken. The
caller may rewrite the graph between two regions: each is grown on the graph as it then is. Nothing here
changes the graph, reads device properties, or weighs cost.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Graph, Node

from ..errors import Decline
from .grow import Growth, Scope, by_position
from .nodes import Space, inner_space, outer_space
from .region import Region


def find_regions(graph: Graph) -> Iterator[Region | Decline]:
    """Yield the graph's regions, or the reason against each, in the order of their first outer reduction."""
    scopes: dict[Space, Scope] = {}
    outers: list[tuple[Node, Scope]] = []
    for node in graph.nodes:
        if (space := inner_space(node)) is not None:
            scopes.setdefault(space, Scope(space)).inner.add(node)
        if (space := outer_space(node)) is not None:
            scope = scopes.setdefault(space, Scope(space))
            scope.outer.add(node)
            outers.append((node, scope))
    count = 0
    for node, scope in outers:
        if node not in scope.outer or not scope.inner:
            continue
        inner, outer = pair(scope, node)
        if not inner:
            continue
        try:
            region = Growth(scope, inner, outer).grow(f"region{count}")
        except Decline as decline:
            spoken_for = {*inner, *outer}
            yield decline
        else:
            count += 1
            spoken_for = set(region.nodes)
            yield region
        for other in scopes.values():
            other.inner -= spoken_for
            other.outer -= spoken_for


def pair(scope: Scope, outer: Node) -> tuple[list[Node], list[Node]]:
    """The inner and outer reductions that share full-size reads with `outer`; none if no inner one does.

    Of inner reductions that depend on each other only the first are taken, so that norms in a chain give
    one region each.
    """
    if _is_degenerate_inner(scope, outer):
        return [], []
    inner, outers = {outer} & scope.inner, {outer}
    reads = scope.full_reads(outer)
    while True:
        found = _reductions_below(scope, reads)
        inner_now = inner | {n for n in found if n in scope.inner and n is not outer}
        outers_now = outers | {n for n in found if n in scope.outer and n not in inner_now}
        if inner_now == inner and outers_now == outers:
            break
        inner, outers = inner_now, outers_now
        reads = frozenset().union(*(scope.full_reads(n) for n in inner))
    inner.discard(outer)
    return by_position(inner), by_position(outers)


def _reductions_below(scope: Scope, reads: frozenset[Node]) -> set[Node]:
    """Reductions that can be reached from `reads` without passing an inner reduction."""
    found: set[Node] = set()
    seen: set[Node] = set()
    todo = list(reads)
    while todo:
        for user in todo.pop().users:
            if user in seen:
                continue
            seen.add(user)
            if user in scope.inner or user in scope.outer:
                if not scope.depends_on_inner(user):
                    found.add(user)
            elif scope.fusible(user) and not scope.depends_on_inner(user):
                todo.append(user)
    return found


def _is_degenerate_inner(scope: Scope, outer: Node) -> bool:
    """With one row or one column, a reduction fits both sides; one whose result goes back into a full-size
    node is the inner one."""
    if 1 not in (scope.space.rows, scope.space.cols):
        return False
    todo, seen = list(outer.users), set()
    while todo:
        user = todo.pop()
        if user in seen or not scope.fusible(user):
            continue
        seen.add(user)
        if any(scope.is_full(a) and not scope.is_broadcast(a) for a in user.all_input_nodes):
            return True
        todo.extend(user.users)
    return False
