"""The schedule from plain numbers: what must hold for any shape, and each refusal."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from contextlib import nullcontext
from typing import Any
from unittest import mock

import graphs
import pytest
from devices import AMD, DEVICES, H200, MI300, SMALL, DeviceInfo
from hypothesis import example, given, settings
from hypothesis import strategies as st
from row_facts import row_facts, with_numbers

from mixorder.errors import Decline, DeclineReason
from mixorder.schedule import persistent
from mixorder.schedule.facts import RowFacts
from mixorder.schedule.persistent import MAX_COLS, choose, layouts
from mixorder.schedule.persistent_search_space import PersistentSearchSpace
from mixorder.schedule.plan import next_power_of_2

RMS = row_facts(32768, 768, load_bytes=4, words=4)
WORKS = [
    *(row_facts(0, 0, load_bytes=load, words=words) for load, words in ((2, 3), (4, 4), (8, 5))),
    row_facts(0, 0, load_bytes=4, words=4, staged_bytes=4, instructions=8),
    row_facts(0, 0, load_bytes=8, words=5, staged_bytes=8, instructions=30),
    row_facts(0, 0, load_bytes=4, words=6, staged_bytes=4, instructions=10),  # LayerNorm
    row_facts(0, 0, load_bytes=8, words=5, staged_bytes=8, instructions=8),  # in fp32
    row_facts(0, 0, load_bytes=8, words=6, staged_bytes=12, instructions=10),  # with a residual
]


# What rules ask for, beside these numbers.
ASKED: list[dict[str, Any]] = [
    {},
    {"instructions": 44, "levels": 0},
    {"levels": 0},
    {"levels": 2},
    {"narrow": True},
    {"minority_along_rows": True},
    {"along_rows": True, "sector_rows": 16},
    {"mixed_layouts": True, "sector_rows": 8},
    {"cached_table": True},
    {"repeated_bytes": 40},
    {"item_bytes": 1, "widest_bytes": 4},
]


@settings(max_examples=500, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 2**20),
    cols=st.integers(1, 8192),
    work=st.sampled_from(WORKS),
    asked=st.sampled_from(ASKED),
    batch=st.sampled_from([1, 1, 3, 400, 131072]),
    device=st.sampled_from(DEVICES),
    in_chunks=st.booleans(),
)
@example(1_000_000, 1, WORKS[0], {}, 1, H200, False)
@example(1, 8192, WORKS[2], {}, 1, AMD, False)
@example(1_000_000, 8192, WORKS[-1], {}, 1, MI300, False)
@example(3, 4097, WORKS[1], {}, 1, SMALL, False)
@example(32768, 5120, WORKS[4], {}, 1, SMALL, True)
def test_any_schedule_is_launchable(
    rows: int,
    cols: int,
    work: RowFacts,
    asked: dict[str, Any],
    batch: int,
    device: DeviceInfo,
    in_chunks: bool,
) -> None:
    """Also with chunks wherever they save a tenth of the lanes, and with what some rule asks for."""
    work = with_numbers(work, rows=rows, cols=cols, batch=batch, **{"widest_bytes": 2, **asked})
    fewer_lanes = mock.patch.multiple(persistent, LEAST_CHUNK=32)
    with fewer_lanes if in_chunks else nullcontext():
        schedule = choose(work, device)
        assert choose(work, device) == schedule
    assert cols <= schedule.lanes < 2 * cols or cols == schedule.lanes
    xblock, warps, stages = graphs.tile_of(schedule)
    for power in (schedule.chunk, xblock, warps, schedule.second.block):
        assert power >= 1 and power & (power - 1) == 0
    assert 1 <= schedule.splits <= -(-rows // xblock) and warps * device.warp_size <= 1024
    staged = xblock * schedule.lanes * max(work.load_bytes, work.loads.staged_bytes)
    assert stages >= 1 and staged * (stages - 1) <= device.shared_memory
    assert 1 <= schedule.second.block <= next_power_of_2(cols)
    if not asked and batch == 1:
        # All programs are resident: the accumulators of waiting ones would only cost partials.
        per_sm = -(-schedule.splits // device.num_sm)
        assert per_sm <= 4 and per_sm * warps * device.warp_size <= device.max_threads
        assert per_sm * staged * (stages - 1) <= device.shared_memory
        assert in_chunks or PersistentSearchSpace(work, device, schedule).legal(schedule)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 1000), st.integers(1, 5000))
def test_split_size_is_what_the_user_says(rows: int, split_size: int) -> None:
    schedule = choose(dataclasses.replace(RMS, rows=rows), H200, split_size=split_size)
    assert schedule.splits == -(-rows // split_size)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(1, 16384))
@example(5120)
def test_chunks_are_of_a_power_of_two_and_save_lanes(cols: int) -> None:
    found = layouts(dataclasses.replace(RMS, cols=cols))
    assert found[0] == (next_power_of_2(cols), 1) and len(found) <= 4
    assert all(a[0] > b[0] and a[1] < b[1] for a, b in itertools.pairwise(found))
    for lanes, chunks in found:
        chunk = lanes // chunks
        assert lanes % chunks == 0 and chunk & (chunk - 1) == 0 and lanes - chunk < cols <= lanes


@pytest.mark.parametrize("cols", [MAX_COLS + 1, 65536])
def test_a_wide_row_is_declined(cols: int) -> None:
    with pytest.raises(Decline) as caught:
        choose(dataclasses.replace(RMS, cols=cols), H200)
    assert caught.value.reason is DeclineReason.ROW_TOO_WIDE
    assert str(cols) in caught.value.detail


def test_too_many_held_words_are_declined() -> None:
    with pytest.raises(Decline) as caught:
        choose(with_numbers(RMS, cols=8192, words=30), H200)
    assert caught.value.reason is DeclineReason.TOO_MANY_LIVE_TILES


def test_what_is_kept_for_all_rows_leaves_room_for_what_is_computed() -> None:
    """Words of a thread's columns: 224 of 255 registers are too many, with as many elements to compute."""
    of_columns = functools.partial(with_numbers, RMS, cols=14336, load_bytes=6)
    for fitting in (of_columns(words=2, of_columns=2, instructions=50), of_columns(words=4, of_columns=4)):
        assert choose(fitting, H200).chunks == 7
    with pytest.raises(Decline) as caught:
        choose(of_columns(words=4, of_columns=4, instructions=50), H200)
    assert caught.value.reason is DeclineReason.TOO_MANY_LIVE_TILES


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 1000), st.sampled_from(DEVICES))
@example(1, H200)
@example(2, AMD)
def test_a_finalisation_holds_the_partials_of_any_split_size(split_size: int, device: DeviceInfo) -> None:
    """262,144 programs would make a tile beyond Triton's 1,048,576 elements."""
    schedule = choose(dataclasses.replace(RMS, rows=262_144), device, split_size)
    held = (1 << (schedule.splits - 1).bit_length()) * schedule.second.block
    assert held <= device.registers
    assert schedule.splits == min(-(-262_144 // split_size), device.registers // 8)
