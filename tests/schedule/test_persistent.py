"""The schedule from plain numbers: what must hold for any shape, and each refusal."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import graphs
import pytest
import torch
from devices import AMD, DEVICES, H200, MI300, SMALL, DeviceInfo
from graphs import bf16, f32
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mixorder.errors import Decline, DeclineReason, TooWide
from mixorder.ir.hardware import MAX_REGISTERS
from mixorder.schedule.constants import FITTED, Constants
from mixorder.schedule.facts import ASYNC_BYTES, Facts, facts_of
from mixorder.schedule.limits import NOT_SPILLED, registers_of
from mixorder.schedule.persistent import BUSY_REGISTERS, MAX_COLS, block_of, choose, even, layouts
from mixorder.schedule.persistent_space import PersistentSpace
from mixorder.schedule.schedule import Tile
from mixorder.schedule.unstaged import unstaged

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
    assert cols <= schedule.r0_block < 2 * cols or cols == schedule.r0_block
    tile = schedule.tile
    for power in (schedule.chunk, tile.xblock, tile.num_warps):
        assert power >= 1 and power & (power - 1) == 0
    # All programs are resident: the accumulators of waiting ones would only cost partials.
    assert 1 <= schedule.num_splits <= min(-(-rows // tile.xblock), 4 * device.num_sm)
    per_sm = -(-schedule.num_splits // device.num_sm)
    assert tile.num_warps * device.warp_size <= 1024
    assert per_sm * tile.num_warps * device.warp_size <= device.max_threads
    staged = per_sm * tile.xblock * schedule.r0_block * max(work.load_bytes, work.staged_bytes)
    assert tile.num_stages >= 1 and staged * (tile.num_stages - 1) <= device.shared_memory
    assert 1 <= schedule.final_block <= schedule.r0_block
    assert choose(work, device, constants=constants) == schedule
    if constants == FITTED:
        assert PersistentSpace(work, device, schedule).legal(schedule)


def test_chunks_that_save_few_lanes_can_be_asked_for() -> None:
    for cols, work in itertools.product((96, 768, 1152, 5120, 6144), WORKS):
        work = dataclasses.replace(work, rows=4096, cols=cols)
        assert choose(work, H200, constants=CHUNKED).chunks > 1


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 1000), st.integers(1, 5000))
def test_split_size_is_what_the_user_says(rows: int, split_size: int) -> None:
    schedule = choose(dataclasses.replace(RMS, rows=rows), H200, split_size=split_size)
    assert schedule.num_splits == -(-rows // split_size)


LAYOUTS = {
    64: [(64, 1)],
    96: [(128, 1), (96, 3)],
    700: [(1024, 1), (768, 3)],  # 704 lanes would be 11 chunks
    1152: [(2048, 1), (1536, 3), (1280, 5)],
    5120: [(8192, 1), (6144, 3), (5120, 5)],
    6000: [(8192, 1), (6144, 3)],
    7168: [(8192, 1), (7168, 7)],
    8000: [(8192, 1)],
    12288: [(16384, 1), (12288, 3)],
}


@pytest.mark.parametrize("cols", LAYOUTS)
def test_chunks_are_of_a_power_of_two_and_save_lanes(cols: int) -> None:
    found = layouts(dataclasses.replace(RMS, cols=cols))
    assert list(found) == LAYOUTS[cols]
    for lanes, chunks in found:
        chunk = lanes // chunks
        assert lanes % chunks == 0 and chunk & (chunk - 1) == 0 and lanes - chunk < cols <= lanes


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
        assert schedule.r0_block == lanes == schedule.chunks * schedule.chunk
        # The lanes that are saved take no registers.
        per_thread = lanes / (schedule.tile.num_warps * H200.warp_size)
        most = MAX_REGISTERS if schedule.chunks == 1 else NOT_SPILLED
        assert registers_of(work, int(per_thread), schedule.chunks) <= most
        # A thread's part of a chunk is a whole access.
        assert schedule.chunks == 1 or per_thread == 8 * schedule.chunks * schedule.tile.xblock


def test_threads_that_branch_have_few_elements_and_many_warps() -> None:
    work = Facts(32768, 1024, 4, 2, 4, instructions=46, batch=3)
    plain, branching = (choose(dataclasses.replace(work, divergent=d), H200) for d in (False, True))
    assert plain.tile.num_warps * 4 == branching.tile.num_warps == 8
    assert plain.num_splits == branching.num_splits
    narrow = dataclasses.replace(work, cols=128, batch=1, divergent=True)
    assert choose(narrow, H200).tile.xblock * 128 == 8 * 32 * choose(narrow, H200).tile.num_warps


def test_registers_have_a_limit_where_a_kernel_computes_much() -> None:
    """docs/tuning.md, "Sums alone, and short rows"."""
    work = Facts(16384, 1024, 4, 2, 4, instructions=44, levels=0, batch=16)
    schedule, little = choose(work, H200), choose(dataclasses.replace(work, instructions=8), H200)
    per_sm = -(-schedule.num_splits * work.batch // H200.num_sm)
    assert per_sm * schedule.tile.num_warps * H200.warp_size * BUSY_REGISTERS <= H200.registers
    assert schedule.max_registers == BUSY_REGISTERS and "max_registers = 168" in str(schedule)
    assert little.max_registers == 0 and "max_registers" not in str(little)
    assert choose(dataclasses.replace(work, levels=1), H200).max_registers == 0
    fewer = dataclasses.replace(H200, registers=H200.registers // 4)
    assert choose(work, fewer).max_registers == 0
    # H100, GELU (erf) behind four tables of each picture, 262144x128: 227 us with the limit, 135 without.
    assert choose(dataclasses.replace(work, repeated_bytes=10), H200).max_registers == 0


def test_masks_are_wide_enough_to_be_loaded_ahead() -> None:
    """H100, LayerNorm behind dropout, 16384x768: one program of 4 warps 175 us, two of 2 warps 95."""
    mask = Facts(16384, 768, 15, 8, 19, instructions=17, column_words=5, item_bytes=1, widest_bytes=4)
    schedule = choose(dataclasses.replace(mask, repeated_bytes=19), H200)
    threads = schedule.tile.num_warps * H200.warp_size
    assert schedule.tile.xblock * schedule.chunk // threads * mask.item_bytes >= ASYNC_BYTES
    assert schedule.num_splits * schedule.tile.num_warps >= 4 * H200.num_sm


def test_threads_beside_a_narrow_table_have_one_access_of_each_tensor() -> None:
    """H100, 65536x288 in blocks of 32 beside a table of bytes: 16 elements of a thread 129 us, 8 74."""
    work = Facts(65536, 32, 4, 4, 11, instructions=66, batch=9, levels=0, widest_bytes=2, repeated_bytes=11)
    assert threads_elements(choose(work, H200)) > 8
    assert threads_elements(choose(dataclasses.replace(work, narrow_table=True), H200)) == 8


def test_threads_with_floats_beside_a_mask_have_fewer_elements() -> None:
    """H200, 16384x128: 16 elements of a thread 20.4 us, 8 19.5."""
    work = Facts(16384, 128, 11, 5, 11, instructions=79, levels=0, item_bytes=1, repeated_bytes=11)
    assert threads_elements(choose(dataclasses.replace(work, widest_bytes=2), H200)) == 16
    assert threads_elements(choose(dataclasses.replace(work, widest_bytes=4), H200)) == 8


def test_rows_that_are_added_up_with_a_repeated_tensor_have_small_programs() -> None:
    """H200, 12544x768 in three blocks: 64 rows by 16 warps 22.2 us, 4 by one 17.1. Where nothing would be
    loaded ahead, 16384x4096: 234.7 us, and 319 by the latter."""
    masked = Facts(12544, 256, 1, 1, 3, instructions=2, batch=3, levels=0, item_bytes=1, repeated_bytes=3)
    assert choose(masked, H200).tile == Tile(4, 1, 4)
    rotary = Facts(16384, 2048, 9, 4, 28, batch=2, levels=0, item_bytes=4, repeated_bytes=28)
    assert choose(rotary, H200).tile == Tile(2, 4, 1)


def test_a_program_with_all_rows_goes_through_several_tiles() -> None:
    """H200, 64 rows of 36 at 864 indices: 64 rows of a tile 29.1 us, 8 18.6."""
    norm = Facts(64, 36, 4, 8, 4, instructions=52, batch=864, levels=1, finishable=True)
    schedule = choose(norm, H200)
    assert schedule.tile.xblock == 8 and schedule.finishes
    assert choose(dataclasses.replace(norm, batch=392), H200).tile.xblock == 64


def test_programs_that_load_nothing_ahead_fill_the_registers() -> None:
    """H100, rotary embeddings in fp32, 16384x2048: 2 programs of 4 warps 211 us, 4 163. H200, of 168
    registers by estimate: 8 warps 227 us, 16 145."""
    rotary = Facts(16384, 2048, 9, 4, 28, instructions=10, levels=0, item_bytes=4, repeated_bytes=28)
    more, many = (dataclasses.replace(rotary, held_words=words) for words in (8, 9))
    found = [unstaged(facts, Tile(1, 8, 3), 1, 2048, H200) for facts in (rotary, more, many)]
    assert found == [(Tile(1, 4, 1), 4), (Tile(1, 4, 1), 4), (Tile(1, 4, 1), 2)]


def test_what_branches_and_what_follows_from_one_another_is_seen() -> None:
    def gelu(dy: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        dx = torch.ops.aten.gelu_backward(dy, x, approximate="tanh")
        return dx, dx.sum(0)

    def centred(dy: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x_hat = x - x.mean(1, keepdim=True)
        dx = dy * x_hat * (x_hat * x_hat).mean(1, keepdim=True)
        return dx, (dy * x_hat).sum(0)

    def of(graph: torch.fx.Graph, runs_ptx: bool = True) -> tuple[bool, int]:
        work = facts_of(graphs.merged(graphs.only(graph), runs_ptx))
        return work.divergent, work.levels

    full = ((4096, 512), f32)
    assert of(graphs.traced(gelu, full, full)) == (False, 0)
    assert of(graphs.traced(gelu, full, full), runs_ptx=False) == (True, 0)
    assert of(graphs.traced(centred, full, full)) == (False, 2)
    assert of(graphs.layer_norm_backward(4096, 512)) == (False, 1)


def test_columns_that_both_reduce_are_seen() -> None:
    def channels(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum((2, 3)), x.sum((0, 2, 3)), x * 2

    graph = graphs.traced(channels, ((16, 6, 10, 14), f32))
    assert facts_of(graphs.merged(graphs.only(graph))).common
    assert not facts_of(graphs.merged(graphs.only(graphs.layer_norm_backward(4096, 512)))).common


def test_reductions_that_follow_from_one_another_have_several_programs() -> None:
    work = dataclasses.replace(RMS, rows=16384, cols=2048, held_words=6)
    one, several = (choose(dataclasses.replace(work, levels=n), H200) for n in (1, 2))
    assert one.num_splits == H200.num_sm and several.num_splits > 2 * H200.num_sm


def test_what_a_chunk_computes_with_takes_registers() -> None:
    """A residual gradient beside LayerNorm: fewer elements to a thread, though more lanes are idle."""
    work = dataclasses.replace(RMS, cols=5120, held_words=6)
    assert choose(work, H200).chunks == 5
    assert choose(dataclasses.replace(work, load_bytes=6), H200).chunks == 3


def test_tensors_of_several_widths_have_chunks_of_accesses_of_the_widest() -> None:
    """Three tensors or more; of two, and of wider rows, the lanes that chunks save are not worth it."""
    mixed = dataclasses.replace(RMS, rows=8192, load_bytes=10, held_words=8, widest_bytes=4)
    schedule = choose(mixed, H200)
    assert (schedule.r0_block, schedule.chunks) == (768, 3)
    assert schedule.r0_block // (32 * schedule.tile.num_warps) == 3 * 4  # 16 bytes in fp32
    bytewise = choose(dataclasses.replace(mixed, load_bytes=11, item_bytes=1), H200)
    assert (bytewise.r0_block, bytewise.tile.num_warps) == (768, schedule.tile.num_warps)
    assert choose(dataclasses.replace(mixed, load_bytes=6), H200).chunks == 1
    assert choose(dataclasses.replace(mixed, widest_bytes=2), H200).chunks == 1
    held = dataclasses.replace(mixed, cols=2560, held_words=11)
    assert choose(held, H200).chunks == 3  # 5 would need one register more than there are
    wide = dataclasses.replace(mixed, cols=6144, held_words=10)
    assert (6144, 3) in layouts(wide)
    with pytest.raises(TooWide):  # programs that share the row are faster
        choose(wide, H200)


def test_facts_tell_the_narrowest_and_the_widest_tensor() -> None:
    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        return graphs.pair(x.float(), dy)

    full = 4096, 512
    facts = facts_of(graphs.merged(graphs.only(graphs.traced(function, (full, bf16), (full, f32)))))
    assert (facts.item_bytes, facts.widest_bytes, facts.load_bytes) == (2, 4, 6)
    facts = facts_of(graphs.merged(graphs.only(graphs.layer_norm_backward(4096, 512))))
    assert facts.item_bytes == facts.widest_bytes


def test_what_caches_have_anyway_is_not_loaded_ahead() -> None:
    """Rotary embeddings: most of what tiles load are tables, and neighbours of what is loaded beside it."""
    numbers = {"staged_bytes": 20, "instructions": 12, "batch": 2, "levels": 0, "widest_bytes": 4}
    rotary = Facts(16384, 2048, 5, 4, **numbers)
    few, many = (choose(dataclasses.replace(rotary, repeated_bytes=n), H200) for n in (20, 14))
    assert few.tile.num_stages == 1 < many.tile.num_stages
    numbers = {"staged_bytes": 22, "repeated_bytes": 22, "instructions": 18, "widest_bytes": 4}
    for held_words in (6, 7):  # of 8 warps with 7 words, only one program would fit
        schedule = choose(Facts(16384, 4096, 7, held_words, **numbers), H200)
        assert (schedule.tile.num_stages, schedule.tile.num_warps) == (1, 4)
        assert schedule.num_splits == 2 * H200.num_sm  # other warps hide a program's loads instead
    wide = choose(Facts(16384, 4096, 7, 8, **numbers), H200)
    assert wide.tile.num_warps == 8  # 16 elements of each thread would not fit its registers
    fits = choose(dataclasses.replace(rotary, cols=64, rows=100, staged_bytes=15, repeated_bytes=15), H200)
    assert fits.tile.num_stages > 1  # there is room for enough tiles


def test_where_programs_follow_one_another_nothing_is_loaded_ahead() -> None:
    table = Facts(rows=16, cols=128, load_bytes=8, held_words=4, staged_bytes=8, batch=131072, item_bytes=4)
    assert choose(table, H200).tile.num_stages == 1
    assert choose(dataclasses.replace(table, batch=31 * H200.num_sm), H200).tile.num_stages > 1


@pytest.mark.parametrize(
    ("rows", "batch", "programs"), [(12544, 3, 352), (1568, 5, 196), (16384, 1, 512), (64, 1, 64)]
)
def test_rows_that_are_only_added_up_have_programs_of_few_warps(rows: int, batch: int, programs: int) -> None:
    sums = Facts(rows, 256, 2, 2, staged_bytes=2, batch=batch, levels=0)
    schedule = choose(sums, H200)
    assert schedule.tile.num_warps == (2 if batch == 1 else 1)
    assert schedule.num_splits == programs
    norm = choose(dataclasses.replace(sums, levels=1), H200)
    assert rows < 1000 or norm.tile.num_warps > schedule.tile.num_warps


def test_sums_of_many_registers_have_fewer_elements() -> None:
    sums = Facts(37120, 256, 7, 2, staged_bytes=12, batch=3, levels=0)
    assert choose(sums, H200).tile.num_warps == 2
    held = choose(dataclasses.replace(sums, held_words=6), H200)
    assert threads_elements(held) == 16
    assert held.num_splits * held.tile.num_warps == 352


def test_single_elements_of_some_bytes_need_more_warps() -> None:
    pieces = Facts(16384, 2048, 6, 5, staged_bytes=8, batch=2, levels=0, minor=True)
    schedule = choose(pieces, H200)
    assert (schedule.tile, threads_elements(schedule)) == (Tile(1, 4, 3), 16)
    assert schedule.num_splits == 264
    assert choose(dataclasses.replace(pieces, narrow=True), H200).tile.num_stages == 1


def threads_elements(schedule: Any) -> float:
    return schedule.tile.xblock * schedule.r0_block / (32 * schedule.tile.num_warps)


@pytest.mark.parametrize("levels", [0, 1])
def test_tiles_whose_loads_stall_are_small_and_have_many_warps(levels: int) -> None:
    windows = Facts(4096, 49, 4, 4, staged_bytes=8, batch=147, levels=levels)
    whole, narrow = (choose(dataclasses.replace(windows, narrow=n), H200) for n in (False, True))
    assert (narrow.tile.xblock, narrow.tile.num_warps, narrow.tile.num_stages) == (4, 1, 1)
    assert whole.tile.num_stages > 1 and narrow.num_splits > 4 * whole.num_splits
    turned = Facts(16384, 768, 4, 2, staged_bytes=8, levels=levels)
    plain, against = (choose(dataclasses.replace(turned, against=a), H200) for a in (False, True))
    assert plain.tile.num_stages > 1 == against.tile.num_stages
    assert threads_elements(against) == 16 and threads_elements(narrow) == 8
    assert against.num_splits * against.tile.num_warps == 24 * H200.num_sm


@pytest.mark.parametrize(("cols", "elements"), [(256, 16), (1024, 16), (2048, 8)])
def test_narrow_loads_beside_wide_ones_need_fewer_warps(cols: int, elements: int) -> None:
    """H100, 200768x456: 338 us with 8 elements of a thread, 269 with 16."""
    gathered = Facts(16384, cols, 5, 2, staged_bytes=10, instructions=20, levels=0, narrow=True)
    schedule = choose(dataclasses.replace(gathered, half_wide=True), H200)
    assert threads_elements(schedule) == elements and schedule.tile.num_stages == 1
    warps = (16 if elements == 16 else 24) * H200.num_sm
    assert 0.9 * warps < schedule.num_splits * schedule.tile.num_warps <= warps
    assert threads_elements(choose(gathered, H200)) == 8


def test_a_small_table_is_not_loaded_ahead() -> None:
    """H100, 200704x40 with a table of 16x40: 139 us by any tile that is loaded ahead, 68 without that."""

    def function(x: torch.Tensor, dy: torch.Tensor, table: torch.Tensor) -> Any:
        dy = (dy.view(-1, 16, 40) * table).view(-1, 40)
        return graphs.pair(x, dy)

    full = ((200704, 40), f32)
    facts = facts_of(graphs.merged(graphs.only(graphs.traced(function, full, full, ((16, 40), f32)))))
    assert facts.hot
    schedule = choose(facts, H200)
    assert schedule.tile.num_stages == 1 < choose(dataclasses.replace(facts, hot=False), H200).tile.num_stages
    rare = facts_of(graphs.merged(graphs.only(graphs.traced(graphs.pair, full, full))))
    assert not rare.hot and rare.half_wide


@pytest.mark.parametrize(("item", "rows"), [(4, 8), (2, 16)])
def test_tiles_of_tensors_along_the_rows_fill_sectors(item: int, rows: int) -> None:
    """Stages, rows and warps, of tensors that lie both ways, and of such that all lie along the rows."""
    plain = Facts(50176, 256, 2 * item, 4, staged_bytes=2 * item, item_bytes=item)
    turned = dataclasses.replace(plain, along_rows=True, sector_rows=32 // item)
    both = dataclasses.replace(turned, along_rows=False, both_ways=True)
    own, mixed = (choose(facts, H200) for facts in (turned, both))
    assert choose(plain, H200).tile.num_stages > 1 == own.tile.num_stages == mixed.tile.num_stages
    assert (mixed.tile.xblock, own.tile.xblock) == (rows, 16)
    for schedule in (own, mixed):
        assert threads_elements(schedule) == 32
        assert schedule.num_splits * schedule.tile.num_warps == 16 * H200.num_sm
    chunked = choose(dataclasses.replace(both, cols=192), H200)
    assert chunked.tile.num_stages > 1  # rows that can be read in chunks are loaded ahead
    few = choose(dataclasses.replace(turned, rows=5), H200)
    assert few.tile.xblock == 4


@pytest.mark.parametrize("cols", [96, 160, 192, 768, 1364, 3072, 4096, 6144])
@pytest.mark.parametrize("change", [{"against": True}, {"narrow": True}, {"sector_rows": 16}])
def test_tiles_whose_loads_stall_have_powers_of_two(cols: int, change: dict[str, Any]) -> None:
    schedule = choose(Facts(50176, cols, 4, 4, staged_bytes=4, **change), H200)
    tile = schedule.tile
    assert tile.xblock.bit_count() == tile.num_warps.bit_count() == 1


def test_facts_tell_loads_that_stall() -> None:
    def pair(x: torch.Tensor, dy: torch.Tensor) -> Any:
        return graphs.pair(x, dy)

    def facts(function: Any, *tensors: Any) -> Facts:
        return facts_of(graphs.merged(graphs.only(graphs.traced(function, *tensors))))

    def turned(x: torch.Tensor, dy: torch.Tensor) -> Any:
        return graphs.pair(x.transpose(1, 2).reshape(-1, 256), dy)

    def every_other(x: torch.Tensor, dy: torch.Tensor) -> Any:
        return graphs.pair(x[:, ::2], dy)

    even, odd = (facts(pair, ((4096, n), bf16), ((4096, n), bf16)) for n in (512, 511))
    assert not even.narrow and not odd.narrow  # accesses of odd rows are shifted to a boundary
    assert facts(every_other, ((4096, 1024), bf16), ((4096, 512), bf16)).narrow
    both = facts(turned, ((64, 256, 784), bf16), ((50176, 256), bf16))
    assert both.against and not both.along_rows and not both.narrow
    assert both.sector_rows == 16 and both.both_ways
    most = facts(turned, ((64, 256, 784), f32), ((50176, 256), bf16))
    assert most.along_rows and not most.against and most.both_ways and most.sector_rows == 8

    def all_turned(x: torch.Tensor, dy: torch.Tensor) -> Any:
        return turned(x, dy.transpose(1, 2).reshape(-1, 256))

    alike = facts(all_turned, ((64, 256, 784), f32), ((64, 256, 784), f32))
    assert alike.sector_rows == 8 and not alike.both_ways

    def table(x: torch.Tensor, dy: torch.Tensor) -> Any:
        return graphs.pair(x.t()[None].expand(64, 784, 256).reshape(-1, 256), dy)

    repeated = facts(table, ((256, 784), f32), ((50176, 256), bf16))
    assert repeated.against and repeated.sector_rows == 1  # sectors are found in the cache again
    assert facts(pair, ((4096, 512), bf16), ((4096, 512), bf16)).sector_rows == 1


def test_facts_tell_pieces_from_what_is_read_again() -> None:
    def facts(function: Any, *tensors: Any) -> Facts:
        return facts_of(graphs.merged(graphs.only(graphs.traced(function, *tensors))))

    def pieces(a: torch.Tensor, b: torch.Tensor) -> Any:
        both = torch.cat([a, b], 1)
        return both, both.sum(0)

    halves = facts(pieces, ((4096, 256), bf16), ((4096, 256), bf16))
    assert (halves.load_bytes, halves.staged_bytes, halves.repeated_bytes) == (2, 4, 2)
    assert not halves.narrow and not halves.minor

    def odd(a: torch.Tensor, b: torch.Tensor) -> Any:
        return pieces(a, b[:, 1:])

    odds = facts(odd, ((4096, 257), bf16), ((4096, 256), bf16))
    assert odds.narrow and not odds.minor  # all bytes are read in single elements

    def turned(x: torch.Tensor, y: torch.Tensor, small: torch.Tensor) -> Any:
        whole = torch.cat([small.repeat_interleave(2, 1), x], 1) + y
        return whole, whole.sum(0)

    some = facts(turned, ((4096, 384), bf16), ((4096, 512), bf16), ((4096, 64), bf16))
    assert some.minor and not some.narrow
    wide = facts(turned, ((4096, 384), bf16), ((4096, 512), f32), ((4096, 64), bf16))
    assert wide.narrow and not wide.minor  # tables of other widths


def test_a_program_with_all_rows_of_an_index_has_several_tiles() -> None:
    table = Facts(rows=64, cols=49, load_bytes=4, held_words=3, staged_bytes=4, batch=1568, item_bytes=4)
    assert choose(table, H200).tile.xblock == 8
    assert choose(dataclasses.replace(table, batch=392), H200).tile.xblock > 8


def test_a_row_that_spills_can_be_asked_for() -> None:
    wide = dataclasses.replace(RMS, cols=16384)
    with pytest.raises(TooWide):
        choose(wide, H200)
    assert choose(wide, H200, spill_factor=1.5).r0_block == 16384


def test_more_held_words_take_no_more_elements_per_thread() -> None:
    def per_thread(held_words: int) -> float:
        schedule = choose(dataclasses.replace(RMS, held_words=held_words), H200)
        return schedule.tile.xblock * schedule.r0_block / (schedule.tile.num_warps * 32)

    counts = [per_thread(n) for n in range(2, 12)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_few_rows_are_spread_over_the_device() -> None:
    assert choose(dataclasses.replace(RMS, rows=H200.num_sm), H200).num_splits == H200.num_sm


def test_a_pinned_choice() -> None:
    """Changes with the heuristic, on purpose: so that no shape changes unnoticed."""
    found = {
        (rows, cols): choose(dataclasses.replace(RMS, rows=rows, cols=cols), H200)
        for rows, cols in ((32768, 768), (4096, 4096), (8192, 8192), (1_000_000, 256))
    }
    for (rows, cols), schedule in found.items():
        assert schedule.r0_block == {768: 1024}.get(cols, cols)
        assert schedule.num_splits == {768: 512, 4096: 128, 8192: 132, 256: 528}[cols], (rows, cols)
        assert schedule.tile.num_stages >= 3


def test_fewer_programs_that_take_no_more_turns() -> None:
    """Where the finalisation then has half as many partials, padded to a power of two."""
    assert even(2048, 132) == 128 and even(16384, 528) == 512
    assert even(2080, 130) == 130  # 16 turns of 128 are too few
    assert even(128, 128) == 128 and even(100, 132) == 100 and even(1, 1) == 1
    for tiles, programs in itertools.product((1, 7, 2048, 4097, 100_000), (1, 3, 132, 264, 528)):
        found = even(tiles, min(tiles, programs))
        assert 1 <= found <= programs and -(-tiles // found) == -(-tiles // min(tiles, programs))


def test_wide_light_rows_have_one_program_and_heavy_ones_small_tiles() -> None:
    """docs/tuning.md, "Rows that a program holds"."""
    light = choose(dataclasses.replace(RMS, rows=32768, cols=4096), H200)
    heavy = choose(dataclasses.replace(RMS, rows=32768, cols=4096, held_words=6), H200)
    assert (light.tile.xblock, light.tile.num_stages, light.num_splits) == (2, 3, H200.num_sm)
    assert (heavy.tile.xblock, heavy.tile.num_stages, heavy.num_splits) == (1, 5, H200.num_sm)
    assert choose(dataclasses.replace(RMS, rows=32768, cols=2560), H200).num_splits == 2 * H200.num_sm


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


def test_workload_of_norms() -> None:
    rms = facts_of(graphs.merged(graphs.only(graphs.rms_norm_backward(4096, 512))))
    layer = facts_of(graphs.merged(graphs.only(graphs.layer_norm_backward(4096, 512))))
    assert (rms.rows, rms.cols, rms.load_bytes) == (4096, 512, 4)
    # x_hat, the scaled gradient, weight and dw's accumulator; LayerNorm: dy for db, and db's accumulator.
    assert layer.load_bytes == 4 and (rms.held_words, layer.held_words) == (4, 6)
    wide = facts_of(graphs.merged(graphs.only(graphs.rms_norm_backward(4096, 512, f32, bf16))))
    assert wide.load_bytes == 8


def test_a_schedule_prints_one_choice_per_line() -> None:
    lines = str(choose(RMS, H200)).splitlines()
    assert any(line.startswith("num_splits = ") for line in lines)
    assert all(" = " in line for line in lines)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 1000), st.sampled_from(DEVICES))
@example(1, H200)
@example(2, AMD)
def test_a_finalisation_holds_the_partials_of_any_split_size(split_size: int, device: DeviceInfo) -> None:
    """262,144 programs would make a tile beyond Triton's 1,048,576 elements."""
    schedule = choose(dataclasses.replace(RMS, rows=262_144), device, split_size)
    held = (1 << (schedule.num_splits - 1).bit_length()) * schedule.final_block
    assert held <= device.registers
    assert schedule.num_splits == min(-(-262_144 // split_size), device.registers // 8)


# Columns in blocks, where no reduction needs a whole row.


@pytest.mark.parametrize(
    ("cols", "width"),
    [(96, 32), (160, 32), (384, 128), (576, 64), (608, 32), (720, 240), (768, 256), (1152, 128), (1536, 512)]
    + [(3072, 1024), (4000, 2000), (4096, 2048), (18432, 2048), (50304, 128)]
    + [(cols, cols) for cols in (32, 64, 195, 480, 486, 1000, 1024, 1365, 2048, 2730, 4099, 50257)],
)
def test_blocks_of_columns(cols: int, width: int) -> None:
    """The widest with almost the fewest idle lanes; whole rows if they are as good, or cannot be divided."""
    assert block_of(Facts(8192, cols, load_bytes=4)) == width


def test_no_lane_is_idle_behind_a_narrow_linear() -> None:
    """A GELU's backward with the bias gradient: 512 lanes for 384 columns computed as much as 512 columns."""

    def function(x: Any, dy: Any) -> Any:
        dx = torch.ops.aten.gelu_backward(dy, x)
        return dx, dx.sum(0)

    full = ((200704, 384), bf16)
    region = graphs.only(graphs.traced(function, full, full))
    loops, schedule, (main, _) = graphs.kernels(region)
    facts = facts_of(loops)
    assert (facts.cols * facts.batch, schedule.r0_block) == (384, facts.cols)
    assert "mask" not in main.text
    assert schedule.tile.xblock * schedule.r0_block == 32 * schedule.tile.num_warps * 32
