"""What tools/tune.py sweeps, and the file that it writes. Timing needs a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import graphs
import pytest
import torch
from graphs import bf16
from lab import schedules, stopwatch, sweep, targets
from lab.schedules import Data, Row, Target
from row_facts import row_facts

from mixorder.schedule.device import H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.persistent import choose
from mixorder.schedule.persistent_space import PersistentSpace

TOOLS = Path(__file__).resolve().parents[2] / "tools"

META = {
    "device": H200.name,
    "torch": "2.11.0",
    "triton": "3.6.0",
    "date": "2026-11-20",
    "source": "0",
    "device_info": dataclasses.asdict(H200),
}
WORK = row_facts(32768, 768, load_bytes=4, words=4, staged_bytes=4, instructions=8)


def row(stages: int, us: float | None) -> Row:
    return Row("persistent", choose(WORK, H200).changed(num_stages=stages), 168, 0, 24720, us)


def made_up() -> Data:
    """A target of which two schedules were measured."""
    rows = row(3, 50.0), row(4, None)
    return Data(META, (Target("made up", "torch.bfloat16", 38.0, {"persistent": WORK}, rows),))


@pytest.mark.parametrize("kind", targets.KINDS)
def test_the_grid_around_what_the_rule_chooses(kind: str) -> None:
    target = targets.norm_target(kind, 32768, 1024, bf16)
    work = facts_of(target.program)
    assert (work.rows * work.batch * work.cols, target.limit_numel) == (2**25, 2**25)
    assert work.levels == (kind in ("rms", "layer"))
    first, *others = (c.schedule for c in sweep.candidates(target.program, H200, 60))
    assert first == choose(work, H200)
    assert len({first, *others}) == 1 + len(others) >= 50
    assert {*PersistentSpace(work, H200, first).near(first)} & {*others}


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


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    program = graphs.merged(graphs.only(graphs.rms_norm_backward(4096, 16384)))
    target = targets.Target("rms 4096x16384", program, 4096 * 16384, torch.bfloat16)
    shared = sweep.measured(target, 97.4, [row(3, 50.0)])
    assert [f.cols for f in shared.facts.values()] == 2 * [16384]
    assert shared.facts["cooperative"].exchange.count == 1
    data = Data(META, (*made_up().targets, shared))
    schedules.write(tmp_path / "data.json", data)
    assert schedules.read(tmp_path / "data.json") == data


def test_the_committed_data_is_as_the_tool_writes_it(tmp_path: Path) -> None:
    file = TOOLS / "data" / "h200.json"
    schedules.write(tmp_path / file.name, schedules.read(file))
    assert (tmp_path / file.name).read_text() == file.read_text()
