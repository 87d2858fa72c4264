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
from mixorder.lowering.tile import lower_tile
from mixorder.schedule import tile
from mixorder.schedule.cost import traffic
from mixorder.schedule.device import H200
from mixorder.schedule.predicted import LEAST_SAVED
from mixorder.schedule.tile import TileFacts
from mixorder.transform.staged import staged

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
    assert schedule.launch.num_warps <= tile.MOST_WARPS
    for size, chain in facts.chains:
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


@pytest.mark.parametrize("name", ["mx_in_place", "mx_both", "mx_transposed", "blocks_both", "squares"])
def test_the_predicted_time(name: str) -> None:
    """Ours moves every tensor once; Inductor's kernels read x for each axis."""
    program = lower_tile(within_tile(traced(lambda x: RECIPES[name].function(x), ((ROWS, COLS), bf16))))
    facts = tile.facts_of_tile(program)
    schedule = tile.choose(facts, H200)
    loops = staged(program, tile.staged_results(program, schedule))
    moved = traffic(program, loops, 1)
    found = tile.expected_of_tile(program, loops, schedule, facts, moved, H200)
    both = len(set(name.split("_")) & {"both", "place"})
    assert (found.launches, found.launches_apart) == (1 + bool(schedule.results), 1 + both)
    assert found.limit_us < found.fused_us and found.idle_us <= found.fused_us
    assert found.saved_us > 0
    slow = dataclasses.replace(H200, name="half", bandwidth=H200.bandwidth / 2)
    other = tile.expected_of_tile(program, loops, schedule, facts, moved, slow)
    assert other.limit_us > 1.8 * found.limit_us and not other.measured


def turned(x: Any) -> Any:
    """A transposed cast, by scales that need all rows."""
    return quantised.whole(x, 0)[0].t().contiguous()


@pytest.mark.parametrize(("rows", "cols"), [(16384, 4096), (4096, 4096), (4096, 1000), (1000, 4096)])
def test_a_turned_cast_has_whole_sectors_both_ways(rows: int, cols: int) -> None:
    facts = facts_of(turned, rows, cols)
    assert facts.sizes == (rows, cols) and (facts.orders, facts.turned) == (2, 1) and not facts.whole
    schedule = tile.choose(facts, H200)
    for size, chain in facts.chains:
        assert tile._run(facts, schedule.extents, size, chain)[0] >= SECTOR


@pytest.mark.parametrize(("rows", "pays"), [(16384, True), (1024, True), (1023, False), (64, False)])
def test_the_time_of_a_turned_cast(rows: int, pays: bool) -> None:
    """Inductor has one kernel for it. Nothing is known of how it turns few elements."""
    program = lower_tile(within_tile(traced(turned, ((rows, 4096), bf16))))
    facts = tile.facts_of_tile(program)
    moved = traffic(program, program, 1)
    found = tile.expected_of_tile(program, program, tile.choose(facts, H200), facts, moved, H200)
    assert (found.launches, found.launches_apart) == (1, 1)
    assert (found.saved_us > LEAST_SAVED * found.apart_us) == pays
