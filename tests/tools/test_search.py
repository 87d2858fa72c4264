"""No variant of a chosen region is better by the prediction itself: with one node less, or one result less.

The variants are those of the search's own moves, `less` and `with_recomputed`, for every node, beside the
few that the search proposes. They are planned, and have to fit into memory, as its states are.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from unittest import mock

import pytest
import replay
from lab import rules

from mixorder.errors import Decline
from mixorder.planning import RegionPlan
from mixorder.region.grow import grow
from mixorder.region.nodes import is_view
from mixorder.region.peak_memory import Change
from mixorder.region.region import Region
from mixorder.region.variants import less, with_recomputed
from mixorder.region.walk import by_position
from mixorder.search import Search

US = 0.1  # less is no difference

# Whole graphs, and the microseconds at most by which the search misses the best variant. A table that is read
# as it was rounded to half precision has fewer bytes, and is less exact.
GRAPHS = {
    "cases/LayerNorm bf16 1 backward": 0.0,
    "cases/RMSNorm dynamic 1 backward": 0.0,
    "programs/2073794953 checkpoint 1 backward": 2.0,
}


def variants(region: Region) -> Iterator[Region]:
    """Every region of the same reductions with one node less or more, or one result less."""
    ways = [less(region, {n}) for n in region.nodes if not is_view(n)]
    ways += [with_recomputed(region, {n}) for n in region.outputs]
    for node in by_position(region.seed.without):
        with contextlib.suppress(Decline):
            seed = dataclasses.replace(region.seed, without=region.seed.without - {node})
            ways.append(grow(seed, region.name))
    for one in {(part.nodes, part.outputs): part for part in ways if part is not None}.values():
        if (one.inner, one.outer) == (region.inner, region.outer):
            yield one


def missed(search: Search, chosen: RegionPlan) -> Iterator[float]:
    """By how many microseconds variants take less than what was chosen, with what they leave to Inductor."""
    if chosen.strategy.tile_local or chosen.strategy.over_reduction_groups or not chosen.region.inner:
        return  # of these, not all that they leave to Inductor is predicted
    for one in variants(chosen.region):
        with contextlib.suppress(Decline):
            plan = search.plan(one)
            search.fits(plan)
            yield chosen.expected.ours_us - plan.expected.ours_us


def all_missed(job: replay.Job) -> list[float]:
    """The same for all of a graph's regions."""
    told: list[float] = []
    best = Search.best

    def asked(search: Search) -> tuple[RegionPlan, Change]:
        found = best(search)
        told.extend(missed(search, found[0]))
        return found

    with mock.patch.object(Search, "best", asked):
        replay.replay(job)
    return told


@pytest.mark.parametrize("name", GRAPHS)
def test_no_variant_of_a_region_takes_less_time(name: str) -> None:
    (job,) = (job for job in replay.wholes() if job.name == name)
    us = all_missed(job)
    assert len(us) > 1 and max(us) < GRAPHS[name] + US


def test_without_its_moves_the_search_misses_more() -> None:
    name = "programs/2073794953 checkpoint 1 backward"
    (job,) = (job for job in replay.wholes() if job.name == name)
    with rules.off("region.variants.lighter"):
        assert max(all_missed(job)) > GRAPHS[name] + US
