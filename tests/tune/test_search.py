"""The search with invented times: where it goes, when it stops, and when the heuristic stays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import pytest
from row_facts import row_facts, with_numbers

from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.persistent import choose
from mixorder.schedule.persistent_search_space import PersistentSearchSpace
from mixorder.tune.search import (
    DUELS,
    FINAL_REPS,
    MARGIN,
    SHORT_US,
    Candidate,
    Tuning,
    VersusInductor,
    search,
    versus_inductor,
)

WORK = row_facts(32768, 768, load_bytes=4, words=4, staged_bytes=4)
SPACE = PersistentSearchSpace(WORK, H200, choose(WORK, H200))
FIRST = Candidate("held", SPACE.start)


class Clock:
    """Gives out times, and notes what it was asked for."""

    def __init__(self, us: Callable[[Candidate], float | None]) -> None:
        self.us, self.calls = us, list[tuple[tuple[Candidate, ...], int]]()

    def __call__(self, candidates: Sequence[Candidate], reps: int) -> Mapping[Candidate, float]:
        self.calls.append((tuple(candidates), reps))
        return {c: us for c in candidates if (us := self.us(c)) is not None}


def test_the_heuristics_schedule_comes_first_and_stays_if_nothing_is_faster() -> None:
    clock = Clock(lambda c: 30.0 if c == FIRST else 31.0)
    found = search({"held": SPACE}, clock)
    assert (found.best, found.heuristic_us, found.best_us) == (FIRST, 30.0, 30.0)
    ((batch, _),) = clock.calls
    assert batch[0] == FIRST and found.candidates == len(batch) == len(set(batch)) > 5


def test_it_goes_downhill_from_round_to_round_and_ends_in_a_duel() -> None:
    def us(c: Candidate) -> float:
        schedule = c.schedule
        return 30.0 + schedule.splits / 100 + schedule.second.block / 4 + 2 * schedule.launch.num_stages

    clock = Clock(us)
    found = search({"held": SPACE}, clock, most=80)
    best = found.best.schedule
    assert best.splits == 132 and best.second.block < 8 and best.launch.num_stages <= 2
    assert len(clock.calls) > 2
    assert clock.calls[-DUELS:] == DUELS * [((FIRST, found.best), FINAL_REPS)]
    assert found.heuristic_us == us(FIRST) and found.best_us == us(found.best)
    batches = [batch for batch, _ in clock.calls[:-DUELS]]
    new = [c for i, batch in enumerate(batches) for c in batch[1 if i else 0 :]]
    assert len(new) == len(set(new)) == found.candidates <= 80


@pytest.mark.parametrize("gain", [1.001, MARGIN - 0.001])
def test_a_gain_within_the_noise_is_none(gain: float) -> None:
    found = search({"held": SPACE}, Clock(lambda c: 30.0 * gain if c == FIRST else 30.0))
    assert found.best == FIRST and found.heuristic_us == found.best_us == 30.0 * gain


@pytest.mark.parametrize(("us", "left"), [(SHORT_US - 0.1, True), (SHORT_US, False)])
def test_what_is_short_is_left_alone(us: float, left: bool) -> None:
    clock = Clock(lambda c: us if c == FIRST else us / 2)
    found = search({"held": SPACE}, clock)
    assert (found.best == FIRST) == left and found.heuristic_us == us
    assert (len(clock.calls) == 1) == left


def test_a_gain_in_one_duel_of_two_is_none() -> None:
    def us(c: Candidate) -> float:
        duels = sum(reps == FINAL_REPS for _, reps in clock.calls)
        return 30.0 if c != FIRST or duels == DUELS else 33.0

    clock = Clock(us)
    found = search({"held": SPACE}, clock)
    assert found.best == FIRST and found.heuristic_us == found.best_us == 30.0


def test_what_cannot_run_is_passed_over() -> None:
    wanted = SPACE.near(SPACE.start)[0]
    found = search(
        {"held": SPACE},
        Clock(lambda c: 30.0 if c == FIRST else 20.0 if c.schedule == wanted else None),
    )
    assert found.best == Candidate("held", wanted)


def test_a_heuristic_that_cannot_run_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="cannot be timed"):
        search({"held": SPACE}, Clock(lambda c: None if c == FIRST else 1.0))


def test_another_variant_is_entered_if_its_start_is_faster() -> None:
    other = dataclasses.replace(SPACE, facts=with_numbers(WORK, words=2))
    clock = Clock(lambda c: 20.0 if c.variant == "other" else 30.0)
    found = search({"held": SPACE, "other": other}, clock)
    assert found.best == Candidate("other", other.start)
    assert [c for c in clock.calls[0][0] if c.variant == "other"] == [found.best]
    assert {c.variant for c in clock.calls[1][0]} == {"other"}


@pytest.mark.parametrize(
    ("inductor", "taken", "fused"),
    [
        ([31.0], 31.0, True),
        ([30.0], 30.0, True),
        ([29.0, 28.0], 29.0, False),
        ([28.0, 29.0], 29.0, False),
        ([29.0, 31.0], 31.0, True),
    ],
)
def test_inductors_kernels_have_to_be_faster_twice(inductor: list[float], taken: float, fused: bool) -> None:
    times = iter(inductor)
    found = versus_inductor(lambda candidate, reps: VersusInductor(30.0, next(times)), FIRST)
    assert found == VersusInductor(30.0, taken) and list(times) == []
    assert Tuning(30.0, 30.0, 1, 1.0, found).not_fused != fused


def test_the_line_that_says_what_was_gained() -> None:
    tuning = Tuning(31.22, 29.81, 17, 3.12)
    assert str(tuning) == "tuned: 31.2 -> 29.8 us, 17 candidates in 3.1 s"
    fused = dataclasses.replace(tuning, beside=VersusInductor(29.9, 31.04))
    assert str(fused) == "tuned: 31.2 -> 29.8 us, Inductor 31.0 us, 17 candidates in 3.1 s"
    not_fused = dataclasses.replace(tuning, beside=VersusInductor(29.9, 21.5))
    assert str(not_fused) == "not fused: 29.9 us, Inductor 21.5 us, 17 candidates in 3.1 s"
    again = dataclasses.replace(tuning, from_cache=True)
    assert str(again).endswith("in 3.1 s, taken from the cache")
