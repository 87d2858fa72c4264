"""What tools/tune.py sweeps: its targets and the schedules that it tries. Timing needs a GPU."""

from __future__ import annotations

import pytest
import tune
from graphs import bf16
from lab import targets

from mixorder.schedule.device import H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.persistent import choose


@pytest.mark.parametrize("kind", targets.KINDS)
def test_the_grid_around_what_the_rule_chooses(kind: str) -> None:
    target = targets.norm_target(kind, 32768, 1024, bf16)
    work = facts_of(target.program)
    assert (work.rows * work.batch * work.cols, target.limit_numel) == (2**25, 2**25)
    assert work.divergent == (kind == "gelu-tanh") and work.levels == (0 if "gelu" in kind else 1)
    first, *others = tune.candidates(target.program, H200)
    assert first.schedule == choose(work, H200)
    schedules = [first.schedule, *(c.schedule for c in others)]
    assert len(set(schedules)) == len(schedules) > 20
    # A load's latency is left to the warps only where there are many of them, since there is much to compute.
    heavy = work.instructions >= tune.HEAVY
    assert any(s.tile.num_stages == 1 for s in schedules) == heavy == ("gelu" in kind)
    most = max(s.tile.num_warps * s.num_splits * work.batch / H200.num_sm for s in schedules)
    assert (most > 16) == heavy


def test_a_residual_is_one_more_tensor() -> None:
    plain, residual = (targets.norm_target(kind, 4096, 768, bf16) for kind in ("rms", "rms+residual"))
    assert 3 * residual.limit_numel == 4 * plain.limit_numel
    assert facts_of(residual.program).load_bytes == facts_of(plain.program).load_bytes + 2


def test_regions_of_a_case() -> None:
    found = targets.case_targets("Linear, GELU, Linear", bf16)
    assert [facts_of(t.program).levels for t in found] == [0]
    # One of its regions is declined.
    assert targets.case_targets("post-norm residual", bf16)
