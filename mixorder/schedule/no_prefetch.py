"""Tiles that prefetch nothing: where prefetching cannot be, or would reload what caches have."""

from __future__ import annotations

import dataclasses

from .device import DeviceInfo
from .facts import RowFacts
from .limits import MAX_STAGES, Tile, floor_power_of_2, registers_of
from .plan import next_power_of_2

# Programs of each multiprocessor, from which on nothing is prefetched.
MANY_PROGRAMS = 256


def without_prefetch(facts: RowFacts, tile: Tile, device: DeviceInfo) -> Tile:
    """The tile without prefetching, and with enough warps instead, where prefetches cannot be, fill shared
    memory with what the first-level cache has anyway, or where other programs hide a program's loads."""
    if is_latency_bound(facts):
        return _with_many_warps(facts, tile, device)
    if reloads(facts, tile):
        return _of_tables(facts, tile, device)
    many = facts.batch >= MANY_PROGRAMS * device.num_sm
    return dataclasses.replace(tile, num_stages=1) if many else tile


def _of_tables(facts: RowFacts, tile: Tile, device: DeviceInfo) -> Tile:
    """A tile that prefetches no table (docs/lab/tuning.md, "Tables that rows share")."""
    few, most_warps = 8, 8  # elements of a thread with few registers, and warps of a program, at most
    lanes = tile.lanes
    in_chunks = lanes != next_power_of_2(lanes)  # more warps would narrow the accesses of each
    if facts.loads.cached_table or in_chunks or registers_of(facts, few, 1) > 88:
        warps = 24 if facts.loads.cached_table else 16
        return dataclasses.replace(tile, num_stages=1, per_sm=max(tile.per_sm, warps // tile.num_warps))
    each, warps = (few, 24) if lanes <= most_warps * few * device.warp_size else (32, 8)
    xblock = max(1, min(tile.xblock, most_warps * each * device.warp_size // lanes))
    num_warps = max(1, floor_power_of_2(xblock * lanes // (each * device.warp_size)))
    return Tile(xblock, lanes, num_warps, 1, max(1, warps // num_warps))


def reloads(facts: RowFacts, tile: Tile) -> bool:
    """Whether prefetches would take shared memory for what the first-level cache has anyway."""
    repeated = facts.loads.repeated_bytes >= 3 * facts.load_bytes
    return facts.loads.cached_table or (repeated and tile.num_stages < MAX_STAGES - 1)


def is_latency_bound(facts: RowFacts) -> bool:
    """Whether a step waits for its own loads, even if those of later steps have been issued."""
    if facts.lies.sector_rows > 1:  # chunks of mixed layouts are prefetched well
        return not facts.lies.mixed_layouts or facts.cols == next_power_of_2(facts.cols)
    return facts.loads.narrow or facts.lies.minority_along_rows


def _with_many_warps(facts: RowFacts, tile: Tile, device: DeviceInfo) -> Tile:
    """Small tiles without prefetching: many warps hide what loads take. Where tensors lie along the rows, a
    tile has as many as fill a sector; with fewer, each element moves one."""
    if (rows := facts.lies.sector_rows) > 1:
        xblock, per_thread, most = rows if facts.lies.mixed_layouts else max(rows, 16), 32, device.max_warps
    else:
        xblock, per_thread, most = tile.xblock, 8, 1
    most_rows = per_thread * device.warp_size * most // tile.lanes
    xblock = min(xblock, floor_power_of_2(most_rows), floor_power_of_2(facts.rows))
    warps = xblock * tile.lanes // (per_thread * device.warp_size)
    num_warps = max(1, min(device.max_warps, floor_power_of_2(warps)))
    return Tile(xblock, tile.lanes, num_warps, 1, max(1, 24 // num_warps))
