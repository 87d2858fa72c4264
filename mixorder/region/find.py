"""Find pairs of inner and outer reductions, and have a region grown around each.

Takes the FX graph; gives `Region`s one after the other, or a `Decline` for a pair that cannot be taken. The
caller may rewrite the graph between two regions: each is grown on the graph as it then is. Nothing here
changes the graph, reads device properties, or weighs cost.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from torch.fx import Graph, Node

from ..errors import Decline, DeclineReason
from .axes import Reduced, Size, Space, classify, columns_alone, fits, is_inner_like, is_outer_like, product
from .chained_reductions import with_stages
from .gathers import is_made_of_pieces
from .grow import grow
from .nodes import is_pointwise, is_variance, is_view, operands, reduced
from .provenance import origin_of
from .region import Region, Seed
from .space_analysis import Scope, by_position

Found = Generator[Region | Decline, Region | None, None]


def find_regions(graph: Graph) -> Found:
    """Yield the graph's regions, or the reason against each, in the order of their first outer reduction.

    Whoever takes a smaller region instead sends that back: what it left out may be part of another one.
    """
    scopes: dict[Size, Scope] = {}
    outers: list[tuple[Node, Scope]] = []
    for node in graph.nodes:
        if (what := reduced(node)) is None or not (numel := product(what.shape)):
            continue
        if is_inner_like(what):
            scopes.setdefault(numel, Scope(numel)).inner.add(node)
        elif is_outer_like(what) and not is_variance(node):  # of rows, it takes two passes
            scope = scopes.setdefault(numel, Scope(numel))
            scope.outer.add(node)
            outers.append((node, scope))
    yield from _Numbered(scopes).regions(outers)


def next_region(regions: Found, taken: Region | None) -> Region | Decline | None:
    """What the search finds next, told what was taken of the last region; None at its end."""
    try:
        return regions.send(taken)
    except StopIteration:
        return None


class _Numbered:
    """Grows and numbers regions, pairs first, then outer reductions whose source must be written anyway."""

    def __init__(self, scopes: dict[Size, Scope]) -> None:
        self.scopes = scopes
        self.count = 0
        self.cycles: dict[Node, Decline] = {}

    def regions(self, outers: list[tuple[Node, Scope]]) -> Found:
        for node, scope in outers:
            if node in scope.outer and scope.inner:
                inner, outer = pair(scope, node)
                if inner:
                    related = [n for n in outer if _is_related(scope, n, node)]
                    yield from self.attempt_in_turn(scope, inner, (outer, related), node)
        for node, scope in outers:
            if node in scope.outer and _source_is_written(scope, node):
                yield from self.attempt_in_turn(scope, [], (_companions(scope, node), [node]), node)
        for node, scope in outers:
            if node in scope.outer and node in self.cycles:
                yield self.cycles[node]

    def attempt_in_turn(
        self, scope: Scope, inner: list[Node], choices: tuple[list[Node], ...], first: Node
    ) -> Found:
        """Try a choice of outer reductions after the other, while there is a cycle.

        What shares no more than an activation may come before a matrix product that the others come after.
        """
        for outers in choices:
            self.cycles.pop(first, None)
            yield from self.attempt(scope, inner, outers, first)
            if first not in self.cycles:
                return

    def attempt(self, scope: Scope, inner: list[Node], outer: list[Node], first: Node) -> Found:
        """Yield the region or the reason against it; afterwards its reductions are spoken for, unless a cycle
        stood in the way: another choice may have none."""
        spoken_for = {*inner, *outer}
        try:
            space: Space | None
            if inner:
                space, inner, outer = agree(first, inner, outer)
                inner = with_stages(scope, space, inner, outer)
            else:
                space = columns_alone(_reduced(first))
            if space is not None:
                region = grow(Seed(scope, space, tuple(inner), tuple(outer)), f"region{self.count}")
                self.count += 1
                taken = yield region
                spoken_for = set((taken or region).nodes)
        except Decline as decline:
            decline.origin = origin_of(by_position(spoken_for))
            if decline.reason is DeclineReason.CYCLE:
                self.cycles[first] = decline
                return
            yield decline
        for other in self.scopes.values():
            other.forget(spoken_for)


def _source_is_written(scope: Scope, outer: Node) -> bool:
    """Whether what an outer reduction reads is made by pointwise ops of several tensors, and kept.

    The reduction then rides along where its source is made, and saves reading it again.
    """
    if scope.level(outer) > 0 or not _leaves(scope, outer):
        return False  # without leaves it adds up copies of small tensors
    source = operands(outer)[0]
    others = [user for user in source.users if user is not outer]
    while is_view(source):
        source = operands(source)[0]
        others += [user for user in source.users if not is_view(user) or len(user.users) > 1]
    if others and is_made_of_pieces(source) and scope.is_full(source):
        return scope.is_written_anyway(source)
    if not others or not is_pointwise(source) or not scope.fusible(source):
        return False
    return not scope.recomputed(source) or scope.is_written_anyway(source)


def _companions(scope: Scope, outer: Node) -> list[Node]:
    """The outer reductions of the same space and level that share a full-size read with `outer`."""
    reads, space = _leaves(scope, outer), columns_alone(_reduced(outer))
    sharing = scope.outer.intersection(_walk_down(scope, reads, level=0))
    return by_position(n for n in sharing if columns_alone(_reduced(n)) == space)


def pair(scope: Scope, outer: Node) -> tuple[list[Node], list[Node]]:
    """The inner and outer reductions that share full-size reads with `outer`; none if no inner one does.

    Reductions of a higher level than `outer` are left: they depend on what the pair computes, and belong to
    the next norm of a chain.
    """
    level = scope.level(outer)
    inner: set[Node] = set()
    outers = {outer}
    reads = scope.full_reads(outer)
    while True:
        found = set(_walk_down(scope, reads, level))
        inner_now = inner | (found & scope.inner)
        outers_now = outers | (found & scope.outer)
        if inner_now == inner and outers_now == outers:
            break
        inner, outers = inner_now, outers_now
        reads = frozenset().union(*(scope.full_reads(n) for n in inner))
    inner = _of_this_norm(scope, inner, outer, outers)
    known = _leaves(scope, outer).union(*(_leaves(scope, n) for n in inner))
    # One that depends on a reduction and reads more belongs to another norm down the residual stream.
    outers = {n for n in outers if n is outer or scope.level(n) == 0 or _leaves(scope, n) <= known}
    return by_position(inner), by_position(outers)


def _of_this_norm(scope: Scope, inner: set[Node], outer: Node, outers: set[Node]) -> set[Node]:
    """Leave out inner reductions that only share recomputed activations (another norm's statistics).

    One of this norm lies above an outer reduction of the norm, or reads what they all do and nothing else,
    itself or where its result is used. If that leaves none, all are kept.
    """
    related = [n for n in outers if _is_related(scope, n, outer)]
    above = {n for other in related for n in scope.above(other)}
    reads = [_leaves(scope, n) for n in related]
    least, most = frozenset.intersection(*reads), frozenset.union(*reads)
    own = {n for n in inner if n in above or any(least <= _leaves(scope, m) <= most for m in _uses(scope, n))}
    return own or inner


def _is_related(scope: Scope, node: Node, outer: Node) -> bool:
    """Whether one reads all that the other does, as a norm's dw and db."""
    mine, other = _leaves(scope, outer), _leaves(scope, node)
    return mine <= other or other <= mine


def _leaves(scope: Scope, node: Node) -> frozenset[Node]:
    return frozenset(read for read in scope.full_reads(node) if not scope.fusible(read))


def _uses(scope: Scope, inner: Node) -> Iterator[Node]:
    """An inner reduction, and the full-size nodes that its result goes into."""
    yield inner
    seen, todo = {inner}, [inner]
    while todo:
        for user in todo.pop().users:
            if user not in seen and (scope.fusible(user) or user in scope.inner):
                seen.add(user)
                todo.append(user)
                if scope.is_full(user):
                    yield user


def agree(outer: Node, inner: list[Node], outers: list[Node]) -> tuple[Space, list[Node], list[Node]]:
    """The space of `outer` and the first inner reduction that fits it, and all reductions of that space.

    Raises `Decline` if no inner reduction fits.
    """
    refusal: Decline | None = None
    for candidate in inner:
        try:
            space = classify(_reduced(candidate), _reduced(outer))
        except Decline as decline:
            refusal = refusal or Decline(decline.reason, decline.detail, candidate.name)
            continue
        return (
            space,
            [n for n in inner if fits(space, reduced(n), reduced(outer))],
            [n for n in outers if fits(space, reduced(candidate), reduced(n))],
        )
    assert refusal is not None
    raise refusal


def _reduced(node: Node) -> Reduced:
    what = reduced(node)
    assert what is not None
    return what


def _walk_down(scope: Scope, reads: Iterable[Node], level: int) -> Iterator[Node]:
    """Users of `reads`, through pointwise ops and views, up to a level."""
    seen: set[Node] = set()
    todo = list(reads)
    while todo:
        for user in todo.pop().users:
            if user in seen or user.op != "call_function":
                continue
            seen.add(user)
            if scope.level(user) <= level:
                yield user
                if scope.fusible(user):
                    todo.append(user)
