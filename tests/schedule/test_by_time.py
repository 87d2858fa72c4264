"""A plan that is predicted to be faster than the rules' choice, by times that are made up."""

from __future__ import annotations

import pytest
from devices import H200
from row_facts import row_facts

from mixorder.schedule.by_time import DIVIDED_GAIN, divided, improved
from mixorder.schedule.persistent import choose
from mixorder.schedule.persistent_search_space import PersistentSearchSpace
from mixorder.schedule.plan import Plan


def space(levels: int = 1) -> PersistentSearchSpace:
    facts = row_facts(16384, 2048, load_bytes=4, words=5, staged_bytes=4, levels=levels)
    return PersistentSearchSpace(facts, H200, choose(facts, H200))


@pytest.mark.parametrize(("factor", "programs"), [(0.9, 4), (DIVIDED_GAIN, 1)])
def test_programs_are_divided_as_long_as_that_gains(factor: float, programs: int) -> None:
    """By twice the programs, the time falls by a factor: until registers allow no more of them."""
    here = space()

    def us(plan: Plan) -> float:
        doubled, time = here.start.splits, 100.0
        while doubled < plan.splits:
            doubled, time = 2 * doubled, time * factor
        return time

    assert here.start.splits == H200.num_sm
    assert divided(here, here.start, us).splits == programs * here.start.splits


def test_what_is_not_searched_is_not_divided() -> None:
    def us(plan: Plan) -> float:
        return 1.0 / plan.splits

    without = space(levels=0)
    assert improved(without, without.facts, us, us) == without.start
    here = space()
    assert improved(here, here.facts, lambda plan: 1.0, us).splits > here.start.splits
    assert improved(here, here.facts, lambda plan: 1.0, lambda plan: 1.0) == here.start
