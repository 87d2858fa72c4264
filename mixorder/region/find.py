"""Find pairs of inner and outer reductions, and grow a region around each.

Takes the FX graph; yields a `Region`, or a `Decline` for a pair that cannot be fused, one after the other.
The caller may rewrite the graph between two regions: the next one is grown on the graph as it then is.
Nothing here changes the graph, reads device properties, or estimates cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping

from torch.fx import Graph, Node

from ..errors import Decline, DeclineReason
from .axes import Reduced, Space, classify, fits, is_inner_like, is_outer_like, unpaired_space
from .chained_reductions import with_chained_reductions
from .gathers import is_made_of_pieces
from .grow import grow
from .near_misses import near_misses
from .nodes import is_pointwise, is_variance, is_view, operands, reduced, reduced_tensor
from .provenance import about
from .reduction_groups import group_seed, may_be_over_reduction_group, reduced_further
from .region import Region, Seed
from .sizes import Size, product
from .space_analysis import SpaceAnalysis
from .tile import TileSeed, is_within_tile, may_be_square, tile_seed
from .transposed import has_known_sizes, may_be_transposed, transposed_seed
from .walk import by_position, descendants, needed_for, position, sweep

RegionSearch = Generator[Region | Decline, Region | Decline | None, None]
Choices = Callable[[SpaceAnalysis, Node], Iterable[tuple[list[Node], list[Node]]]]


def find_regions(graph: Graph, joining: Mapping[Node, frozenset[Node]] = {}) -> RegionSearch:
    """Yield the graph's regions, or the reason against each, in the order of their first outer reduction.

    A caller that fuses a smaller region instead sends that one back. The nodes that it leaves out may join
    another region. `joining`: reductions that may be in a region, but that none is looked for, and the nodes
    that are in a region only with each.
    """
    analyses: dict[Size, SpaceAnalysis] = {}
    outers: list[tuple[Node, SpaceAnalysis]] = []
    reductions = {node: what for node in graph.nodes if (what := reduced(node)) is not None}
    nodes = [node for node in reductions if node not in joining]
    within_tile = [node for node in nodes if is_within_tile(node) or may_be_square(node)]
    for node, what in reductions.items():
        if not (numel := product(what.shape)):
            continue
        if is_inner_like(what) and node not in joining:
            analyses.setdefault(numel, SpaceAnalysis(numel)).inner.add(node)
        elif is_outer_like(what) and not is_variance(node):  # a variance over rows would take two passes
            analysis = analyses.setdefault(numel, SpaceAnalysis(numel))
            analysis.outer.add(node)
            if node not in joining:
                outers.append((node, analysis))
    numbered = _Numbered(analyses, joining)
    yield from numbered.tiles(within_tile, tile_seed)
    paired = numbered.paired(outers)
    over_reduction_groups = list(filter(may_be_over_reduction_group, nodes))
    further = reduced_further(graph.nodes)
    yield from numbered.tiles(over_reduction_groups, lambda node: group_seed(node, further, paired))
    asked = frozenset(numbered.answered)
    yield from numbered.pairs(outers, _paired)
    left = paired - numbered.grown - asked
    over_reduction_groups = list(filter(may_be_over_reduction_group, by_position(left)))
    yield from numbered.tiles(over_reduction_groups, lambda node: group_seed(node, further))
    narrow = [node for node in graph.nodes if may_be_transposed(node) and has_known_sizes(node)]
    yield from numbered.tiles(narrow, transposed_seed)
    yield from numbered.pairs(outers, _unpaired)
    yield from (numbered.cycles[n] for n, analysis in outers if n in analysis.outer and n in numbered.cycles)
    yield from near_misses(graph, numbered.answered)


def next_region(regions: RegionSearch, taken: Region | Decline | None) -> Region | Decline | None:
    """What the search finds next, told what was taken of the last region, or why it was not; None at its
    end."""
    try:
        return regions.send(taken)
    except StopIteration:
        return None


class _Numbered:
    """Grows and numbers regions: of reductions within a tile first, then over reduction groups that no pair
    needs, then of pairs, then of results that are transposed, then of outer reductions that join a pointwise
    loop."""

    def __init__(self, analyses: dict[Size, SpaceAnalysis], joining: Mapping[Node, frozenset[Node]]) -> None:
        self.analyses = analyses
        self.joining = joining
        self.count = 0
        self.cycles: dict[Node, Decline] = {}
        self.answered: set[Node] = set()  # reductions of all that was yielded
        self.grown: set[Node] = set()  # those of pairs' regions, if their rows are not too wide

    def tiles(self, nodes: list[Node], seed_of: Callable[[Node], TileSeed | None]) -> RegionSearch:
        """Yield a region for each seed of nodes that end within a tile, or the reason against it. What is not
        taken of a region may have its own, or join another one."""
        tried: set[Node] = set()
        todo = nodes[::-1]
        while todo:
            node = todo.pop()
            if node in tried or (seed := seed_of(node)) is None:
                continue
            used = {*seed.inner, *seed.outer, *seed.results}
            tried |= used
            self.answered |= used
            try:
                region = grow(dataclasses.replace(seed, made_for=self.joining), f"region{self.count}")
                self.count += 1
                if not isinstance(taken := (yield region), Region):
                    continue
                left, used = used.difference(taken.nodes), set(taken.nodes)
                todo += (n for n in reversed(nodes) if n in left)
                tried = tried - left | used
                for analysis in self.analyses.values():
                    analysis.forget(used)
            except Decline as decline:
                yield about(decline.kept(), by_position(used))

    @staticmethod
    def paired(outers: list[tuple[Node, SpaceAnalysis]]) -> set[Node]:
        """The reductions that a pair may take. The last pair of a chain of norms has those of all before."""
        reductions = set[Node]()
        for node, analysis in reversed(outers):
            if node not in reductions and analysis.inner:
                inner, outer = pair(analysis, node)
                reductions |= {*inner, *outer} if inner else set()
        return reductions

    def pairs(self, outers: list[tuple[Node, SpaceAnalysis]], choices_of: Choices) -> RegionSearch:
        """Try one choice of inner and outer reductions after the other for each outer one that is in no
        region, until one gives no cycle.

        An outer reduction that shares only an activation with the others may come before a matrix product
        that the others come after, or before reductions along rows that need its result.
        """
        for first, analysis in outers:
            for inner, outer in choices_of(analysis, first) if first in analysis.outer else ():
                self.cycles.pop(first, None)
                yield from self.attempt(analysis, inner, outer, first)
                if first not in self.cycles:
                    break

    def attempt(
        self, analysis: SpaceAnalysis, inner: list[Node], outer: list[Node], first: Node
    ) -> RegionSearch:
        """Yield the region or the reason against it. No other region gets its reductions then.

        A cycle is noted instead of yielded, and the reductions stay free: another choice may have no cycle.
        """
        used = {*inner, *outer}
        try:
            space: Space | None
            if inner:
                space, inner, outer = agree(first, inner, outer)
                inner = with_chained_reductions(analysis, space, inner, outer)
            else:
                space = unpaired_space(_reduced(first))
            if space is not None:
                seed = Seed(analysis, space, tuple(inner), tuple(outer), made_for=self.joining)
                region = grow(seed, f"region{self.count}")
                self.count += 1
                self.answered |= used
                taken = yield region
                if not isinstance(taken, Decline):
                    self.grown |= used
                used = set((taken if isinstance(taken, Region) else region).nodes)
        except Decline as decline:
            about(decline.kept(), by_position(used))
            self.answered |= used
            if decline.reason is DeclineReason.CYCLE:
                self.cycles[first] = decline
                return
            yield decline
        for space_analysis in self.analyses.values():
            space_analysis.forget(used)


def _paired(analysis: SpaceAnalysis, first: Node) -> Iterator[tuple[list[Node], list[Node]]]:
    """What to try of a pair, in turn: all of it; then with the outer ones that are related to `first` alone;
    then, if any is left, without the inner reductions that need the result of `first`, and without the outer
    ones that an inner one needs: these come before or after."""
    inner, outers = pair(analysis, first) if analysis.inner else ([], [])
    if not inner:
        return
    yield inner, outers
    since = position(by_position((*inner, *outers))[0])
    if free := [n for n in inner if first not in needed_for([n], since)]:
        early = needed_for(free, since)
        yield free, [n for n in outers if n not in early]


def _unpaired(analysis: SpaceAnalysis, first: Node) -> Iterator[tuple[list[Node], list[Node]]]:
    """What to try of an outer reduction that joins a pointwise loop: with others beside it, then alone."""
    if _joins_a_loop(analysis, first):
        yield [], _companions(analysis, first)
        yield [], [first]


def _joins_a_loop(analysis: SpaceAnalysis, outer: Node) -> bool:
    """Whether a pointwise loop reads what an outer reduction reads, and writes a tensor for other users: the
    one that is reduced or another one, such as dx beside the gradient of a scale.

    Fused into that loop, the reduction reads nothing again.
    """
    reads = analysis.leaves(outer)
    if not reads or analysis.depends_on(outer, analysis.inner, set()):
        return False  # without leaves it reduces broadcast copies of small tensors
    source = operands(outer)[0]
    readers = [user for user in source.users if user is not outer]
    while is_view(source):
        source = operands(source)[0]
        readers += [user for user in source.users if not is_view(user) or len(user.users) > 1]
    if readers and is_made_of_pieces(source) and analysis.is_full(source):
        return analysis.is_written_anyway(source)
    if readers and is_pointwise(source) and analysis.fusible(source) and not analysis.recomputed(source):
        return True
    reductions = analysis.inner | analysis.outer
    return any(
        is_pointwise(n)
        and analysis.is_written_anyway(n)
        and analysis.leaves(n) <= reads
        and not analysis.depends_on(n, reductions, set())
        and outer not in needed_for([n], position(outer))
        for n in _walk_down(analysis, reads, frozenset())
    )


def _companions(analysis: SpaceAnalysis, outer: Node) -> list[Node]:
    """The outer reductions of the same space and level that share a full-size read with `outer`."""
    reads, space = analysis.leaves(outer), unpaired_space(_reduced(outer))
    sharing = analysis.outer.intersection(_walk_down(analysis, reads, frozenset()))
    independent = (n for n in sharing if not analysis.depends_on(n, analysis.inner, set()))
    return by_position(n for n in independent if unpaired_space(_reduced(n)) == space)


def pair(analysis: SpaceAnalysis, outer: Node) -> tuple[list[Node], list[Node]]:
    """The inner and outer reductions that share full-size reads with `outer`; none if no inner one does.

    Reductions that depend on inner ones of these reads are left out: they depend on the pair's results, and
    belong to the next norm of a chain. Statistics are no results: inner reductions above those of the pair.
    """
    inner: set[Node] = set()
    outers = {outer}
    reads = analysis.full_reads(outer)
    while True:
        above = set().union(*(analysis.above(n) for n in (outer, *inner)))
        candidates = set(_walk_down(analysis, reads, above & analysis.inner))
        inner_now = inner | (candidates & analysis.inner)
        outers_now = outers | (candidates & analysis.outer)
        if inner_now == inner and outers_now == outers:
            break
        inner, outers = inner_now, outers_now
        reads = frozenset().union(*(analysis.full_reads(n) for n in inner))
    later = _behind_results(analysis, inner, outers, outer)
    candidates, outers = inner - later, outers - later
    inner = _of_this_norm(analysis, candidates, outer, outers)
    known = analysis.leaves(outer).union(*(analysis.leaves(n) for n in inner))
    # One that depends on a reduction and reads more belongs to another norm down the residual stream.
    outers = {
        n
        for n in outers
        if n is outer or not analysis.depends_on(n, analysis.inner, set()) or analysis.leaves(n) <= known
    }
    # Of two norms with one gradient, both dw are among them: the other norm's sums along rows read the same.
    alike = {*map(analysis.leaves, outers)}
    return by_position(n for n in candidates if n in inner or analysis.leaves(n) in alike), by_position(
        outers
    )


def _behind_results(analysis: SpaceAnalysis, inner: set[Node], outers: set[Node], outer: Node) -> set[Node]:
    """The reductions that come after the pair's results, through whatever nodes: a later norm's, of an
    activation that both norms share. A result is an inner reduction that `outer` does not come after, and no
    statistic, which another reduction of the pair is computed from."""
    candidates = by_position({*inner, *outers})
    before = needed_for([outer], since=position(candidates[0])).union(*map(analysis.above, candidates))
    last = position(candidates[-1])
    users = (user for result in inner - before for user in result.users)
    return {*descendants(users, lambda n: position(n) <= last)}.intersection(candidates) - {outer}


def _of_this_norm(analysis: SpaceAnalysis, inner: set[Node], outer: Node, outers: set[Node]) -> set[Node]:
    """Leave out inner reductions that only share recomputed activations: another norm's statistics.

    A reduction of this norm lies above one of its outer reductions, or reduces the tensor that one of them
    reduces, or it or a user of its result reads what they all read and nothing else. If that leaves none, the
    result is all of `inner`.
    """
    related = [n for n in outers if _is_related(analysis, n, outer)]
    above = {n for reduction in related for n in analysis.above(reduction)}
    reads = [analysis.leaves(n) for n in related]
    least, most = frozenset.intersection(*reads), frozenset.union(*reads)
    reduced_by_outer = {reduced_tensor(n) for n in outers}
    kept = {
        n
        for n in inner
        if n in above
        or reduced_tensor(n) in reduced_by_outer
        or any(least <= analysis.leaves(m) <= most for m in _uses(analysis, n))
    }
    return kept or inner


def _is_related(analysis: SpaceAnalysis, node: Node, outer: Node) -> bool:
    """Whether one of two outer reductions reads all that the other reads, as a norm's dw and db."""
    outer_leaves, node_leaves = analysis.leaves(outer), analysis.leaves(node)
    return outer_leaves <= node_leaves or node_leaves <= outer_leaves


def _uses(analysis: SpaceAnalysis, inner: Node) -> Iterator[Node]:
    """An inner reduction, and the full-size nodes that depend on its result."""
    yield inner
    yield from filter(analysis.is_full, descendants(inner.users, analysis.is_traced))


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


def _walk_down(analysis: SpaceAnalysis, reads: Iterable[Node], statistics: Collection[Node]) -> list[Node]:
    """Users of `reads`, through pointwise ops and views, in graph order.

    What depends on an inner reduction among them is left out, unless that is one of `statistics`.
    """
    consumers, results, free = list[Node](), set[Node](), set(statistics)

    def visit(node: Node) -> bool:
        if node.op != "call_function" or (results and analysis.depends_on(node, results, ignoring=free)):
            return False
        consumers.append(node)
        if node in analysis.inner and node not in statistics:
            results.add(node)
        return analysis.fusible(node)

    sweep({user for read in reads for user in read.users}, visit)
    return consumers
