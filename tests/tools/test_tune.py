"""What tools/tune.py sweeps: its targets and the schedules that it tries. Timing needs a GPU."""

from __future__ import annotations

import dataclasses

import pytest
from graphs import bf16
from lab import sweep, targets

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
    assert work.levels == (kind in ("rms", "layer"))
    first, *others = (c.schedule for c in sweep.candidates(target.program, H200, 60))
    assert first == choose(work, H200)
    assert len({first, *others}) == 1 + len(others) >= 50
    # What the fit looks up where one constant is another one, and what tuning has near the choice.
    assert choose(work, H200, constants=dataclasses.replace(FITTED, stages=2)) in (first, *others)
    assert {*PersistentSpace(work, H200, first).near(first)} & {*others}
