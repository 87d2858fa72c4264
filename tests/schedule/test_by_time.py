"""The search for a faster schedule, with made-up times."""

from __future__ import annotations

import dataclasses

import pytest

from mixorder.schedule import by_time, limits, persistent
from mixorder.schedule.device import H200
from mixorder.schedule.facts import Facts
from mixorder.schedule.persistent_space import PersistentSpace
from mixorder.schedule.plan import Plan

NORM = Facts(rows=12544, cols=384, load_bytes=6, held_words=10, staged_bytes=6, instructions=11)


def improved(facts: Facts, us: dict[str, float] | None = None) -> tuple[Plan, Plan]:
    """The rules' choice, and the search's, if fewer warps are faster by a factor for each halving."""
    start = persistent.choose(facts, H200)
    factor = (us or {}).get("warps", 1.0)
    space = PersistentSpace(facts, H200, start)

    def time(schedule: Plan) -> float:
        return 100.0 * factor ** schedule.launch.num_warps.bit_length()

    return start, by_time.improved(space, facts, time, H200)


def test_what_is_predicted_to_be_faster_is_taken() -> None:
    start, found = improved(NORM, {"warps": 1.3})
    assert found.launch.num_warps < start.launch.num_warps
    assert PersistentSpace(NORM, H200, start).legal(found)


def test_a_small_gain_changes_nothing() -> None:
    start, found = improved(NORM, {"warps": 1.01})
    assert found == start
    assert improved(NORM)[1] == start


@pytest.mark.parametrize("change", [{"levels": 0}, {"divergent": True}])
def test_programs_of_which_the_prediction_knows_too_little(change: dict[str, int]) -> None:
    start, found = improved(dataclasses.replace(NORM, **change), {"warps": 1.3})
    assert found == start


def test_nothing_that_spills_and_no_more_stages_than_the_rules_have() -> None:
    start = persistent.choose(NORM, H200)
    space = PersistentSpace(NORM, H200, start)
    tried: list[Plan] = []

    def us(schedule: Plan) -> float:
        tried.append(schedule)
        return 100.0 / schedule.tile_rows / schedule.launch.num_stages

    by_time.improved(space, NORM, us, H200)
    assert len(tried) > 10
    for schedule in tried[1:]:
        elements = max(1, schedule.tile_rows * schedule.lanes // (32 * schedule.launch.num_warps))
        assert not limits.spilled(NORM, elements, schedule.chunks)
        assert schedule.launch.num_stages <= limits.MAX_STAGES


@pytest.mark.parametrize("both_ways", [False, True])
def test_tiles_of_tensors_that_lie_both_ways_have_few_rows(both_ways: bool) -> None:
    facts = Facts(50176, 192, 4, 2, staged_bytes=4, instructions=8, both_ways=both_ways)
    facts = dataclasses.replace(facts, sector_rows=16 if both_ways else 1)
    space = PersistentSpace(facts, H200, persistent.choose(facts, H200))
    tried: list[Plan] = []

    def us(schedule: Plan) -> float:
        tried.append(schedule)
        return 100.0 / schedule.tile_rows

    by_time.improved(space, facts, us, H200)
    assert (max(s.tile_rows for s in tried[1:]) > by_time.CHUNKED_ROWS) != both_ways


def test_chunks_have_few_rows_and_accesses_that_are_loaded_ahead() -> None:
    """H100, 3136x320 in chunks of 64: 16 rows by 16 warps 24.5 us, 4 by 2 warps 11.5, predicted 8.3."""
    facts = Facts(3136, 320, 4, 6, staged_bytes=4, instructions=8)
    space = PersistentSpace(facts, H200, persistent.choose(facts, H200))
    tried: list[Plan] = []

    def us(schedule: Plan) -> float:
        tried.append(schedule)
        return 100.0 / schedule.tile_rows / schedule.launch.num_warps

    by_time.improved(space, facts, us, H200)
    for schedule in (s for s in tried[1:] if s.chunks > 1 and s.launch.num_stages > 1):
        own = max(1, schedule.tile_rows * schedule.chunk // (32 * schedule.launch.num_warps))
        assert schedule.tile_rows <= by_time.CHUNKED_ROWS and 2 * own >= by_time.CHUNK_ACCESS
    assert any(s.chunks > 1 for s in tried)


@pytest.mark.parametrize(("indices", "common"), [(32, True), (32, False), (640, True)])
def test_few_programs_of_one_warp_have_larger_tiles(indices: int, common: bool) -> None:
    """H200, 64 rows of 784 at 32 indices, reduced to one number each: 1x1w5s 20.1 us, 2x2w4s 14.4."""
    facts = Facts(64, 784, 10, 4, instructions=7, batch=indices, common=common, widest_bytes=4)
    space = PersistentSpace(facts, H200, persistent.choose(facts, H200))

    def us(schedule: Plan) -> float:
        return 100.0 * schedule.tile_rows * schedule.launch.num_warps / schedule.chunks

    plan = by_time.improved(space, facts, us, H200)
    few = common and indices == 32
    assert (plan.tile_rows, plan.launch.num_warps) == ((2, 2) if few else (1, 1))
