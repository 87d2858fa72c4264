"""Further inner reductions of a region: those that need nothing from memory that it does not read anyway.

A norm's backward may reduce a row, compute with the result, and reduce again (the gradient of a subtracted
mean). Such a reduction is one more stage of the same loop body. The first reduction of the next norm in a
chain can look alike; it is told apart by its siblings, which read that norm's own input.

Takes a pair's core, gives a larger one. Reads the graph, never writes it.
"""

from __future__ import annotations

from torch.fx import Node

from .axes import Space, fits
from .nodes import operands, reduced
from .space_analysis import SpaceAnalysis


def with_chained_reductions(
    analysis: SpaceAnalysis, space: Space, inner: list[Node], outer: list[Node]
) -> list[Node]:
    """`inner`, and the stages that follow from it one after the other, in a region with `outer`."""
    inner = list(inner)
    while found := _next_reductions(analysis, space, inner, outer):
        inner.extend(found)
    return inner


def _next_reductions(
    analysis: SpaceAnalysis, space: Space, inner: list[Node], outer: list[Node]
) -> list[Node]:
    derived, exits, candidates = _derive(analysis, inner, outer)
    found = []
    for node in candidates:
        above = analysis.above(node)
        if above.isdisjoint(inner):
            continue  # not a stage that follows: another norm's statistics of the same activations
        siblings = (e for e in exits if any(a in above and a in derived for a in operands(e)))
        if fits(space, reduced(node), reduced(outer[0])) and not any(
            analysis.feeds_inner(e, {*derived, *candidates}) for e in siblings
        ):
            found.append(node)
    return found


def _derive(
    analysis: SpaceAnalysis, inner: list[Node], outer: list[Node]
) -> tuple[set[Node], list[Node], list[Node]]:
    """What can be computed from the pair's reads and inner results; then users of it that need other
    full-size reads, and inner reductions of it."""
    core = {*inner}.union(*(analysis.above(n) for n in (*inner, *outer)))
    known = core | {a for n in (*core, *outer) for a in operands(n) if analysis.is_full(a)}
    column = set(outer)
    exits: dict[Node, None] = {}
    candidates: dict[Node, None] = {}
    todo = list(known)
    while todo:
        for user in todo.pop().users:
            if user in known or user in column or user.op != "call_function":
                continue
            args = operands(user)
            if any(a in column for a in args):
                column.add(user)
            elif user in analysis.inner:
                candidates[user] = None
            elif not analysis.fusible(user):
                continue
            elif all(a in known or not analysis.is_full(a) for a in args):
                exits.pop(user, None)
                known.add(user)
                todo.append(user)
            else:
                exits[user] = None
    return known, list(exits), list(candidates)
