"""Find pairs of inner and outer reductions, and have a region grown around each.

Takes the FX graph; gives `Region`s one after the other, or a `Decline` for a pair that cannot be taken. The
caller may rewrite the graph between two regions: each is grown on the graph as it then is. Nothing here
changes the graph, reads device properties, or weighs cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch.fx import Graph, Node

from ..errors import Decline, DeclineReason
from .grow import Growth, Scope, by_position
from .nodes import (
    Space,
    fake,
    inner_space,
    is_static,
    outer_space,
    reduced_dims,
    reduction_kind,
)
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
    yield from _dynamic_pairs(graph)
    for node, scope in outers:
        if node in scope.outer and (other := _other_axes(scope, node)) is not None:
            detail = f"beside {other.name}, which reduces dims {reduced_dims(other)} of the same tensor"
            yield Decline(DeclineReason.AXIS_CLASS, detail, node.name)


def _dynamic_pairs(graph: Graph) -> Iterator[Decline]:
    """One decline for each symbolic shape that is reduced over leading and over trailing dims."""
    sides: dict[str, set[str]] = {}
    for node in graph.nodes:
        source = fake(node.args[0]) if reduction_kind(node) is not None else None
        if source is None or is_static(node.args[0]):
            continue
        dims, ndim = reduced_dims(node), source.dim()
        shape = str(tuple(source.shape))
        seen = sides.setdefault(shape, set())
        if dims == tuple(range(len(dims))):
            seen.add("leading")
        if dims == tuple(range(ndim - len(dims), ndim)):
            seen.add("trailing")
        if len(seen) == 2:
            yield Decline(DeclineReason.DYNAMIC_SHAPE, shape, node.name)
            sides[shape] = {"reported", *seen}


def _other_axes(scope: Scope, outer: Node) -> Node | None:
    """A reduction that shares a full-size read with `outer`, over axes that make no pair with it."""
    for node in _walk_down(scope, scope.full_reads(outer)):
        if reduction_kind(node) is not None and scope.space not in (inner_space(node), outer_space(node)):
            return node
    return None


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
    reached = _walk_down(scope, reads)
    return {n for n in reached if n in scope.inner or n in scope.outer}


def _walk_down(scope: Scope, reads: Iterable[Node]) -> Iterator[Node]:
    """Users of `reads`, through pointwise ops and views, that no inner reduction precedes."""
    seen: set[Node] = set()
    todo = list(reads)
    while todo:
        for user in todo.pop().users:
            if user in seen or user.op != "call_function":
                continue
            seen.add(user)
            if not scope.depends_on_inner(user):
                yield user
                if scope.fusible(user):
                    todo.append(user)


def _is_degenerate_inner(scope: Scope, outer: Node) -> bool:
    """With one row or one column, a reduction fits both sides; one whose result goes back into a full-size
    node is the inner one."""
    if 1 not in (scope.space.rows, scope.space.cols):
        return False
    derived, todo = {outer}, list(outer.users)
    while todo:
        user = todo.pop()
        if user in derived or not scope.fusible(user):
            continue
        others = (a for a in user.all_input_nodes if a not in derived)
        if any(scope.is_full(a) and not scope.is_broadcast(a) for a in others):
            return True
        derived.add(user)
        todo.extend(user.users)
    return False
