"""Choose a schedule from plain numbers: rows, columns, live tiles and the device. No graph, no timing.

The row-resident kernel is memory-bound as long as enough bytes are on their way. On the H200, over RMSNorm
and LayerNorm in bf16 and fp32 from 2048x2048 to 4194304x64 (`tools/tune.py`, up to 124 schedules each), the
best schedules had these in common, whatever the shape:

- 32 KB of tiles resident per multiprocessor, and twice that in flight, counting *useful* bytes only (lanes
  beyond a row's end load nothing): three stages, or four where rows fill their power of two badly;
- 32 elements per thread where the registers allow it, so that a row stays within one warp or few and its
  reduction needs few barriers;
- the fewer programs per multiprocessor the fewer partials to finalise, but several even out the tail:
  4 where each gets many tiles, 1 where few.

Raises `Decline` where no strategy fits.
"""

from __future__ import annotations

import dataclasses
import math

from ..errors import Decline, DeclineReason
from ..loops.ir import AxisClass, Load, LoopProgram, PartialAccumulate
from .device import DeviceInfo
from .schedule import Schedule, Tile

MAX_RESIDENT_COLS = 8192  # wider rows do not stay in one program's registers
RESIDENT_BYTES = 32 * 1024  # loaded per multiprocessor and stage
PROGRAMS_PER_SM = 4
MIN_TILES_PER_PROGRAM = 8  # H200, LayerNorm 2048x2048 bf16: 4 programs of 4 tiles 64%, 1 of 4 70%
MAX_REGISTERS = 224  # of 255: the estimate leaves out addresses and what the compiler keeps twice
REGISTER_OVERHEAD = 24  # registers per thread that do not grow with the tile
MAX_WARPS = 32


@dataclasses.dataclass(frozen=True)
class Workload:
    """What the heuristic looks at: extents, and per element of the space, what is read and held.

    `rows` (of symbolic ones, the hint) x `cols` at each of `kept` places; a program has one place.

    `load_bytes`: bytes of full-size tensors that one element loads. `live_tiles`: full-size tiles that a
    program holds in registers at once: what it loads, accumulators, and hoisted column vectors.
    """

    rows: int
    cols: int
    load_bytes: int
    live_tiles: int
    kept: int = 1


def workload(program: LoopProgram) -> Workload:
    """Read the numbers off a merged program."""
    row, kept = program.axis(AxisClass.ROW), program.axis(AxisClass.KEPT)
    col = program.axis(AxisClass.COLUMN) or program.axis(AxisClass.COMMON)
    assert row is not None and col is not None
    main = program.nests[0]
    tiles = [s for s in main.body if isinstance(s, Load) and col.symbol in s.index.free_symbols]
    columns = [s for s in main.preamble if isinstance(s, Load) and s.index.free_symbols]
    partials = [s for s in main.body if isinstance(s, PartialAccumulate)]
    return Workload(
        program.hint(row.size),
        int(col.size),
        load_bytes=sum(program.buffer(s.buffer).dtype.itemsize for s in tiles),
        live_tiles=len(tiles) + len(columns) + sum(1 + p.compensated for p in partials),
        kept=1 if kept is None else int(kept.size),
    )


def choose(work: Workload, device: DeviceInfo, split_size: int = 0, autotune: bool = False) -> Schedule:
    """The row-resident schedule for a workload; `split_size` rows per program if that is not 0."""
    if work.cols > MAX_RESIDENT_COLS:
        raise Decline(DeclineReason.ROW_TOO_WIDE, f"{work.cols} columns, at most {MAX_RESIDENT_COLS} fit")
    r0_block = _next_power_of_2(work.cols)
    if (work.live_tiles + 1) * r0_block > 5 * device.registers // 4:
        raise Decline(
            DeclineReason.TOO_MANY_LIVE_TILES,
            f"{work.live_tiles} tiles of {work.cols} columns in {device.registers} registers",
        )
    tile, per_sm = _tile(work, r0_block, device)
    tiles = -(-work.rows // tile.xblock)
    num_splits = (
        -(-work.rows // split_size) if split_size else min(tiles, -(-per_sm * device.num_sm // work.kept))
    )
    return Schedule(
        tile,
        r0_block,
        num_splits,
        final_block=min(16, r0_block),
        final_warps=4,
        alternatives=_neighbours(tile, r0_block, device) if autotune else (),
    )


def _tile(work: Workload, r0_block: int, device: DeviceInfo) -> tuple[Tile, int]:
    """The tile, and how many programs share a multiprocessor."""
    resident = 1 << round(math.log2(RESIDENT_BYTES / max(1, work.load_bytes)))
    few_tiles = work.rows * work.kept * r0_block < MIN_TILES_PER_PROGRAM * resident * device.num_sm
    per_sm = 1 if few_tiles else max(1, min(PROGRAMS_PER_SM, resident // r0_block))
    elements = resident // per_sm
    xblock = max(1, elements // r0_block)
    while xblock > 1 and (xblock > work.rows or -(-work.rows // xblock) * work.kept < device.num_sm):
        xblock //= 2  # too few rows: rather more programs than larger tiles
    elements = xblock * r0_block
    threads = elements // _elements_per_thread(work, elements)
    num_warps = max(1, min(MAX_WARPS, threads // device.warp_size))
    # H200, 2048x2048 bf16: with few tiles a fourth stage gives RMSNorm 72% -> 78%, LayerNorm 70% -> 72%.
    stages = _stages(work, elements, r0_block, per_sm, device, at_least=4 if few_tiles else 3)
    return Tile(xblock, num_warps, stages), per_sm


def _elements_per_thread(work: Workload, elements: int) -> int:
    """The most that a thread's registers hold, down to 4; 32-bit registers, one per element and tile."""
    count = 32
    while count > 4 and count * (work.live_tiles + 1) + REGISTER_OVERHEAD > MAX_REGISTERS:
        count //= 2
    return min(count, elements)


def _stages(
    work: Workload, elements: int, r0_block: int, per_sm: int, device: DeviceInfo, at_least: int
) -> int:
    """Row tiles in use or in flight, to 4: enough for twice `RESIDENT_BYTES`, and no more than fit."""
    useful = per_sm * elements * work.load_bytes * work.cols // r0_block
    stages = max(at_least, 1 + min(3, -(-2 * RESIDENT_BYTES // max(1, useful))))
    # Triton keeps stages - 1 tiles of each pipelined load in shared memory.
    while stages > 1 and elements * work.load_bytes * (stages - 1) > device.shared_memory:
        stages -= 1
    return stages


def _neighbours(tile: Tile, r0_block: int, device: DeviceInfo) -> tuple[Tile, ...]:
    """For the autotuner: half and twice the rows or the warps, one stage more or less."""
    near = [
        dataclasses.replace(tile, num_warps=tile.num_warps * 2),
        dataclasses.replace(tile, num_warps=tile.num_warps // 2),
        dataclasses.replace(tile, xblock=tile.xblock // 2, num_warps=tile.num_warps // 2),
        dataclasses.replace(tile, xblock=tile.xblock * 2, num_warps=tile.num_warps * 2),
        dataclasses.replace(tile, num_stages=tile.num_stages - 1),
        dataclasses.replace(tile, num_stages=tile.num_stages + 1),
    ]
    fits = [
        t
        for t in near
        if t.xblock >= 1
        and 1 <= t.num_warps <= MAX_WARPS
        and 2 <= t.num_stages <= 5
        and 4 <= t.xblock * r0_block // (t.num_warps * device.warp_size) <= 32
    ]
    return tuple(dict.fromkeys(fits))


def _next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
