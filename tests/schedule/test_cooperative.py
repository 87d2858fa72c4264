"""The schedule of shared rows from plain numbers: what must hold for any shape, and each refusal."""

from __future__ import annotations

import dataclasses
import math

import graphs
import pytest
from devices import A100, B200, H200, RTX, TINY, DeviceInfo
from graphs import bf16, f32, phases_facts, tile_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mixorder.errors import Decline, DeclineReason
from mixorder.schedule.constants import FITTED
from mixorder.schedule.cooperative import MAX_PARTS, MOST_LATE_BYTES, WARPS_PER_SM
from mixorder.schedule.cooperative import choose as choose_shared
from mixorder.schedule.facts import ALIGNMENT, Facts
from mixorder.schedule.persistent import MAX_COLS
from mixorder.schedule.plan import Plan

EXCHANGING = (H200, A100, RTX, B200, TINY)

RMS = Facts(rows=4096, cols=16384, staged_bytes=4, carried_bytes=4, column_words=2, exchanged=1, exchanges=1)


def check_schedule(work: Facts, device: DeviceInfo, schedule: Plan) -> None:
    (rows, warps, stages), parts, part_cols = tile_of(schedule), schedule.group, schedule.walk[-1].part
    assert 2 <= parts <= MAX_PARTS and 1 <= schedule.lag <= FITTED.max_depth
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
    staged = per_sm * rows * schedule.lanes * work.staged_bytes * (stages - 1)
    assert stages >= 1 and staged <= device.shared_memory
    assert schedule.second.block <= schedule.lanes


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 10**6),
    cols=st.integers(4096, 2**17),
    load_bytes=st.integers(2, 12),
    column_words=st.integers(1, 3),
    device=st.sampled_from(EXCHANGING),
)
@example(1, 131_072, 12, 1, TINY)
@example(4096, 8193, 4, 2, H200)
@example(4096, 100_000, 4, 2, H200)
@example(1_000_000, 50257, 6, 1, RTX)
@example(2, 8193, 2, 1, A100)
@example(8192, 5120, 4, 3, B200)
def test_any_schedule_is_launchable(
    rows: int, cols: int, load_bytes: int, column_words: int, device: DeviceInfo
) -> None:
    held_bytes = load_bytes if column_words == 1 else max(4, load_bytes - MOST_LATE_BYTES)
    work = Facts(
        rows,
        cols,
        staged_bytes=load_bytes,
        carried_bytes=held_bytes,
        column_words=column_words,
        exchanged=max(1, column_words - 1),
        exchanges=1,
    )
    check_schedule(work, device, choose_shared(work, device))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 10**6),
    cols=st.integers(64, 2**18),
    staged_bytes=st.integers(0, 64),
    carried_bytes=st.integers(0, 64),
    column_words=st.integers(0, 12),
    exchanged=st.integers(0, 6),
    device=st.sampled_from(EXCHANGING),
)
def test_what_is_chosen_can_run_or_is_refused(device: DeviceInfo, **numbers: int) -> None:
    work = Facts(exchanges=1, **numbers)
    try:
        schedule = choose_shared(work, device)
    except Decline as refusal:
        assert refusal.reason is DeclineReason.TOO_MANY_LIVE_TILES
    else:
        check_schedule(work, device, schedule)


def of(cols: int, *numbers: int, rows: int = 4096, mixed: bool = False) -> Facts:
    """Facts of so many bytes and words: staged, carried, of columns, exchanged, exchanges."""
    staged, carried, words, exchanged, exchanges = numbers
    return Facts(
        rows,
        cols,
        staged_bytes=staged,
        carried_bytes=carried,
        column_words=words,
        exchanged=exchanged,
        exchanges=exchanges,
        mixed=mixed,
    )


# Rows, warps and stages of a tile, its lanes, and the depth; none where no schedule fits.
CHOSEN: list[tuple[Facts, tuple[int, ...] | None]] = [
    *((of(cols, 4, 4, 2, 1, 1), None) for cols in (2**18 + 8, 2**20)),  # 32 programs do not hold it
    (of(2**18, 4, 4, 2, 1, 1), (1, 8, 4, 8192, 2)),
    (of(16384, 4, 12, 2, 1, 1), (2, 4, 3, 2048, 1)),
    (of(16384, 4, 24, 2, 1, 1), None),
    (of(16384, 4, 4, 20, 1, 1), None),
    (of(16384, 4, 4, 2, 1, 1, rows=1), (1, 8, 3, 8192, 2)),  # one row is not put beside another
    # Tiles are halved where there is no other way: for rows that no program holds.
    (of(MAX_COLS + 1, 4, 16, 4, 1, 1), (2, 8, 3, 2048, 2)),
    (of(MAX_COLS, 4, 16, 4, 1, 1), None),
    # Loads of several widths take registers: half the tile, and two rows of it.
    (of(6144, 6, 6, 7, 2, 1), (4, 2, 4, 512, 2)),
    (of(6144, 6, 6, 7, 2, 1, mixed=True), (2, 2, 3, 512, 2)),
    # Much that the last phase loads.
    (of(6144, 8, 4, 3, 2, 1), (2, 2, 3, 512, 3)),
    (of(6144, 10, 4, 3, 2, 1), None),
    (of(6144, 10, 4, 3, 0, 0), (2, 2, 3, 512, 3)),
    # Tiles of four rows where two would spill: LayerNorm beside a residual.
    (of(16384, 6, 4, 3, 2, 1), (4, 4, 4, 1024, 2)),
    (of(16384, 4, 4, 3, 2, 1), (2, 4, 3, 2048, 2)),
    # Where little streams in, a thread has no more than was measured: by bytes alone 64 elements.
    (of(32000, 2, 0, 1, 1, 1), (2, 4, 4, 2048, 3)),
]


@pytest.mark.parametrize(("work", "chosen"), CHOSEN)
def test_what_is_chosen(work: Facts, chosen: tuple[int, ...] | None) -> None:
    if chosen is None:
        with pytest.raises(Decline):
            choose_shared(work, H200)
    else:
        schedule = choose_shared(work, H200)
        assert (*tile_of(schedule), schedule.lanes, schedule.lag) == chosen


def test_too_many_columns_say_how_many_fit() -> None:
    with pytest.raises(Decline, match="32 programs that share a row hold at most 262144 columns"):
        choose_shared(dataclasses.replace(RMS, cols=2**20), H200)


def test_what_holds_more_is_fewer_tiles_deep() -> None:
    depths = [choose_shared(dataclasses.replace(RMS, carried_bytes=n), H200).lag for n in range(1, 13)]
    assert depths == sorted(depths, reverse=True) and depths[0] == FITTED.max_depth and depths[-1] == 1


def test_a_device_without_exchange_declines() -> None:
    alone = dataclasses.replace(H200, exchanges=False)
    with pytest.raises(Decline) as caught:
        choose_shared(RMS, alone)
    assert caught.value.reason is DeclineReason.ROW_TOO_WIDE


def test_workload_of_norms() -> None:
    rms = phases_facts(graphs.merged(graphs.only(graphs.rms_norm_backward(4096, 512))))
    layer = phases_facts(graphs.merged(graphs.only(graphs.layer_norm_backward(4096, 512))))
    # x and dy are carried as they were read; weight and one accumulator, or two.
    numbers = ("rows", "cols", "staged_bytes", "carried_bytes", "column_words", "exchanged", "exchanges")
    assert [getattr(rms, name) for name in numbers] == [4096, 512, 4, 4, 2, 1, 1]
    assert [getattr(layer, name) for name in numbers] == [4096, 512, 4, 4, 3, 2, 1]
    wide = phases_facts(graphs.merged(graphs.only(graphs.rms_norm_backward(4096, 512, f32, bf16))))
    assert (wide.staged_bytes, wide.carried_bytes) == (8, 8)
    assert phases_facts(graphs.merged(graphs.only(graphs.rms_norm_backward(4096, 512, bf16, f32)))) == rms


def test_what_the_last_stage_alone_reads_is_not_held() -> None:
    def residual(x: object, dy: object, around: object) -> object:
        dx, dw = graphs.pair(x, dy)  # type: ignore[arg-type]
        return dx + around, dw  # type: ignore[operator]

    full = ((64, 256), bf16)
    work = phases_facts(graphs.merged(graphs.only(graphs.traced(residual, full, full, full))))
    assert (work.staged_bytes, work.carried_bytes) == (6, 4)


def test_what_is_carried_over_two_stages_is_held_twice() -> None:
    def chained(x: object, dy: object) -> object:
        q = x * (1 / x.abs().amax(-1, keepdim=True))  # type: ignore[operator,attr-defined]
        return dy - q * (q * dy).sum(-1, keepdim=True), (dy * q).sum(0)  # type: ignore[operator]

    full = ((64, 256), bf16)
    work = phases_facts(graphs.merged(graphs.only(graphs.traced(chained, full, full))))
    assert (work.staged_bytes, work.carried_bytes, work.exchanged) == (4, 2 * 2 + 2, 1)


def test_symbolic_rows_are_planned_for_their_hint() -> None:
    full = ((640, 16400), f32)
    program = graphs.merged(graphs.only(graphs.traced_rows(graphs.pair, full, full)))
    assert phases_facts(program).rows == 640


def test_the_users_split_size_is_kept_within_what_is_resident() -> None:
    free = choose_shared(RMS, H200)
    for split_size in (1, 10, 128, 1000, 10**6):
        schedule = choose_shared(RMS, H200, split_size)
        assert schedule.splits == min(free.splits, math.ceil(RMS.rows / split_size))
        assert schedule.changed(splits=free.splits) == free
    odd = dataclasses.replace(RMS, period=8)
    assert choose_shared(odd, H200, 1000).splits == 8
