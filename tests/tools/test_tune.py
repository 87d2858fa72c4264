"""What tools/tune.py sweeps. Timing needs a GPU."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

import pytest
import torch
from graphs import bf16
from lab import stopwatch, sweep, targets

from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.persistent import choose
from mixorder.schedule.persistent_search_space import PersistentSearchSpace


@pytest.mark.parametrize("kind", targets.KINDS)
def test_the_grid_around_what_the_rule_chooses(kind: str) -> None:
    target = targets.norm_target(kind, 32768, 1024, bf16)
    work = facts_of(target.program)
    assert (work.rows * work.batch * work.cols, target.limit_numel) == (2**25, 2**25)
    assert work.levels == (kind in ("rms", "layer"))
    first, *others = (c.schedule for c in sweep.candidates(target.program, H200, 60))
    assert first == choose(work, H200)
    assert len({first, *others}) == 1 + len(others) >= 50
    assert {*PersistentSearchSpace(work, H200, first).near(first)} & {*others}


def test_the_choice_and_the_best_of_a_sweep_are_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three does not compile; the third is the fastest."""

    class Bench:
        main: ClassVar[dict[str, object]] = {}

        def __init__(self, *_: object) -> None: ...

        def __call__(self, candidates: list[Any], reps: int) -> dict[Any, float]:
            us = [21.0, None, 20.0] if len(candidates) == 3 else [22.0, 19.0]
            return {c: t for c, t in zip(candidates, us, strict=True) if t}

    monkeypatch.setattr(sweep, "Noting", Bench)
    monkeypatch.setattr(sweep, "device_info", lambda device: H200)
    monkeypatch.setattr(sweep, "stopwatch", lambda device: stopwatch.Host())
    monkeypatch.setattr(stopwatch.Host, "limit", lambda self, num_bytes: lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    found, both = sweep.tune(targets.norm_target("rms", 8192, 1024, bf16), 3, 5)
    assert [row.us for row in found.rows] == [21.0, None, 20.0] and both == (22.0, 19.0)
    rows = json.loads(json.dumps(dataclasses.asdict(found)))["rows"]
    assert [row["us"] for row in rows] == [21.0, None, 20.0] and rows[0]["schedule"]["launch"]
