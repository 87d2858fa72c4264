"""The schedules that `tools/tune.py` tries: what the rules choose, and a grid around it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator

from mixorder.errors import Decline
from mixorder.ir.program import LoopProgram
from mixorder.schedule.constants import FITTED, Constants
from mixorder.schedule.cooperative import ALIGNMENT, MAX_PARTS, SharedWork, choose_shared, shared_workload
from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.persistent import STRATEGIES, Workload, choose, even, final, layouts, workload
from mixorder.schedule.schedule import Schedule, Tile
from mixorder.transform.cooperative import check_shareable, share
from mixorder.transform.reread import reload

SHARE_FROM = 8192  # columns; narrower rows were never faster shared
IN_FLIGHT = range(44 * 1024, 100 * 1024)  # bytes per multiprocessor; fewer and more were never the best
HEAVY = 24  # instructions per element, from which on computing takes its time beside memory
HEAVY_IN_FLIGHT = range(12 * 1024, 100 * 1024)  # then
CHUNKED_SPILL_FACTOR = 1.33  # LayerNorm in bf16, 12288 columns in 3 chunks, compiled for sm_90: 32 bytes


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to run a region. `strategy`: rows are "held", "shared" by several programs, or read "twice"."""

    strategy: str
    program: LoopProgram
    schedule: Schedule


def candidates(program: LoopProgram, device: DeviceInfo) -> list[Candidate]:
    """The heuristic's pick first, then a grid around it, each schedule once."""
    found: dict[str, list[Candidate]] = {"shared": []}
    numbers = workload(program)
    try:
        start = choose(numbers, device)
        found["held"] = [Candidate("held", program, s) for s in held(numbers, device, start)]
    except Decline:
        found["chunked"] = [Candidate("held", program, s) for s in chunked(numbers, device)]
    if int(program.tile_axes[1].size) > SHARE_FROM:
        with contextlib.suppress(Decline):
            check_shareable(program)
            work = shared_workload(program)
            for s in shared(work, device, choose_shared(work, device)):
                found["shared"].append(
                    Candidate("shared", share(program, s.parts, s.tile.xblock, s.period), s)
                )
    if not found.get("held") and not found["shared"]:
        twice = reload(program)
        start = choose(workload(twice), device)
        found["twice"] = [Candidate("twice", twice, s) for s in held(workload(twice), device, start)]
    ordered = (c for name in (*STRATEGIES, "chunked") for c in found.get(name, ()))
    return list(dict.fromkeys(ordered))


def shared(work: SharedWork, device: DeviceInfo, base: Schedule) -> Iterator[Schedule]:
    """Of rows that several programs share: parts, rows per tile, depth and stages."""
    yield base
    for per_sm, xblock, warps, depth, stages in itertools.product(
        (1, 2, 4), (1, 2, 4), (2, 4, 8), (1, 2, 3), (3, 4)
    ):
        for elements in (4096, 8192):
            r0_block = elements // (per_sm * xblock)
            parts = max(2, -(-work.cols // (r0_block - ALIGNMENT * (base.period > 1))))
            if per_sm * warps != 8 or r0_block < 512 or not 2 <= parts <= MAX_PARTS:
                continue
            part_cols = math.ceil(work.cols / parts / ALIGNMENT) * ALIGNMENT
            if elements * work.load_bytes * (stages - 1) > device.shared_memory:
                continue
            yield dataclasses.replace(
                base,
                tile=Tile(xblock, warps, stages),
                r0_block=r0_block,
                parts=-(-work.cols // part_cols),
                part_cols=part_cols,
                depth=depth,
                num_splits=whole(min(per_sm * device.num_sm // parts, -(-work.rows // xblock)), base),
            )


def whole(splits: int, base: Schedule) -> int:
    """So many of each kind of rows (`Schedule.period`)."""
    return max(1, splits // base.period) * base.period


def held(work: Workload, device: DeviceInfo, base: Schedule) -> Iterator[Schedule]:
    """Of rows that one program holds: what the numbers found by hand choose, the finalisation, then a grid
    over what a program can hold, for each way to lay a row over lanes."""
    yield base
    with contextlib.suppress(Decline):
        yield choose(work, device, constants=Constants())
    for block, warps in itertools.product((8, 16, 32), (2, 4, 8)):
        yield dataclasses.replace(base, final_block=min(block, base.r0_block), final_warps=warps)
    for lanes, chunks in layouts(work):
        layout = dataclasses.replace(base, r0_block=lanes, chunks=chunks)
        for tile, per_sm in tiles(work, lanes, chunks):
            count = -(-work.rows // tile.xblock)
            splits = min(-(-per_sm * device.num_sm // work.kept), count)
            splits = whole(splits, base) if base.period > 1 else even(count, splits)
            final_block, final_warps = final(splits, lanes, device, FITTED)
            yield dataclasses.replace(
                layout, tile=tile, num_splits=splits, final_block=final_block, final_warps=final_warps
            )


def chunked(work: Workload, device: DeviceInfo) -> Iterator[Schedule]:
    """Of a row that the heuristic does not hold: chunks, where with them next to nothing is spilled."""
    constants = dataclasses.replace(FITTED, chunk_saving=0.0)
    with contextlib.suppress(Decline):
        start = choose(work, device, spill_factor=CHUNKED_SPILL_FACTOR, constants=constants)
        yield from (s for s in held(work, device, start) if s.chunks > 1)


def tiles(work: Workload, lanes: int, chunks: int) -> Iterator[tuple[Tile, int]]:
    """Tiles of rows of so many lanes, and how many programs to run on a multiprocessor."""
    for xblock, warps in itertools.product((2**i for i in range(15)), (1, 2, 4, 8, 16, 32)):
        elements = xblock * lanes
        per_thread = elements // (warps * 32)
        # Accesses of fewer than 4 elements of a chunk are too narrow.
        least = 8 if work.instructions < HEAVY else 4
        fits_a_thread = least <= per_thread <= 40 and per_thread >= 4 * chunks
        if xblock > work.rows or not 80 * least <= elements <= 16384 or not fits_a_thread:
            continue
        for stages, per_sm in itertools.product(range(1, 7), (1, 2, 4, 8, 16)):
            staged = per_sm * elements * work.staged_bytes * (stages - 1)
            in_flight = per_sm * xblock * work.cols * work.load_bytes * (stages - 1)
            if staged > 225_000 or per_sm * warps < 4:
                continue
            # Many warps hide a load's latency themselves: one stage.
            if work.instructions >= HEAVY:
                wanted = per_sm * warps <= 64 and (stages == 1 or in_flight in HEAVY_IN_FLIGHT)
            else:
                wanted = per_sm * warps <= 16 and in_flight in IN_FLIGHT
            if wanted:
                yield Tile(xblock, warps, stages), per_sm
