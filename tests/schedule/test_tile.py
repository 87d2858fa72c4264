"""The tiles that are chosen, the space around them, and the predicted time."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from graphs import bf16, f32, merged, traced, within_tile
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
from mixorder.schedule.tile_registers import most_registers
from mixorder.transform.staged import staged

ROWS, COLS = 16384, 4096


def facts_of(function: Any, rows: int = ROWS, cols: int = COLS, dtype: torch.dtype = bf16) -> TileFacts:
    return tile.facts_of_tile(merged(within_tile(traced(lambda x: function(x), ((rows, cols), dtype)))))


def test_facts_of_a_transposed_cast() -> None:
    facts = facts_of(quantised.mx_both)
    assert facts.sizes == (512, 32, 128, 32) and facts.whole == {1, 3} and facts.orders == 2
    assert (facts.load_bytes, facts.item_bytes, facts.numel) == (2, 2, ROWS * COLS)
    # The bytes of an element, and the axes along which a tensor is contiguous: all of each here.
    assert set(facts.chains) == {(2, (3, 2, 1, 0)), (1, (3, 2, 1, 0)), (1, (1, 0, 3, 2))}
    assert facts_of(quantised.mx_in_place).orders == 1
    assert facts_of(quantised.mx_both, dtype=f32).load_bytes == 4


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


def test_a_tile_with_more_to_compute_is_smaller() -> None:
    facts = recipe_facts("swiglu_backward")
    assert (facts.loads, facts.reductions, facts.turned) == (3, 4, 2)
    some, none = (tile.choose(dataclasses.replace(facts, small=s), H200) for s in (facts.small, ()))
    assert (some.extents, bool(some.results), some.order.grouped) == ((1, 32, 4, 32), True, 8)
    assert (none.extents, none.results, none.order.grouped) == ((2, 32, 2, 32), (), 1)
    for name in ("gelu_backward", "mx4_both"):
        heavy = recipe_facts(name)
        assert heavy.heavy and math.prod(tile.choose(heavy, H200).extents) == tile.ELEMENTS // 4


def test_in_place_nothing_is_staged_where_much_is_computed() -> None:
    facts = facts_of(lambda x: quantised.mx_in_place(torch.ops.aten.gelu(x)))
    assert facts.heavy and not facts.turned and not tile.choose(facts, H200).results


@pytest.mark.parametrize(
    ("changes", "registers"),
    [
        ({}, 72),  # much is computed
        ({"instructions": 57, "loads": 2}, 0),
        ({"instructions": 57}, 96),
        ({"instructions": 23}, 128),
        ({"instructions": 23, "turned": 1}, 96),
        ({"turned": 0}, 0),
    ],
)
def test_most_registers(changes: dict[str, Any], registers: int) -> None:
    facts = dataclasses.replace(recipe_facts("swiglu_backward"), **changes)
    assert most_registers(facts, 32) == registers
    assert most_registers(facts, 64) == (128 if facts.loads == 3 and facts.turned else 0)
    assert most_registers(facts, 128) == 168


@pytest.mark.parametrize("channels", [64, 128])
def test_norms_over_channels_have_small_tiles(channels: int) -> None:
    """H100, 64x128x3136: a thread with 64 elements 68 us, with 16 61."""

    def norm(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.permute(0, 2, 1) * w
        return y * channels - y.sum(2, keepdim=True), dy.permute(0, 2, 1).sum(2, keepdim=True)

    full = (64, channels, 3136), f32
    facts = tile.facts_of_tile(merged(within_tile(traced(norm, full, ((channels,), f32), full))))
    schedule = tile.choose(facts, H200)
    assert facts.of_norm and schedule.extents == (1, channels, 32)
    assert channels * 32 == 16 * 32 * schedule.launch.num_warps and schedule.layout.thread_rows == 0
    assert not facts_of(quantised.mx_in_place).of_norm
    assert not dataclasses.replace(facts, load_bytes=2).of_norm  # too few bytes on the way


def test_a_warp_has_all_rows_of_a_block_whatever_the_dtype() -> None:
    """A thread loads 16 bytes of a row: 4 columns of float32, and so 16 rows of them."""
    schedule = tile.choose(facts_of(quantised.mx_both, dtype=torch.float32), H200)
    assert (schedule.layout.thread_rows, schedule.layout.warp_cols) == (16, 64)


@pytest.mark.parametrize(
    ("rows", "extents", "warps", "columns"),
    [(131072, (256, 128), 8, 128), (25600, (256, 128), 8, 128), (25088, (128, 64), 2, 128)],
)
def test_a_tile_without_reductions_is_twice_as_long_in_bytes_of_the_result(
    rows: int, extents: tuple[int, int], warps: int, columns: int
) -> None:
    """It is smaller where there are fewer than 24 of these for each multiprocessor."""
    turned = traced(lambda x: x.to(quantised.F8).t().contiguous(), ((rows, 4096), bf16))
    schedule = tile.choose(tile.facts_of_tile(merged(within_tile(turned))), H200)
    assert (schedule.extents, schedule.launch.num_warps) == (extents, warps)
    assert dataclasses.astuple(schedule.layout)[:2] == (16, columns) and schedule.launch.max_registers == 0
    assert schedule.order.backwards


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


def test_partial_results_are_counted_as_reductions() -> None:
    """A thread then has no more elements than a kernel with reductions gives it."""
    with_maxima = facts_of(lambda x: (x.t().contiguous().to(quantised.F8), x.amax(0), x.to(quantised.F8)))
    assert (with_maxima.reductions, with_maxima.summed, with_maxima.turned) == (1, {0}, 1)
    schedule = tile.choose(with_maxima, H200)
    assert schedule.splits == with_maxima.sizes[0] // schedule.extents[0] > 1
    assert math.prod(schedule.extents) == tile.ELEMENTS // 2
    assert math.prod(schedule.extents) // (32 * schedule.launch.num_warps) == tile.PER_THREAD // 2


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
