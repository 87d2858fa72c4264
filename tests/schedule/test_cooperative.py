"""The schedule of shared rows from plain numbers: what must hold for any shape, and each refusal."""

from __future__ import annotations

import dataclasses
import math

import pytest
from devices import A100, B200, H200, RTX, TINY, DeviceInfo
from graphs import tile_of
from hypothesis import given, settings
from hypothesis import strategies as st
from row_facts import row_facts, with_numbers

from mixorder.errors import Decline, DeclineReason
from mixorder.schedule.cooperative import MAX_DEPTH, MAX_PARTS, WARPS_PER_SM
from mixorder.schedule.cooperative import choose as choose_shared
from mixorder.schedule.facts import ALIGNMENT, RowFacts
from mixorder.schedule.plan import Plan

EXCHANGING = (H200, A100, RTX, B200, TINY)

RMS = row_facts(4096, 16384, staged_bytes=4, carried_bytes=4, of_columns=2, values=1)


def check_schedule(work: RowFacts, device: DeviceInfo, schedule: Plan) -> None:
    (rows, warps, stages), parts, part_cols = tile_of(schedule), schedule.group, schedule.walk[-1].part
    assert 2 <= parts <= MAX_PARTS and 1 <= schedule.lag <= MAX_DEPTH
    for power in (rows, warps, schedule.lanes, schedule.second.block, schedule.second.warps):
        assert power >= 1 and power & (power - 1) == 0
    # Every column is one part's, no part is empty, and each begins where wide loads can.
    assert part_cols <= schedule.lanes and part_cols % ALIGNMENT == 0
    assert (parts - 1) * part_cols < work.cols <= parts * part_cols
    # A program that is not resident would keep the others of its group waiting.
    per_sm = WARPS_PER_SM // warps
    assert schedule.splits * parts <= max(parts, per_sm * device.num_sm)
    assert warps * per_sm * device.warp_size <= device.max_threads
    assert rows <= max(1, work.rows)
    assert 1 <= schedule.splits <= math.ceil(work.rows / rows)
    staged = per_sm * rows * schedule.lanes * work.loads.staged_bytes * (stages - 1)
    assert stages >= 1 and staged <= device.shared_memory
    assert schedule.second.block <= schedule.lanes


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 10**6),
    cols=st.integers(64, 2**18),
    staged_bytes=st.integers(0, 64),
    carried_bytes=st.integers(0, 64),
    of_columns=st.integers(0, 12),
    values=st.integers(1, 6),
    device=st.sampled_from(EXCHANGING),
)
def test_what_is_chosen_can_run_or_is_refused(device: DeviceInfo, **numbers: int) -> None:
    work = row_facts(**numbers)
    try:
        schedule = choose_shared(work, device)
    except Decline as refusal:
        assert refusal.reason is DeclineReason.TOO_MANY_LIVE_TILES
    else:
        check_schedule(work, device, schedule)


def test_too_many_columns_say_how_many_fit() -> None:
    with pytest.raises(Decline, match="32 programs that share a row hold at most 262144 columns"):
        choose_shared(dataclasses.replace(RMS, cols=2**20), H200)


def test_a_device_without_exchange_declines() -> None:
    without_exchanges = dataclasses.replace(H200, exchanges=False)
    with pytest.raises(Decline) as caught:
        choose_shared(RMS, without_exchanges)
    assert caught.value.reason is DeclineReason.ROW_TOO_WIDE


def test_the_users_split_size_is_kept_within_what_is_resident() -> None:
    free = choose_shared(RMS, H200)
    for split_size in (1, 10, 128, 1000, 10**6):
        schedule = choose_shared(RMS, H200, split_size)
        assert schedule.splits == min(free.splits, math.ceil(RMS.rows / split_size))
        assert schedule.changed(splits=free.splits) == free
    odd = with_numbers(RMS, elements=8)
    assert choose_shared(odd, H200, 1000).splits == 8
