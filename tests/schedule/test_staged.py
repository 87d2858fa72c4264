"""When small results are staged, by the requests that a tile's elements of them are."""

from __future__ import annotations

import dataclasses

from graphs import merged, traced, within_tile
from support.quantised import RECIPES

from mixorder.schedule import tile
from mixorder.schedule.device import H200
from mixorder.schedule.staged import pays
from mixorder.schedule.tile import TileFacts

TILE = (2, 32, 2, 32)  # in blocks of 32


def facts_of(name: str, rows: int = 16384, cols: int = 4096) -> TileFacts:
    recipe = RECIPES[name]
    graph = traced(lambda *args: recipe.function(*args), *recipe.like(rows, cols))
    return tile.facts_of_tile(merged(within_tile(graph)))


def test_nothing_is_staged_where_the_rate_of_memory_is_not_known() -> None:
    facts = facts_of("swiglu_backward")
    unknown = dataclasses.replace(H200, bandwidth=0)
    assert not pays(facts.small, facts.sizes, TILE, 10, unknown)


def test_without_programmatic_launch_it_is_launched_behind() -> None:
    schedule = tile.choose(facts_of("swiglu_backward"), dataclasses.replace(H200, overlaps=False))
    assert schedule.results and not schedule.launch.dependent
