"""Smaller regions, for one that holds more than the registers do.

What a program must hold from one reduction to the next is there for a reduction still to come (its
accumulator), or for what uses one. So these are what a cut leaves out: one reduction with all that depends on
it, or everything of full size behind the inner ones, so that only their results are written.

Takes a region, gives others; growth decides what else stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from torch.fx import Node

from ..errors import Decline, DeclineReason
from .gathers import is_gather
from .grow import grow
from .nodes import operands
from .placement import conflict
from .region import Region, Seed


def partition(region: Region) -> list[Region]:
    """Regions that do without some nodes of `region` and still hold an outer reduction, and an inner one if
    `region` does."""
    found = []
    behind = frozenset(_behind_inner(region))
    for without in (*({n} for n in (*region.outer, *region.inner)), behind):
        if without and (part := _smaller(region, frozenset(without))) is not None:
            found.append(part)
    return found


def _smaller(region: Region, without: frozenset[Node]) -> Region | None:
    """The region that does without some nodes; None if none is left that is smaller."""
    seed = region.seed
    rest = dataclasses.replace(
        seed,
        inner=tuple(n for n in seed.inner if n not in without),
        outer=tuple(n for n in seed.outer if n not in without),
        without=seed.without | without,
    )
    if not (rest.inner if seed.inner else rest.outer):
        return None
    part = _grown(rest, region.name)
    return part if part is not None and set(part.nodes) < set(region.nodes) else None


def without_gathers(region: Region) -> Region | None:
    """The region that reads what this one computes with gathers; None if it has none."""
    gathers = frozenset(filter(is_gather, region.nodes))
    seed = region.seed
    return _grown(dataclasses.replace(seed, without=seed.without | gathers), region.name) if gathers else None


def without_culprit(region: Region, decline: Decline) -> Region | None:
    """The region without what it was declined for: an operator that cannot be lowered, or a result that is
    used before something that the region reads. None for other reasons, and if nothing smaller is left."""
    ways: list[frozenset[Node]] = []
    if decline.reason is DeclineReason.UNSUPPORTED_OP:
        ways.append(frozenset(n for n in region.nodes if n.name == decline.node_name))
    elif decline.reason is DeclineReason.ORDER and (found := conflict(region)) is not None:
        early, late = found
        ways += [frozenset({early}), frozenset(n for n in region.nodes if late in operands(n))]
    smaller = (_smaller(region, way) for way in ways if way)
    return max(filter(None, smaller), key=lambda r: (len(r.inner) + len(r.outer), len(r.nodes)), default=None)


def _behind_inner(region: Region) -> Iterator[Node]:
    """The full-size members that depend on an inner reduction, other than what further reductions need."""
    needed = set().union(*(region.seed.analysis.above(n) for n in (*region.inner, *region.outer)))
    below = set(region.inner)
    for node in region.nodes:
        if any(a in below for a in operands(node)):
            below.add(node)
            if region.seed.analysis.is_full(node) and node not in needed:
                yield node


def _grown(seed: Seed, name: str) -> Region | None:
    try:
        return grow(seed, name)
    except Decline:
        return None
