"""What tools/tune.py sweeps: its targets and the schedules that it tries. Timing needs a GPU."""

from __future__ import annotations

import dataclasses

import pytest
import tune
from graphs import bf16
from lab import sweep, targets
from lab.schedules import Row
from lab.sweep import measured

from mixorder.schedule.constants import FITTED
from mixorder.schedule.device import H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.persistent import choose
from mixorder.schedule.persistent_space import PersistentSpace


@pytest.mark.parametrize("kind", targets.KINDS)
def test_the_grid_around_what_the_rule_chooses(kind: str) -> None:
    target = targets.norm_target(kind, 32768, 1024, bf16)
    work = facts_of(target.program)
    assert (work.rows * work.batch * work.cols, target.limit_numel) == (2**25, 2**25)
    assert work.divergent == (kind == "gelu-tanh") and work.levels == (kind in ("rms", "layer"))
    first, *others = (c.schedule for c in sweep.candidates(target.program, H200, 60))
    assert first == choose(work, H200)
    assert len({first, *others}) == 1 + len(others) >= 50
    # What the fit looks up where one constant is another one, and what tuning has near the choice.
    assert choose(work, H200, constants=dataclasses.replace(FITTED, stages=2)) in (first, *others)
    assert {*PersistentSpace(work, H200, first).near(first)} & {*others}


def test_a_residual_is_one_more_tensor() -> None:
    plain, residual = (targets.norm_target(kind, 4096, 768, bf16) for kind in ("rms", "rms+residual"))
    assert 3 * residual.limit_numel == 4 * plain.limit_numel
    assert facts_of(residual.program).load_bytes == facts_of(plain.program).load_bytes + 2


def test_regions_of_a_case() -> None:
    found = targets.case_targets("Linear, GELU, Linear", bf16)
    assert [facts_of(t.program).levels for t in found] == [0]
    # One of its regions is declined.
    assert targets.case_targets("post-norm residual", bf16)


def test_the_best_schedules_and_the_rule_s_are_printed() -> None:
    target = targets.norm_target("rms", 4096, 4096, bf16)
    schedules = [c.schedule for c in sweep.candidates(target.program, H200, 4)]
    times = (30.0, 25.0, None, 20.0)
    rows = [Row("persistent", s, 168, 0, 24720, us) for s, us in zip(schedules, times, strict=True)]
    text = tune.report(measured(target, 18.0, rows), best=1)
    assert "limit 18.0 us, 3/4 candidates ran" in text
    best, rule = (line.split("|")[1:-1] for line in text.splitlines()[-2:])
    assert [cell.strip() for cell in best[:3]] == ["90.0%", "20.0", "persistent"] and not best[-1].strip()
    assert rule[0].strip() == "60.0%" and rule[-1].strip() == "heuristic"
