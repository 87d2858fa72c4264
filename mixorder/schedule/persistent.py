"""Choose a plan from plain numbers: rows, columns, live tiles and the device. No graph, no timing.

A persistent kernel is memory-bound as long as enough bytes are resident and in flight per multiprocessor. The
plan meets these targets with as few warps per row and as few programs as possible. Bytes, warps and programs
are those of a multiprocessor, so that a device with more of them gets more programs, and not different ones.
"""

from __future__ import annotations

import functools
import math

from ..errors import Decline, DeclineReason
from ..ir.hardware import ACCESS, ASYNC_BYTES, MAX_REGISTERS, SECTOR
from .device import DeviceInfo
from .facts import RowFacts
from .finalisation import final, most_partials
from .limits import (
    BUSY_INSTRUCTIONS,
    ELEMENTS_PER_THREAD,
    MAX_STAGES,
    NOT_SPILLED,
    WARPS_PER_SM,
    Tile,
    elements_of,
    floor_power_of_2,
    registers_of,
    spilled,
)
from .no_prefetch import is_latency_bound, reloads, without_prefetch
from .plan import Launch, Plan, SecondStage, TileOrder, Walk, next_power_of_2

# These and the numbers below were fitted to sweeps of norms (docs/lab/tuning.md, "Constants of norms"), as
# are those of `cooperative.py` and `finalisation.py`.
# Of row tiles, loaded per multiprocessor in one of `num_stages`. Lanes beyond a row load no bytes.
RESIDENT_BYTES = 32 * 1024
# Programs of a multiprocessor, at most. Several even out the tail; fewer leave fewer partials to finalise.
PROGRAMS_PER_SM = 4
LEAST_CHUNK = 512  # columns
MAX_COLS = 16384  # an accumulator of a wider row does not stay in one program's registers
# Estimated registers of a thread at most, where rows are only added up; with more, or where a single program
# would have a multiprocessor, a program has no more warps than a row fills.
SUM_REGISTERS = 225
BUSY_BLOCK = 1024  # columns of a block at most, where computing takes longer than memory
# From so many bytes of an element in sectors that other programs read as well, nothing is evicted first.
SHARED_BYTES = 6


@functools.cache
def layouts(facts: RowFacts) -> tuple[tuple[int, int], ...]:
    """The layouts of a row: its lanes, and the number of chunks, each a power of two; a single chunk first.

    More chunks are listed only if they need fewer lanes. Rows that are shifted (`period`: masks at both ends)
    have only a single chunk.
    """
    size = next_power_of_2(facts.cols)
    candidates = [(size, 1)]
    while (
        facts.alignment.period == 1
        and (size := size // 2) >= _two_sectors(facts)
        and (chunks := -(-facts.cols // size)) <= 8  # each has its own code
    ):
        if chunks * size < candidates[-1][0]:
            candidates.append((chunks * size, chunks))
    return tuple(candidates)


def lanes_of(facts: RowFacts) -> tuple[int, int]:
    """The layout to choose: that of the fewest lanes that fits a thread and saves enough over one chunk."""
    first, *chunked = layouts(facts)
    least, most = (256, MAX_REGISTERS) if _is_narrowed(facts) else (LEAST_CHUNK, NOT_SPILLED)
    for lanes, chunks in reversed(chunked):
        if lanes // chunks >= least and registers_of(facts, chunks * _per_chunk(facts), chunks) <= most:
            return lanes, chunks
    return first


def _is_narrowed(facts: RowFacts) -> bool:
    """Whether a thread has fewer elements of a chunk than the narrowest tensor's accesses of 16 bytes have,
    since there are wider tensors, and at least three in all."""
    widest, narrowest = facts.loads.widest_bytes, facts.item_bytes
    return widest > narrowest and facts.load_bytes > widest + narrowest and facts.cols <= 4096


def _per_chunk(facts: RowFacts) -> int:
    """A thread's elements of a chunk: as many as an access of 16 bytes has of the narrowest tensor, or of the
    widest one."""
    return ACCESS // facts.loads.widest_bytes if _is_narrowed(facts) else facts.per_access


def _two_sectors(facts: RowFacts) -> int:
    """Columns of the narrowest full tensor."""
    return 2 * SECTOR // facts.item_bytes


@functools.cache
def block_of(facts: RowFacts) -> int:
    """The columns of a block, for programs that need not have a whole row: the widest of those with almost
    the fewest idle lanes. All columns where no divisor makes a good block."""
    access = facts.per_access
    most = min(BUSY_BLOCK if _is_computing(facts) else 2048, facts.cols)
    widths = range(_two_sectors(facts), most + 1, access)
    lanes = {n: next_power_of_2(n) * (facts.cols // n) for n in widths if facts.cols % n == 0}
    if not lanes:
        return facts.cols
    return max(n for n in lanes if lanes[n] <= 17 / 16 * min(lanes.values()))


def choose(
    facts: RowFacts,
    device: DeviceInfo,
    split_size: int = 0,
    spill_factor: float = 1.0,
) -> Plan:
    """The plan of a persistent kernel, with `split_size` rows per program if that is not 0.

    `spill_factor`: how many times the device's registers a row may take. Raises `Decline` beyond that.
    """
    if facts.cols > MAX_COLS:
        detail = f"{facts.cols} columns, and one program holds at most {MAX_COLS}"
        raise Decline(DeclineReason.ROW_TOO_WIDE, detail)
    r0_block, chunks = lanes_of(facts)
    if facts.held.words * r0_block + r0_block // chunks > spill_factor * device.registers:
        detail = f"{facts.held.words} tiles of {facts.cols} columns in {device.registers} registers"
        raise Decline(DeclineReason.TOO_MANY_LIVE_TILES, detail)
    tile = _tile(facts, r0_block, device, chunks)
    if chunks == 1 and _only_sums(facts, tile, device):
        tile = _of_sums(facts, r0_block, device)
    tile = without_prefetch(facts, tile, device)
    tiles = -(-facts.rows // tile.xblock)
    # No more programs than are resident at once: a second wave of them would be as long as the first.
    at_once = max(1, tile.per_sm * device.num_sm // facts.batch)
    num_splits = min(-(-facts.rows // split_size), most_partials(device)) if split_size else 0
    num_splits = num_splits or min(tiles, at_once)
    alignment = facts.alignment
    period = (
        alignment.period if alignment.period <= at_once and facts.cols + alignment.slack <= r0_block else 1
    )
    if period > 1 and not split_size:
        # Half as many would leave multiprocessors idle.
        num_splits *= 2 if num_splits % period and 2 * num_splits % period == 0 else 1
    num_splits = (-(-num_splits // period) if split_size else max(1, num_splits // period)) * period
    second = final(num_splits, next_power_of_2(facts.cols), device)
    dependent = device.overlaps and facts.final.numbered
    return Plan(
        (
            Walk(split=num_splits, tile=tile.xblock, period=period),
            Walk(unroll=chunks, tile=r0_block // chunks),
        ),
        Launch(tile.num_warps, tile.num_stages, dependent=dependent),
        SecondStage(*second, skippable=facts.final.finishable),
        order=TileOrder(keeps=facts.loads.shared_bytes >= SHARED_BYTES),
    )


def _tile(facts: RowFacts, r0_block: int, device: DeviceInfo, chunks: int) -> Tile:
    """The tile of a program that prefetches."""
    # Tiles are powers of two, and never larger than was measured: twice the bytes take twice the registers.
    scale = min(1.0, 2.0 ** round(math.log2(device.bytes_under_way)))
    resident = elements_of(scale * RESIDENT_BYTES, facts.load_bytes)
    # With few tiles a multiprocessor gets one program, which leaves the fewest partials; smaller tiles start
    # sooner and spread evenly.
    few_tiles = facts.rows * facts.batch * r0_block < 8 * resident * device.num_sm
    # One program with small tiles is better for wide rows, too, but with dependent reductions, programs hide
    # each other's barriers.
    wide = chunks == 1 and facts.cols * facts.load_bytes >= 8192 and facts.levels <= 1
    light = facts.held.words <= 4
    small = few_tiles or (wide and not light and facts.item_bytes == 2)
    share = 0.5 if small else 1.0
    resident = max(1, int(share * resident))
    per_sm = 1 if small else min(PROGRAMS_PER_SM, floor_power_of_2(resident // r0_block))
    # With chunks, two are better.
    per_sm = 1 if per_sm == 2 and wide else per_sm
    xblock = floor_power_of_2(resident // per_sm // r0_block)
    if xblock >= 4 and light and not (few_tiles or _is_computing(facts)):
        xblock //= 2  # and one stage more
    while xblock > 1 and (xblock > facts.rows or -(-facts.rows // xblock) * facts.batch < device.num_sm):
        xblock //= 2  # too few rows: more programs instead of larger tiles
    elements = xblock * r0_block
    per_thread = _elements_per_thread(facts, elements)
    min_threads = share * WARPS_PER_SM * device.warp_size
    while per_thread > 8 and per_sm * elements < per_thread * min_threads:
        per_thread //= 2
    if chunks > 1:
        per_thread = chunks * _per_chunk(facts)
        few = per_sm * elements < per_thread * 4 * device.warp_size  # warps: accesses get narrower
        if few and per_thread // (2 * chunks) * facts.item_bytes >= ASYNC_BYTES:
            per_thread //= 2
    num_warps = max(1, min(device.max_warps, elements // per_thread // device.warp_size))
    per_thread = -(-elements // (num_warps * device.warp_size))
    registers = registers_of(facts, per_thread, chunks) * num_warps * device.warp_size
    per_sm = max(1, min(per_sm, device.registers // registers))
    return Tile(xblock, r0_block, num_warps, _stages(facts, elements, r0_block, per_sm, device), per_sm)


def _only_sums(facts: RowFacts, tile: Tile, device: DeviceInfo) -> bool:
    """Whether rows are only added up, by a single program on a multiprocessor or with too few registers."""
    moved = facts.lies.along_rows or facts.alignment.period > 1
    if facts.levels or moved or is_latency_bound(facts) or reloads(facts, tile):
        return False
    elements = -(-tile.xblock * tile.lanes // (tile.num_warps * device.warp_size))
    return tile.per_sm == 1 or registers_of(facts, elements, 1) > SUM_REGISTERS


def _of_sums(facts: RowFacts, lanes: int, device: DeviceInfo) -> Tile:
    """A tile of as few warps as a row fills."""
    elements = ELEMENTS_PER_THREAD
    while elements > facts.per_access and registers_of(facts, elements, 1) > SUM_REGISTERS:
        elements //= 2
    least = WARPS_PER_SM // (PROGRAMS_PER_SM * facts.batch)
    num_warps = min(device.max_warps, max(1, least, lanes // (elements * device.warp_size)))
    xblock = max(1, elements * num_warps * device.warp_size // lanes)
    while xblock > 1 and -(-facts.rows // xblock) * facts.batch < device.num_sm:
        xblock //= 2
    per_sm = max(1, WARPS_PER_SM // num_warps)
    stages = min(MAX_STAGES - 1, _stages_that_fit(facts, per_sm * xblock * lanes, device))
    return Tile(xblock, lanes, num_warps, stages, per_sm)


def _elements_per_thread(facts: RowFacts, elements: int) -> int:
    """The most that a thread's registers allow; 4 at least."""
    count = ELEMENTS_PER_THREAD
    while count > 4 and spilled(facts, count, 1):
        count //= 2
    return min(count, elements)


def _is_computing(facts: RowFacts) -> bool:
    """Whether computing takes longer than memory, and no reduction along a row waits in between."""
    return facts.levels == 0 and facts.instructions >= BUSY_INSTRUCTIONS


def _stages(facts: RowFacts, elements: int, r0_block: int, per_sm: int, device: DeviceInfo) -> int:
    """The `num_stages`: row tiles in use or in flight, at most `MAX_STAGES`, and no more than fit. The bytes
    in flight are as close as possible to the target, because more are as bad as fewer."""
    useful = per_sm * elements * facts.load_bytes * facts.cols // r0_block
    wanted = int(device.bytes_under_way * 2 * RESIDENT_BYTES)
    if per_sm == 1 and facts.load_bytes > 2 * facts.item_bytes:
        wanted = wanted * 5 // 4
    most = MAX_STAGES if per_sm == 1 else MAX_STAGES - 1
    stages = max(3, min(most, 1 + round(wanted / max(1, useful))))
    return min(stages, _stages_that_fit(facts, per_sm * elements, device))


def _stages_that_fit(facts: RowFacts, elements: int, device: DeviceInfo) -> int:
    """The most stages for `elements` in all programs of a multiprocessor. Triton keeps one tile less in
    shared memory than there are stages."""
    return 1 + device.shared_memory // max(1, elements * facts.prefetched_bytes)
