"""What tools/tune.py sweeps: its targets and the schedules that it tries. Timing needs a GPU."""

from __future__ import annotations

import pytest
import tune
from graphs import bf16
from lab import candidates, targets
from lab.schedules import Row
from lab.sweep import measured

from mixorder.schedule.device import H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.persistent import choose


@pytest.mark.parametrize("kind", targets.KINDS)
def test_the_grid_around_what_the_rule_chooses(kind: str) -> None:
    target = targets.norm_target(kind, 32768, 1024, bf16)
    work = facts_of(target.program)
    assert (work.rows * work.batch * work.cols, target.limit_numel) == (2**25, 2**25)
    assert work.divergent == (kind == "gelu-tanh") and work.levels == (kind in ("rms", "layer"))
    first, *others = candidates.candidates(target.program, H200)
    assert first.schedule == choose(work, H200)
    schedules = [first.schedule, *(c.schedule for c in others)]
    assert len(set(schedules)) == len(schedules) > 20
    # A load's latency is left to the warps only where there are many of them, since there is much to compute.
    heavy = work.instructions >= candidates.HEAVY
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


def test_the_best_schedules_and_the_rule_s_are_printed() -> None:
    target = targets.norm_target("rms", 4096, 4096, bf16)
    schedules = [c.schedule for c in candidates.candidates(target.program, H200)[:4]]
    times = (30.0, 25.0, None, 20.0)
    rows = [Row("persistent", s, 168, 0, 24720, us) for s, us in zip(schedules, times, strict=True)]
    text = tune.report(measured(target, 18.0, rows), best=1)
    assert "limit 18.0 us, 3/4 candidates ran" in text
    best, rule = (line.split("|")[1:-1] for line in text.splitlines()[-2:])
    assert [cell.strip() for cell in best[:3]] == ["90.0%", "20.0", "persistent"] and not best[-1].strip()
    assert rule[0].strip() == "60.0%" and rule[-1].strip() == "heuristic"


@pytest.mark.parametrize(("cols", "width"), [(384, 128), (608, 32), (1024, 1024), (3072, 1024)])
def test_schedules_that_fill_a_multiprocessor_with_more_or_fewer_warps(cols: int, width: int) -> None:
    """The rules' choice, then others: of blocks as wide, of blocks of other widths, and of whole rows."""
    target = targets.norm_target("gelu", 12544, cols, bf16)
    first, *others = candidates.filling(target.program, H200)
    assert first.schedule.r0_block == width
    assert len(set(others)) == len(others) >= 20
    most = {
        c.schedule.tile.num_warps * c.schedule.num_splits * facts_of(c.loops).batch / H200.num_sm
        for c in others
        if c.schedule.r0_block == width
    }
    assert min(most) <= 8 and max(most) > 30
    for c in others:
        assert facts_of(c.loops).cols * facts_of(c.loops).batch == cols
