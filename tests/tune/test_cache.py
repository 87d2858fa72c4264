"""Winners on disk: what comes back, and every kind of file that must not."""

from __future__ import annotations

import dataclasses
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mixorder.schedule.plan import Exchanged, Launch, Plan, SecondStage, Walk
from mixorder.tune import cache
from mixorder.tune.search import Candidate, Tuning, VersusInductor

KEY = cache.key_of({"kernel": "text"})
SCHEDULE = Plan((Walk(split=264, tile=2), Walk(tile=1024)), Launch(4, 3), SecondStage(8, 4), Exchanged(2))
TEMPLATES = {"held": Plan((Walk(split=132), Walk(tile=1024)), Launch(1), SecondStage(16, 4), Exchanged(1))}
BEST, TUNING = Candidate("held", SCHEDULE), Tuning(31.2, 29.8, 17, 3.1)
STORED, PLAIN = vars(TUNING), dataclasses.asdict(SCHEDULE)


def saved(folder: Path) -> Path:
    cache.store(folder, KEY, BEST, TUNING)
    return folder / f"{KEY}.json"


def test_round_trip(tmp_path: Path) -> None:
    path = saved(tmp_path / "new" / "folder")
    found = cache.load(path.parent, KEY, TEMPLATES)
    assert found == (BEST, Tuning(31.2, 29.8, 17, 3.1, from_cache=True))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert json.loads(path.read_text())["schedule"]["second"] == {"block": 8, "warps": 4, "skippable": False}


def test_the_times_versus_inductors_kernels_come_back(tmp_path: Path) -> None:
    tuning = Tuning(31.2, 29.8, 17, 3.1, VersusInductor(29.9, 21.5))
    cache.store(tmp_path, KEY, BEST, tuning)
    found = cache.load(tmp_path, KEY, TEMPLATES)
    assert found == (BEST, dataclasses.replace(tuning, from_cache=True)) and found[1].not_fused


def test_nothing_is_there(tmp_path: Path) -> None:
    assert cache.load(tmp_path, KEY, TEMPLATES) is None
    assert cache.load(tmp_path / "none", KEY, TEMPLATES) is None


def test_keys_differ_with_every_part() -> None:
    keys = {cache.key_of({"a": 1, "b": 2}), cache.key_of({"b": 2, "a": 1}), cache.key_of({"a": 1, "b": 3})}
    assert len(keys) == 2


CHANGES: dict[str, Any] = {
    "format": {"format": cache.FORMAT - 1},
    "key": {"key": "0" * 64},
    "unknown_variant": {"variant": "other"},
    "variant_is_a_list": {"variant": ["held"]},
    "no_tuning": {"tuning": None},
    "text_for_time": {"tuning": {**STORED, "best_us": "29.8"}},
    "integer_for_time": {"tuning": {**STORED, "best_us": 29}},
    "nan": {"tuning": {**STORED, "heuristic_us": float("nan")}},
    "infinite": {"tuning": {**STORED, "seconds": float("inf")}},
    "one_time_beside": {"tuning": {**STORED, "beside": {"fused_us": 29.8}}},
    "times_beside_in_a_list": {"tuning": {**STORED, "beside": [29.8, 31.0]}},
    "bool_for_candidates": {"tuning": {**STORED, "candidates": True}},
    "no_schedule": {"schedule": None},
    "schedule_is_a_list": {"schedule": [1, 2]},
    "schedule_lacks_a_field": {"schedule": {"totals": {"lag": 2}}},
    "record_is_a_number": {"schedule": {**PLAIN, "totals": 2}},
    "float_in_schedule": {"schedule": {**PLAIN, "totals": {"lag": 2.0}}},
    "bool_in_schedule": {"schedule": {**PLAIN, "totals": {"lag": True}}},
    "another_record": {"schedule": {**PLAIN, "totals": {"lag": 2, "rows": 1}}},
    "too_few_walks": {"schedule": {**PLAIN, "walk": PLAIN["walk"][:1]}},
    "field_of_another_version": {"schedule": {**PLAIN, "slices": 2}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_foreign_file_is_ignored_and_rewritten(change: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **CHANGES[change]}))
    assert cache.load(tmp_path, KEY, TEMPLATES) is None
    saved(tmp_path)
    assert cache.load(tmp_path, KEY, TEMPLATES) is not None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"\xff\xfe\x00", b"\x80\x04\x95", b"[" * 100_000, b'{"format": 1}'],
    ids=["empty", "cut", "null", "list", "not_utf8", "pickle", "deep", "little"],
)
def test_a_corrupt_file_is_ignored_and_rewritten(content: bytes, tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_bytes(content)
    assert cache.load(tmp_path, KEY, TEMPLATES) is None
    saved(tmp_path)
    assert cache.load(tmp_path, KEY, TEMPLATES) is not None


def test_a_directory_that_takes_no_files(tmp_path: Path) -> None:
    """A file where the folder should be: also for root, who may write everywhere."""
    folder = tmp_path / "file" / "mixorder"
    folder.parent.write_text("")
    cache.store(folder, KEY, BEST, TUNING)
    assert cache.load(folder, KEY, TEMPLATES) is None


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    before = path.read_text()

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.store(tmp_path, KEY, BEST, Tuning(2.0, 1.0, 3, 4.0))
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


def _write(folder: Path, number: int) -> None:
    for i in range(40):
        cache.store(folder, KEY, BEST, Tuning(float(number), float(i), 1, 1.0))


def test_writers_at_the_same_time(tmp_path: Path) -> None:
    """Whoever reads meanwhile finds one writer's file, whole."""
    saved(tmp_path)
    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(_write, tmp_path, n) for n in range(1, 4)]
        while not all(writer.done() for writer in writers):
            found = cache.load(tmp_path, KEY, TEMPLATES)
            assert found is not None and found[0] == BEST
    assert [writer.exception() for writer in writers] == [None] * 3
    assert [p.name for p in tmp_path.iterdir()] == [f"{KEY}.json"]
