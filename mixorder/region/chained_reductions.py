"""Chained reductions: inner reductions of the results of others, which read nothing more from memory.

A norm's backward may reduce a row, compute with the result, and reduce again (the gradient of a subtracted
mean). The first reduction of the next norm looks alike where norms follow one another. The other users of its
operands tell the two apart: in the next norm, some of them read that norm's own input.

Takes the reductions of a pair, gives those of a larger region. Reads the graph, never writes it.
"""

from __future__ import annotations

from torch.fx import Node

from .axes import Space, fits
from .nodes import operands, reduced
from .space_analysis import SpaceAnalysis
from .walk import sweep


def with_chained_reductions(
    analysis: SpaceAnalysis, space: Space, inner: list[Node], outer: list[Node]
) -> list[Node]:
    """`inner`, and the inner reductions that are computed from it, in a region with `outer`."""
    inner = list(inner)
    while reductions := _next_reductions(analysis, space, inner, outer):
        inner.extend(reductions)
    return inner


def _next_reductions(
    analysis: SpaceAnalysis, space: Space, inner: list[Node], outer: list[Node]
) -> list[Node]:
    derived, exits, candidates = _derive(analysis, inner, outer)
    reductions = []
    for node in candidates:
        above = analysis.above(node)
        if above.isdisjoint(inner):
            continue  # not computed from `inner`: another norm's statistics of the same activations
        siblings = (e for e in exits if any(a in above and a in derived for a in operands(e)))
        if fits(space, reduced(node), reduced(outer[0])) and not any(
            analysis.feeds_inner(e, {*derived, *candidates}) for e in siblings
        ):
            reductions.append(node)
    return reductions


def _derive(
    analysis: SpaceAnalysis, inner: list[Node], outer: list[Node]
) -> tuple[set[Node], list[Node], list[Node]]:
    """Three sets: what can be computed from the pair's reads and inner results; its users that need other
    full-size reads; its users that are inner reductions."""
    core = {*inner}.union(*(analysis.above(n) for n in (*inner, *outer)))
    known = core | {a for n in (*core, *outer) for a in operands(n) if analysis.is_full(a)}
    column = set(outer)
    exits, candidates = list[Node](), list[Node]()

    def visit(node: Node) -> bool:
        if node in known or node in column:
            return True
        args = operands(node)
        if any(a in column for a in args):
            column.add(node)
        elif node in analysis.inner:
            candidates.append(node)
        elif analysis.fusible(node):
            if all(a in known or not analysis.is_full(a) for a in args):
                known.add(node)
                return True
            exits.append(node)
        return False

    sweep({*known, *column}, visit)
    return known, exits, candidates
