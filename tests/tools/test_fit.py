"""The files of measured schedules, and the fit: on a made-up target, and that it gives what is committed."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import fit
import graphs
import pytest
import torch
from lab import schedules, sweep, targets
from lab.constants import BY_HAND
from lab.schedules import Data, Row, Target

from mixorder.schedule.constants import FILE, FITTED, Constants, read
from mixorder.schedule.device import H200
from mixorder.schedule.facts import Facts
from mixorder.schedule.persistent import choose

TOOLS = Path(__file__).resolve().parents[2] / "tools"

META = {
    "device": H200.name,
    "torch": "2.11.0",
    "triton": "3.6.0",
    "date": "2026-11-20",
    "source": "0",
    "device_info": dataclasses.asdict(H200),
}
WORK = Facts(rows=32768, cols=768, load_bytes=4, held_words=4, staged_bytes=4, instructions=8)


def constants(**changes: Any) -> Constants:
    return dataclasses.replace(BY_HAND, **changes)


def row(constants: Constants, us: float | None, work: Facts = WORK) -> Row:
    return Row("persistent", choose(work, H200, constants=constants), 168, 0, 24720, us)


def made_up(**better: int) -> Data:
    """A target of which two schedules were measured; the faster one is chosen with other constants."""
    rows = row(BY_HAND, 50.0), row(constants(**better), 40.0), row(constants(stages=4), None)
    return Data(META, (Target("made up", "torch.bfloat16", 38.0, {"persistent": WORK}, rows),))


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    program = graphs.merged(graphs.only(graphs.rms_norm_backward(4096, 16384)))
    target = targets.Target("rms 4096x16384", program, 4096 * 16384, torch.bfloat16)
    shared = sweep.measured(target, 97.4, [row(BY_HAND, 50.0)])
    assert [f.cols for f in shared.facts.values()] == 2 * [16384]
    assert shared.facts["cooperative"].exchanges == 1
    data = Data(META, (*made_up(final_per_thread=32).targets, shared))
    schedules.write(tmp_path / "data.json", data)
    assert schedules.read(tmp_path / "data.json") == data


def test_a_sweep_has_rows_in_one_tile_and_in_chunks() -> None:
    program = graphs.merged(graphs.only(graphs.rms_norm_backward(8192, 5120)))
    found = {
        (c.schedule.lanes, c.schedule.chunks)
        for c, way in sweep.candidates(program, H200, 150).items()
        if way.strategy.name == "persistent"
    }
    assert found == {(8192, 1), (6144, 3), (5120, 5)}
    wide = graphs.merged(graphs.only(graphs.layer_norm_backward(8192, 12288)))
    ways = sweep.candidates(wide, H200, 150)
    assert {way.strategy.name for way in ways.values()} == {"cooperative", "persistent"}
    assert next(iter(ways.values())).strategy.name == "cooperative"  # what the rules choose
    # A mailbox has the size that a schedule asks for, and what one variant runs is the same.
    for one, way in ways.items():
        same = [other for c, other in ways.items() if c.variant == one.variant]
        assert all(other == way for other in same)


def test_what_is_measured_again_replaces_what_was(tmp_path: Path) -> None:
    old = made_up(final_per_thread=32)
    again = Data({**META, "date": "2027-01-01"}, (dataclasses.replace(old.targets[0], limit_us=37.0),))
    more = Data(META, (dataclasses.replace(old.targets[0], name="another"),))
    merged = old.merged(more).merged(again)
    assert [(t.name, t.limit_us) for t in merged.targets] == [("made up", 37.0), ("another", 38.0)]
    assert merged.meta["date"] == "2027-01-01"
    with pytest.raises(ValueError, match="other triton"):
        old.merged(Data({**META, "triton": "9"}, ()))


def test_the_committed_data_is_as_the_tool_writes_it(tmp_path: Path) -> None:
    file = TOOLS / "data" / "h200.json"
    schedules.write(tmp_path / file.name, schedules.read(file))
    assert (tmp_path / file.name).read_text() == file.read_text()


def test_a_constant_is_changed_where_that_pays() -> None:
    regrets = fit.Regrets(fit.cases([made_up(final_per_thread=32)]))
    assert regrets.of(BY_HAND) == (math.log(50 / 40),)
    fitted = fit.fit(regrets, BY_HAND)
    assert regrets.of(fitted) == (0.0,)
    assert fitted == constants(final_per_thread=fitted.final_per_thread)


def test_two_constants_are_changed_where_only_both_pay() -> None:
    regrets = fit.Regrets(fit.cases([made_up(programs_per_sm=2, min_warps_per_sm=16)]))
    fitted = fit.fit(regrets, BY_HAND)
    changed = {k for k, v in vars(fitted).items() if v != getattr(BY_HAND, k)}
    assert regrets.of(fitted) == (0.0,) and len(changed) == 2


def test_what_was_not_measured_is_not_chosen_and_what_is_like_it_counts() -> None:
    (case,) = fit.cases([made_up(final_per_thread=32)])
    assert fit.chosen(case, constants(min_warps_per_sm=16)).us == math.inf
    found = fit.chosen(case, constants(final_per_thread=16))
    assert found.us in (50.0, 40.0) and not found.exact


def test_the_committed_constants_are_the_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit.main([str(TOOLS / "data" / "h200.json"), "--write", "--out", str(tmp_path / "fitted.json")])
    assert (tmp_path / "fitted.json").read_text() == FILE.read_text()
    assert read() == FITTED != BY_HAND
    _, mean, summary = capsys.readouterr().out.strip().partition("before: mean")
    assert mean + summary in (TOOLS.parent / "docs" / "lab" / "tuning.md").read_text()
    regret = json.loads(FILE.read_text())["regret_percent"]
    assert regret["fitted"]["mean"] < regret["left_out"]["mean"] < regret["before"]["mean"]
