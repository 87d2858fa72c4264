"""The schedule from plain numbers: what must hold for any shape, and each refusal."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import graphs
import pytest
import torch
from devices import A100, AMD, B200, DEVICES, H200, MI300, RTX, SMALL, DeviceInfo
from graphs import bf16, f32
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mixorder.errors import Decline, DeclineReason
from mixorder.ir.hardware import MAX_REGISTERS
from mixorder.schedule.constants import FITTED, Constants
from mixorder.schedule.facts import Facts, facts_of
from mixorder.schedule.limits import NOT_SPILLED, registers_of
from mixorder.schedule.persistent import BUSY_REGISTERS, MAX_COLS, block_of, choose, even, layouts
from mixorder.schedule.persistent_space import PersistentSpace
from mixorder.schedule.plan import next_power_of_2

RMS = Facts(rows=32768, cols=768, load_bytes=4, held_words=4)
# Chunks wherever they save a lane.
CHUNKED = dataclasses.replace(FITTED, chunk_saving=0.1, min_chunk=32)
WORKS = [
    *(Facts(0, 0, *numbers) for numbers in ((2, 3), (4, 4), (8, 5), (4, 4, 4, 8), (8, 5, 8, 30))),
    Facts(0, 0, load_bytes=4, held_words=6, staged_bytes=4, instructions=10),  # LayerNorm
    Facts(0, 0, load_bytes=8, held_words=5, staged_bytes=8, instructions=8),  # in fp32
    Facts(0, 0, load_bytes=8, held_words=6, staged_bytes=12, instructions=10),  # with a residual
]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 2**20),
    cols=st.integers(1, 8192),
    work=st.sampled_from(WORKS),
    device=st.sampled_from(DEVICES),
    constants=st.sampled_from([FITTED, CHUNKED]),
)
@example(1_000_000, 1, WORKS[0], H200, FITTED)
@example(1, 8192, WORKS[2], AMD, FITTED)
@example(1_000_000, 8192, WORKS[-1], MI300, FITTED)
@example(3, 4097, WORKS[1], SMALL, FITTED)
@example(32768, 5120, WORKS[4], SMALL, CHUNKED)
def test_any_schedule_is_launchable(
    rows: int, cols: int, work: Facts, device: DeviceInfo, constants: Constants
) -> None:
    work = dataclasses.replace(work, rows=rows, cols=cols)
    schedule = choose(work, device, constants=constants)
    assert cols <= schedule.lanes < 2 * cols or cols == schedule.lanes
    xblock, warps, stages = graphs.tile_of(schedule)
    for power in (schedule.chunk, xblock, warps):
        assert power >= 1 and power & (power - 1) == 0
    # All programs are resident: the accumulators of waiting ones would only cost partials.
    assert 1 <= schedule.splits <= min(-(-rows // xblock), 4 * device.num_sm)
    per_sm = -(-schedule.splits // device.num_sm)
    assert warps * device.warp_size <= 1024
    assert per_sm * warps * device.warp_size <= device.max_threads
    staged = per_sm * xblock * schedule.lanes * max(work.load_bytes, work.staged_bytes)
    assert stages >= 1 and staged * (stages - 1) <= device.shared_memory
    assert 1 <= schedule.second.block <= schedule.lanes
    assert choose(work, device, constants=constants) == schedule
    if constants == FITTED:
        assert PersistentSpace(work, device, schedule).legal(schedule)


# What rules ask for, beside these numbers.
ASKED: list[dict[str, Any]] = [
    {"instructions": 44, "levels": 0},
    {"levels": 0},
    {"levels": 2},
    {"narrow": True},
    {"against": True},
    {"along_rows": True, "sector_rows": 16},
    {"both_ways": True, "sector_rows": 8},
    {"hot": True},
    {"repeated_bytes": 40},
    {"item_bytes": 1, "widest_bytes": 4},
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 2**20),
    cols=st.integers(1, 4096),
    work=st.sampled_from(WORKS),
    asked=st.sampled_from(ASKED),
    batch=st.sampled_from([1, 3, 400, 131072]),
    device=st.sampled_from([H200, A100, B200, RTX, AMD, MI300]),
)
def test_no_rule_leaves_what_the_device_has(
    rows: int, cols: int, work: Facts, asked: dict[str, Any], batch: int, device: DeviceInfo
) -> None:
    work = dataclasses.replace(work, rows=rows, cols=cols, batch=batch, **{"widest_bytes": 2, **asked})
    schedule = choose(work, device)
    xblock, warps, stages = graphs.tile_of(schedule)
    for power in (schedule.chunk, xblock, warps, schedule.second.block):
        assert power >= 1 and power & (power - 1) == 0
    assert warps * device.warp_size <= 1024 and cols <= schedule.lanes
    assert 1 <= schedule.splits <= -(-rows // xblock)
    staged = xblock * schedule.lanes * max(work.load_bytes, work.staged_bytes)
    assert staged * (stages - 1) <= device.shared_memory
    assert schedule.second.block <= next_power_of_2(cols)
    assert choose(work, device) == schedule


def test_chunks_that_save_few_lanes_can_be_asked_for() -> None:
    for cols, work in itertools.product((96, 768, 1152, 5120, 6144), WORKS):
        work = dataclasses.replace(work, rows=4096, cols=cols)
        assert choose(work, H200, constants=CHUNKED).chunks > 1


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


def test_the_layouts_of_a_row() -> None:
    assert layouts(dataclasses.replace(RMS, cols=5120)) == ((8192, 1), (6144, 3), (5120, 5))
    assert layouts(dataclasses.replace(RMS, cols=7168))[-1] == (7168, 7)
    assert layouts(dataclasses.replace(RMS, cols=700)) == ((1024, 1), (768, 3))  # 704 would be 11 chunks


def test_shifted_rows_have_one_chunk() -> None:
    assert layouts(dataclasses.replace(RMS, cols=5120, period=8, slack=7)) == ((8192, 1),)


@pytest.mark.parametrize(
    ("saving", "least", "lanes"),
    [(1.0, 512, 8192), (0.375, 1024, 5120), (0.375, 2048, 8192), (0.25, 2048, 6144)],
)
def test_chunks_are_chosen_where_they_save_enough(saving: float, least: int, lanes: int) -> None:
    constants = dataclasses.replace(FITTED, chunk_saving=saving, min_chunk=least)
    for words in (4, 6):
        work = dataclasses.replace(RMS, cols=5120, held_words=words)
        schedule = choose(work, H200, constants=constants)
        assert schedule.lanes == lanes == schedule.chunks * schedule.chunk
        # The lanes that are saved take no registers.
        per_thread = lanes / (schedule.launch.num_warps * H200.warp_size)
        most = MAX_REGISTERS if schedule.chunks == 1 else NOT_SPILLED
        assert registers_of(work, int(per_thread), schedule.chunks) <= most
        # A thread's part of a chunk is a whole access.
        assert schedule.chunks == 1 or per_thread == 8 * schedule.chunks * schedule.tile_rows


# Rules that few graphs meet, and what they give: rows, warps and stages of a tile, and the programs.
PINNED = [
    # One program of 4 warps would be slower than two of 2 warps.
    (Facts(16384, 768, 15, 8, 19, 17, column_words=5, item_bytes=1, widest_bytes=4), (1, 2, 4, 264)),
    # Rows are added up: with a repeated tensor, and in blocks.
    (Facts(12544, 256, 1, 1, 3, 2, 3, item_bytes=1, levels=0, repeated_bytes=3), (4, 1, 4, 352)),
    (Facts(1568, 256, 2, 2, 2, batch=5, levels=0), (4, 1, 4, 211)),
    # A program with all rows goes through several tiles.
    (Facts(64, 49, 4, 3, 4, batch=1568, item_bytes=4), (8, 2, 5, 1)),
    (Facts(64, 49, 4, 3, 4, batch=392, item_bytes=4), (64, 4, 5, 1)),
    # Three tensors of several widths: chunks of accesses of the widest.
    (Facts(8192, 768, 10, 8, widest_bytes=4), (1, 2, 3, 512)),
]


@pytest.mark.parametrize("facts, chosen", PINNED)
def test_a_rule_that_few_graphs_meet(facts: Facts, chosen: tuple[int, ...]) -> None:
    schedule = choose(facts, H200)
    assert (*graphs.tile_of(schedule), schedule.splits) == chosen


def test_threads_share_the_registers_that_a_limit_leaves() -> None:
    """docs/lab/tuning.md, "Sums alone, and short rows"."""
    work = Facts(16384, 1024, 4, 2, 4, instructions=44, levels=0, batch=16)
    schedule = choose(work, H200)
    per_sm = -(-schedule.splits * work.batch // H200.num_sm)
    assert per_sm * schedule.launch.num_warps * H200.warp_size * BUSY_REGISTERS <= H200.registers
    assert schedule.launch.max_registers == BUSY_REGISTERS
    fewer = dataclasses.replace(H200, registers=H200.registers // 4)
    assert choose(work, fewer).launch.max_registers == 0


def test_a_row_that_spills_can_be_asked_for() -> None:
    wide = dataclasses.replace(RMS, cols=16384)
    with pytest.raises(Decline):
        choose(wide, H200)
    assert choose(wide, H200, spill_factor=1.5).lanes == 16384


def test_more_held_words_take_no_more_elements_per_thread() -> None:
    def per_thread(held_words: int) -> float:
        schedule = choose(dataclasses.replace(RMS, held_words=held_words), H200)
        return schedule.tile_rows * schedule.lanes / (schedule.launch.num_warps * 32)

    counts = [per_thread(n) for n in range(2, 12)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_few_rows_are_spread_over_the_device() -> None:
    assert choose(dataclasses.replace(RMS, rows=H200.num_sm), H200).splits == H200.num_sm


def test_fewer_programs_that_take_no_more_turns() -> None:
    """Where the finalisation then has half as many partials, padded to a power of two."""
    assert even(2048, 132) == 128 and even(16384, 528) == 512
    assert even(2080, 130) == 130  # 16 turns of 128 are too few
    assert even(128, 128) == 128 and even(100, 132) == 100 and even(1, 1) == 1
    for tiles, programs in itertools.product((1, 7, 2048, 4097, 100_000), (1, 3, 132, 264, 528)):
        found = even(tiles, min(tiles, programs))
        assert 1 <= found <= programs and -(-tiles // found) == -(-tiles // min(tiles, programs))


@pytest.mark.parametrize("cols", [MAX_COLS + 1, 65536])
def test_a_wide_row_is_declined(cols: int) -> None:
    with pytest.raises(Decline) as caught:
        choose(dataclasses.replace(RMS, cols=cols), H200)
    assert caught.value.reason is DeclineReason.ROW_TOO_WIDE
    assert str(cols) in caught.value.detail


def test_too_many_held_words_are_declined() -> None:
    with pytest.raises(Decline) as caught:
        choose(dataclasses.replace(RMS, cols=8192, held_words=30), H200)
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


@pytest.mark.parametrize(
    ("cols", "width"),
    [(96, 32), (160, 32), (384, 128), (576, 64), (608, 32), (720, 240), (768, 256), (1152, 128), (1536, 512)]
    + [(3072, 1024), (4000, 2000), (4096, 2048), (18432, 2048), (50304, 128)]
    + [(cols, cols) for cols in (32, 64, 195, 480, 486, 1000, 1024, 1365, 2048, 2730, 4099, 50257)],
)
def test_blocks_of_columns(cols: int, width: int) -> None:
    """The widest with almost the fewest idle lanes; whole rows if they are as good, or cannot be divided."""
    assert block_of(Facts(8192, cols, load_bytes=4)) == width


# What is read off a graph.


def pair(x: torch.Tensor, dy: torch.Tensor) -> Any:
    return graphs.pair(x, dy)


def centred(dy: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x_hat = x - x.mean(1, keepdim=True)
    dx = dy * x_hat * (x_hat * x_hat).mean(1, keepdim=True)
    return dx, (dy * x_hat).sum(0)


def channels(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.sum((2, 3)), x.sum((0, 2, 3)), x * 2


def turned(x: torch.Tensor, dy: torch.Tensor) -> Any:
    return graphs.pair(x.transpose(1, 2).reshape(-1, 256), dy)


def all_turned(x: torch.Tensor, dy: torch.Tensor) -> Any:
    return turned(x, dy.transpose(1, 2).reshape(-1, 256))


def table(x: torch.Tensor, dy: torch.Tensor) -> Any:
    return graphs.pair(x.t()[None].expand(64, 784, 256).reshape(-1, 256), dy)


def small_table(x: torch.Tensor, dy: torch.Tensor, table: torch.Tensor) -> Any:
    return graphs.pair(x, (dy.view(-1, 16, 40) * table).view(-1, 40))


def pieces(a: torch.Tensor, b: torch.Tensor) -> Any:
    both = torch.cat([a, b], 1)
    return both, both.sum(0)


def repeated(x: torch.Tensor, y: torch.Tensor, small: torch.Tensor) -> Any:
    whole = torch.cat([small.repeat_interleave(2, 1), x], 1) + y
    return whole, whole.sum(0)


def shifted(a: torch.Tensor, b: torch.Tensor) -> Any:
    return pieces(a, b[:, 1:])


def every_other(x: torch.Tensor, dy: torch.Tensor) -> Any:
    return graphs.pair(x[:, ::2], dy)


EVEN = 4096, 512
FLAGS = ("narrow", "against", "along_rows", "both_ways", "hot", "common")
ROWS, IMAGES, FLAT = 4096, (64, 256, 784), (50176, 256)
READ: list[tuple[Callable[..., Any], list[Any], dict[str, Any]]] = [
    (
        pair,
        [(EVEN, bf16)] * 2,
        {"load_bytes": 4, "item_bytes": 2, "widest_bytes": 2, "sector_rows": 1},
    ),
    (pair, [(EVEN, bf16), (EVEN, f32)], {"load_bytes": 6, "item_bytes": 2, "widest_bytes": 4}),
    (pair, [((ROWS, 511), bf16)] * 2, {}),  # accesses of odd rows are shifted to a boundary
    (pair, [((200704, 40), f32)] * 2, {}),
    (centred, [(EVEN, f32)] * 2, {"levels": 2}),
    (channels, [((16, 6, 10, 14), f32)], {"common": True}),
    (every_other, [((ROWS, 1024), bf16), (EVEN, bf16)], {"narrow": True}),
    (turned, [(IMAGES, bf16), (FLAT, bf16)], {"against": True, "both_ways": True, "sector_rows": 16}),
    (
        turned,
        [(IMAGES, f32), (FLAT, bf16)],
        {"along_rows": True, "both_ways": True, "sector_rows": 8},
    ),
    (all_turned, [(IMAGES, f32)] * 2, {"along_rows": True, "sector_rows": 8}),
    (table, [((256, 784), f32), (FLAT, bf16)], {"against": True, "sector_rows": 1}),  # in the cache
    (small_table, [*[((200704, 40), f32)] * 2, ((16, 40), f32)], {"hot": True}),
    (pieces, [((ROWS, 256), bf16)] * 2, {"load_bytes": 2, "staged_bytes": 4, "repeated_bytes": 2}),
    (shifted, [((ROWS, 257), bf16), ((ROWS, 256), bf16)], {"narrow": True}),  # all in single elements
    (repeated, [((ROWS, 384), bf16), (EVEN, f32), ((ROWS, 64), bf16)], {"narrow": True}),
]


@pytest.mark.parametrize("function, tensors, found", READ)
def test_facts_of_a_graph(function: Callable[..., Any], tensors: list[Any], found: dict[str, Any]) -> None:
    facts = facts_of(graphs.merged(graphs.only(graphs.traced(function, *tensors))))
    expected = {**dict.fromkeys(FLAGS, False), **found}
    assert {name: getattr(facts, name) for name in expected} == expected


def test_facts_of_norms() -> None:
    rms = facts_of(graphs.merged(graphs.only(graphs.rms_norm_backward(4096, 512))))
    layer = facts_of(graphs.merged(graphs.only(graphs.layer_norm_backward(4096, 512))))
    # x_hat, the scaled gradient, weight and dw's accumulator; LayerNorm: dy for db, and db's accumulator.
    assert (rms.rows, rms.cols, rms.load_bytes, rms.held_words, rms.levels) == (4096, 512, 4, 4, 1)
    assert (layer.load_bytes, layer.held_words, layer.levels) == (4, 6, 1)
