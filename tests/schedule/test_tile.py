"""The tiles that are chosen, the space around them, and the predicted time."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from graphs import bf16, merged, traced, within_tile
from support import quantised
from support.quantised import RECIPES

from mixorder.errors import Decline
from mixorder.ir.hardware import SECTOR
from mixorder.schedule import tile
from mixorder.schedule.device import H200
from mixorder.schedule.tile import TileFacts

ROWS, COLS = 16384, 4096


def facts_of(function: Any, rows: int = ROWS, cols: int = COLS, dtype: torch.dtype = bf16) -> TileFacts:
    return tile.facts_of_tile(merged(within_tile(traced(lambda x: function(x), ((rows, cols), dtype)))))


def recipe_facts(name: str, rows: int = ROWS, cols: int = COLS) -> TileFacts:
    recipe = RECIPES[name]
    graph = traced(lambda *args: recipe.function(*args), *recipe.like(rows, cols))
    return tile.facts_of_tile(merged(within_tile(graph)))


@pytest.mark.parametrize("name", RECIPES)
def test_tiles_of_large_tensors(name: str) -> None:
    """They have whole blocks, access each full tensor in whole sectors, and fit a program."""
    facts = recipe_facts(name)
    schedule = tile.choose(facts, H200)
    elements, threads = math.prod(schedule.extents), 32 * schedule.launch.num_warps
    assert all(schedule.extents[place] == facts.sizes[place] for place in facts.whole)
    assert threads <= elements <= tile.MOST_ELEMENTS and elements // threads <= tile.MOST_PER_THREAD
    assert schedule.launch.num_warps <= H200.max_warps
    for size, chain in facts.tensors.chains:
        assert tile._run(facts, schedule.extents, size, chain)[0] >= SECTOR


@pytest.mark.parametrize("rows", [256, 512, 1024, 4096])
def test_small_tensors_keep_multiprocessors_busy_or_have_short_runs(rows: int) -> None:
    facts = facts_of(quantised.mx_in_place, rows, 512)
    schedule = tile.choose(facts, H200)
    programs = facts.numel // math.prod(schedule.extents)
    assert programs >= H200.num_sm or math.prod(schedule.extents) <= 32 * 128


def test_blocks_that_do_not_fit_are_declined() -> None:
    facts = dataclasses.replace(facts_of(quantised.squares), whole=frozenset({0, 1, 3}))
    with pytest.raises(Decline):
        tile.choose(facts, H200)


def turned(x: Any) -> Any:
    """A transposed cast, by scales that need all rows."""
    return quantised.whole(x, 0)[0].t().contiguous()


@pytest.mark.parametrize(("rows", "cols"), [(16384, 4096), (4096, 4096), (4096, 1000), (1000, 4096)])
def test_a_turned_cast_has_whole_sectors_both_ways(rows: int, cols: int) -> None:
    facts = facts_of(turned, rows, cols)
    assert facts.sizes == (rows, cols) and (facts.orders, facts.tensors.turned) == (2, 1) and not facts.whole
    schedule = tile.choose(facts, H200)
    for size, chain in facts.tensors.chains:
        assert tile._run(facts, schedule.extents, size, chain)[0] >= SECTOR
