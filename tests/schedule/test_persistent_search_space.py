"""The neighbourhood of a schedule: what may be timed, and what is left out before it is compiled."""

from __future__ import annotations

from typing import Any

from devices import AMD, DEVICES, H200, SMALL, DeviceInfo
from hypothesis import example, given, settings
from hypothesis import strategies as st
from row_facts import row_facts

from mixorder.schedule.persistent import choose, layouts
from mixorder.schedule.persistent_search_space import PersistentSearchSpace


def space(
    rows: int = 32768, cols: int = 768, device: DeviceInfo = H200, **changes: Any
) -> PersistentSearchSpace:
    pinned = changes.pop("pinned", False)
    numbers = {"load_bytes": 4, "words": 4, "staged_bytes": 4, **changes}
    work = row_facts(rows, cols, **numbers)
    return PersistentSearchSpace(work, device, choose(work, device, split_size=7 if pinned else 0), pinned)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 2**20), st.integers(1, 8192), st.sampled_from(DEVICES))
@example(1, 1, H200)
@example(1_000_000, 8192, SMALL)
@example(4096, 768, AMD)
def test_every_neighbour_is_legal_and_new(rows: int, cols: int, device: DeviceInfo) -> None:
    here = space(rows, cols, device)
    near = here.near(here.start)
    assert near == here.near(here.start)
    assert here.legal(here.start) and here.start not in near and len(set(near)) == len(near)
    for schedule in here.divided(here.start):
        assert here.legal(schedule) and here.start.splits < schedule.splits <= 2 * here.start.splits
    for schedule in near:
        assert here.legal(schedule)
        assert (schedule.lanes, schedule.chunks) in layouts(here.facts)
        assert schedule.launch.num_warps * device.warp_size <= 1024
        assert 1 <= schedule.splits <= max(-(-rows // schedule.tile_rows), here.start.splits)


def test_each_part_of_a_schedule_is_varied() -> None:
    start, near = space().start, space().near(space().start)
    for fields in PersistentSearchSpace.field_groups:
        assert any(start.changed(**{name: s.number(name) for name in fields}) == s for s in near), fields
    assert {s.launch.num_stages - start.launch.num_stages for s in near} == {-1, 0, 1}
    assert {2 * s.launch.num_warps // start.launch.num_warps for s in near} >= {1, 2, 4}
    assert {-(-s.splits // H200.num_sm) for s in near} == {1, 2, 4}


def test_programs_are_divided_into_halves_or_doubled() -> None:
    here = space(cols=2048)
    start = here.start.changed(tile_rows=2, num_warps=8, splits=132)
    of = {(s.tile_rows, s.launch.num_warps, s.splits) for s in here.divided(start)}
    assert of == {(1, 4, 264), (2, 8, 264), (2, 4, 264)}
    assert not here.divided(here.start.changed(tile_rows=1, num_warps=1, splits=here.facts.rows))
    assert not space(pinned=True).divided(space(pinned=True).start)


def test_the_users_split_is_kept() -> None:
    here = space(pinned=True)
    assert {s.splits for s in here.near(here.start)} == {here.start.splits} == {-(-32768 // 7)}
    assert not here.legal(here.start.changed(splits=132))


START = space().start


ILLEGAL = [
    START.changed(chunk=2048),
    START.changed(chunk=768),
    START.changed(chunks=2),
    START.changed(splits=0),
    START.changed(splits=1_000_000),
    START.changed(block=3),
    START.changed(block=1 << 20),
    START.changed(warps=0),
    START.changed(warps=64),
    START.changed(tile_rows=0),
    START.changed(tile_rows=3),
    START.changed(tile_rows=-2),
    START.changed(num_stages=0),
    START.changed(num_stages=9),
    START.changed(tile_rows=1 << 20, num_warps=32, num_stages=1),
    START.changed(max_registers=64),
]


def test_what_is_not_legal() -> None:
    assert not [other for other in ILLEGAL if space().legal(other)]


def test_gains_in_several_parts_are_combined() -> None:
    here = space()
    start = here.start
    stages = start.changed(num_stages=start.launch.num_stages - 1)
    splits = start.changed(splits=264)
    final = start.changed(block=8)
    slow = start.changed(num_warps=4)
    times = {start: 30.0, stages: 29.0, splits: 28.0, final: 29.5, slow: 40.0}
    best = here.combined(times, start)
    assert best == stages.changed(splits=264, block=8)
