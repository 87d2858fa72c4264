"""Tiles that prefetch nothing: where prefetching cannot be, or would reload what caches have."""

from __future__ import annotations

import dataclasses

from .device import DeviceInfo
from .facts import RowFacts
from .limits import MAX_STAGES, Tile, floor_power_of_2, registers_of
from .plan import next_power_of_2

# What prefetches would stage, as a multiple of what streams in, from which on nothing is prefetched.
REPEATED_LOADS = 3
# Then, elements of a thread and warps of a multiprocessor, where a thread has few registers by estimate and a
# program at most so many warps, and in wider rows (docs/lab/tuning.md, "Tables that rows share").
FEW, FEW_REGISTERS, MOST_WARPS = (8, 24), 88, 8
WIDE = (32, 8)
# Warps of a multiprocessor, of other tiles: of a table that the first-level cache holds, and else.
CACHED_WARPS, OTHER_WARPS = 24, 16
# Programs of each multiprocessor, from which on nothing is prefetched.
MANY_PROGRAMS = 32
# Warps of a multiprocessor, where many hide what loads take instead of prefetches, and elements of a
# thread: of tiles with narrow accesses, and of tiles whose loads lie in different directions. What is
# narrower than 4 bytes is not prefetched, and what has 4 is copied element by element.
LATENCY_BOUND_WARPS, LATENCY_BOUND_ELEMENTS = 24, 8
# The same of tiles in which a tensor lies along the rows: with fewer rows than fill a sector, each element
# moves one.
SECTOR_ELEMENTS, ALONG_ROWS = 32, 16


def without_prefetch(
    facts: RowFacts, tile: Tile, per_sm: int, lanes: int, device: DeviceInfo
) -> tuple[Tile, int]:
    """The tile without prefetching, and with enough warps instead, where prefetches cannot be, fill shared
    memory with what the first-level cache has anyway, or where other programs hide a program's loads."""
    if is_latency_bound(facts):
        return _with_many_warps(facts, tile, lanes, device)
    if reloads(facts, tile):
        return _of_tables(facts, tile, per_sm, lanes, device)
    if facts.batch >= MANY_PROGRAMS * device.num_sm:
        tile = dataclasses.replace(tile, num_stages=1)
    return tile, per_sm


def _of_tables(facts: RowFacts, tile: Tile, per_sm: int, lanes: int, device: DeviceInfo) -> tuple[Tile, int]:
    """A tile that prefetches no table, and how many programs share a multiprocessor."""
    in_chunks = lanes != next_power_of_2(lanes)  # more warps would narrow the accesses of each
    if facts.loads.cached_table or in_chunks or registers_of(facts, FEW[0], 1) > FEW_REGISTERS:
        warps = CACHED_WARPS if facts.loads.cached_table else OTHER_WARPS
        return dataclasses.replace(tile, num_stages=1), max(per_sm, warps // tile.num_warps)
    each, warps = FEW if lanes <= MOST_WARPS * FEW[0] * device.warp_size else WIDE
    xblock = max(1, min(tile.xblock, MOST_WARPS * each * device.warp_size // lanes))
    num_warps = max(1, floor_power_of_2(xblock * lanes // (each * device.warp_size)))
    return Tile(xblock, num_warps, 1), max(1, warps // num_warps)


def reloads(facts: RowFacts, tile: Tile) -> bool:
    """Whether prefetches would take shared memory for what the first-level cache has anyway."""
    repeated = facts.loads.repeated_bytes >= REPEATED_LOADS * facts.load_bytes
    return facts.loads.cached_table or (repeated and tile.num_stages < MAX_STAGES - 1)


def is_latency_bound(facts: RowFacts) -> bool:
    """Whether a step waits for its own loads, even if those of later steps have been issued."""
    if facts.lies.sector_rows > 1:  # chunks of mixed layouts are prefetched well
        return not facts.lies.mixed_layouts or facts.cols == next_power_of_2(facts.cols)
    return facts.loads.narrow or facts.lies.minority_along_rows


def _with_many_warps(facts: RowFacts, tile: Tile, lanes: int, device: DeviceInfo) -> tuple[Tile, int]:
    """Small tiles without prefetching; where tensors lie along the rows, of as many as fill a sector."""
    if facts.lies.sector_rows > 1:
        xblock = (
            facts.lies.sector_rows if facts.lies.mixed_layouts else max(facts.lies.sector_rows, ALONG_ROWS)
        )
        per_thread, most = SECTOR_ELEMENTS, device.max_warps
    else:
        xblock, per_thread, most = tile.xblock, LATENCY_BOUND_ELEMENTS, 1
    most_rows = per_thread * device.warp_size * most // lanes
    xblock = min(xblock, floor_power_of_2(most_rows), floor_power_of_2(facts.rows))
    warps = xblock * lanes // (per_thread * device.warp_size)
    num_warps = max(1, min(device.max_warps, floor_power_of_2(warps)))
    return Tile(xblock, num_warps, 1), max(1, LATENCY_BOUND_WARPS // num_warps)
