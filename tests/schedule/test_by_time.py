"""The search for a faster schedule, with made-up times."""

from __future__ import annotations

import dataclasses

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

    return start, by_time.improved(space, facts, time)


def test_what_is_predicted_to_be_faster_is_taken() -> None:
    start, found = improved(NORM, {"warps": 1.3})
    assert found.launch.num_warps < start.launch.num_warps
    assert PersistentSpace(NORM, H200, start).legal(found)


def test_a_small_gain_changes_nothing() -> None:
    start, found = improved(NORM, {"warps": 1.01})
    assert found == start
    assert improved(NORM)[1] == start


def test_programs_of_which_the_prediction_knows_too_little() -> None:
    start, found = improved(dataclasses.replace(NORM, levels=0), {"warps": 1.3})
    assert found == start


def test_no_more_stages_than_the_rules_have() -> None:
    start = persistent.choose(NORM, H200)
    space = PersistentSpace(NORM, H200, start)
    tried: list[Plan] = []

    def us(schedule: Plan) -> float:
        tried.append(schedule)
        return 100.0 / schedule.tile_rows / schedule.launch.num_stages

    by_time.improved(space, NORM, us)
    assert len(tried) > 10
    for schedule in tried[1:]:
        assert schedule.launch.num_stages <= limits.MAX_STAGES


def test_chunks_have_few_rows() -> None:
    """H100, 3136x320 in chunks of 64: 16 rows by 16 warps 24.5 us, 4 by 2 warps 11.5, predicted 8.3."""
    facts = Facts(3136, 320, 4, 6, staged_bytes=4, instructions=8)
    space = PersistentSpace(facts, H200, persistent.choose(facts, H200))
    tried: list[Plan] = []

    def us(schedule: Plan) -> float:
        tried.append(schedule)
        return 100.0 / schedule.tile_rows / schedule.launch.num_warps

    by_time.improved(space, facts, us)
    assert all(s.tile_rows <= by_time.CHUNKED_ROWS for s in tried[1:] if s.chunks > 1)
    assert any(s.chunks > 1 for s in tried)
