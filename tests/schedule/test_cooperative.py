"""The schedule of shared rows from plain numbers: what must hold for any shape, and each refusal."""

from __future__ import annotations

import dataclasses
import math

import graphs
import pytest
from devices import A100, B200, H200, RTX, TINY, DeviceInfo
from graphs import bf16, f32, phases_facts
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mixorder.errors import Decline, DeclineReason, TooWide
from mixorder.schedule.constants import FITTED
from mixorder.schedule.cooperative import MAX_PARTS, MOST_LATE_BYTES, WARPS_PER_SM, registers_of
from mixorder.schedule.cooperative import choose as choose_shared
from mixorder.schedule.facts import ALIGNMENT, Facts
from mixorder.schedule.persistent import MAX_COLS
from mixorder.schedule.schedule import Schedule, Tile

EXCHANGING = (H200, A100, RTX, B200, TINY)

RMS = Facts(rows=4096, cols=16384, staged_bytes=4, carried_bytes=4, column_words=2, exchanged=1, exchanges=1)
COLS = [8193, 10000, 12288, 16383, 16384, 16400, 20000, 32768, 33000, 50257, 65536, 100_000, 131_072]


def check_schedule(work: Facts, device: DeviceInfo, schedule: Schedule) -> None:
    tile, parts, part_cols = schedule.tile, schedule.parts, schedule.part_cols
    assert 2 <= parts <= MAX_PARTS and 1 <= schedule.depth <= FITTED.max_depth
    for power in (tile.xblock, tile.num_warps, schedule.r0_block, schedule.final_block, schedule.final_warps):
        assert power >= 1 and power & (power - 1) == 0
    # Every column is one part's, no part is empty, and each begins where wide loads can.
    assert part_cols <= schedule.r0_block and part_cols % ALIGNMENT == 0
    assert (parts - 1) * part_cols < work.cols <= parts * part_cols
    # A program that is not resident would keep the others of its group waiting.
    per_sm = WARPS_PER_SM // tile.num_warps
    assert schedule.num_splits * parts <= max(parts, per_sm * device.num_sm)
    assert tile.num_warps * per_sm * device.warp_size <= device.max_threads
    assert tile.xblock <= max(1, work.rows)
    assert 1 <= schedule.num_splits <= math.ceil(work.rows / tile.xblock)
    staged = per_sm * tile.xblock * schedule.r0_block * work.staged_bytes * (tile.num_stages - 1)
    assert tile.num_stages >= 1 and staged <= device.shared_memory
    assert schedule.final_block <= schedule.r0_block


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 10**6),
    cols=st.integers(4096, 2**17),
    load_bytes=st.integers(2, 12),
    column_words=st.integers(1, 3),
    device=st.sampled_from(EXCHANGING),
)
@example(1, 131_072, 12, 1, TINY)
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
    except TooWide as refusal:
        assert refusal.words == work.column_words + work.carried_bytes
    else:
        check_schedule(work, device, schedule)


def test_the_widest_rows_of_norms_are_taken() -> None:
    for cols in COLS:
        assert choose_shared(dataclasses.replace(RMS, cols=cols), H200).parts >= 2


def test_tiles_are_halved_where_there_is_no_other_way() -> None:
    """What is held of 32 elements per thread takes more registers than there are."""
    work = Facts(
        4096, MAX_COLS + 1, staged_bytes=4, carried_bytes=16, column_words=4, exchanged=1, exchanges=1
    )
    schedule = choose_shared(work, H200)
    assert schedule.tile.xblock * schedule.r0_block == 16 * 32 * schedule.tile.num_warps
    with pytest.raises(TooWide):
        choose_shared(dataclasses.replace(work, cols=MAX_COLS), H200)


def test_loads_of_several_widths_take_registers() -> None:
    """A gradient in bf16 beside activations in fp32, as under autocast: half the tile, and two rows of it."""
    work = Facts(16384, 6144, staged_bytes=6, carried_bytes=6, column_words=7, exchanged=2, exchanges=1)
    assert choose_shared(work, H200).tile == Tile(4, 2, 4)
    mixed = dataclasses.replace(work, mixed=True)
    schedule = choose_shared(mixed, H200)
    assert (schedule.tile, schedule.depth) == (Tile(2, 2, 3), 2)
    assert 2 * schedule.r0_block == 16 * 32 * schedule.tile.num_warps
    more = registers_of(mixed, schedule.tile, schedule.r0_block, 2)
    assert more - registers_of(work, schedule.tile, schedule.r0_block, 2) == 64


def test_much_that_the_last_phase_loads_is_declined() -> None:
    work = Facts(16384, 6144, staged_bytes=8, carried_bytes=4, column_words=3, exchanged=2, exchanges=1)
    assert choose_shared(work, H200)
    with pytest.raises(TooWide):
        choose_shared(dataclasses.replace(work, staged_bytes=10), H200)
    assert choose_shared(dataclasses.replace(work, staged_bytes=10, exchanges=0, exchanged=0), H200)


def test_tiles_of_four_rows_where_two_would_spill() -> None:
    """LayerNorm beside a residual: three accumulators and weights, and a tensor that the last stage loads."""
    work = Facts(4096, 16384, staged_bytes=6, carried_bytes=4, column_words=3, exchanged=2, exchanges=1)
    assert choose_shared(work, H200).tile == Tile(4, 4, 4)
    assert choose_shared(dataclasses.replace(work, staged_bytes=4), H200).tile.xblock == 2


def test_a_thread_has_no_more_than_was_measured_where_little_streams_in() -> None:
    """One tensor of two bytes: by bytes alone a turn would be 64 elements per thread."""
    work = Facts(4096, 32000, staged_bytes=2, carried_bytes=0, column_words=1, exchanged=1, exchanges=1)
    schedule = choose_shared(work, H200)
    assert schedule.tile.xblock * schedule.r0_block == 32 * 32 * schedule.tile.num_warps


def test_too_many_columns_are_declined() -> None:
    with pytest.raises(TooWide) as caught:
        choose_shared(dataclasses.replace(RMS, cols=2**20), H200)
    assert caught.value.detail == "32 programs that share a row hold at most 262144 columns"
    assert choose_shared(dataclasses.replace(RMS, cols=2**18), H200).parts == MAX_PARTS
    with pytest.raises(TooWide):
        choose_shared(dataclasses.replace(RMS, cols=2**18 + 8), H200)


def test_too_much_held_is_declined() -> None:
    assert choose_shared(dataclasses.replace(RMS, carried_bytes=12), H200)
    with pytest.raises(TooWide):
        choose_shared(dataclasses.replace(RMS, carried_bytes=24), H200)
    with pytest.raises(TooWide):
        choose_shared(dataclasses.replace(RMS, column_words=20), H200)


def test_what_holds_more_is_fewer_tiles_deep() -> None:
    depths = [choose_shared(dataclasses.replace(RMS, carried_bytes=n), H200).depth for n in range(1, 13)]
    assert depths == sorted(depths, reverse=True) and depths[0] == FITTED.max_depth and depths[-1] == 1


def test_a_device_without_exchange_declines() -> None:
    alone = dataclasses.replace(H200, exchanges=False)
    with pytest.raises(Decline) as caught:
        choose_shared(RMS, alone)
    assert caught.value.reason is DeclineReason.ROW_TOO_WIDE and not isinstance(caught.value, TooWide)


def test_one_row_is_not_put_beside_another() -> None:
    schedule = choose_shared(dataclasses.replace(RMS, rows=1), H200)
    assert schedule.tile.xblock == 1 and schedule.num_splits == 1


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
        assert schedule.num_splits == min(free.num_splits, math.ceil(RMS.rows / split_size))
        assert dataclasses.replace(schedule, num_splits=free.num_splits) == free
    odd = dataclasses.replace(RMS, period=8)
    assert choose_shared(odd, H200, 1000).num_splits == 8
