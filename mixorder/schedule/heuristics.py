"""Choose a schedule from plain numbers: rows, columns, live tiles and the device. No graph, no timing.

Raises `Decline` where no strategy fits.
"""

from __future__ import annotations

import dataclasses

from ..errors import Decline, DeclineReason
from ..loops.ir import AxisClass, Load, LoopProgram, PartialAccumulate, Store
from .device import DeviceInfo
from .schedule import Schedule, Tile

MAX_RESIDENT_COLS = 8192  # wider rows do not stay in one program's registers


@dataclasses.dataclass(frozen=True)
class Workload:
    """What the heuristic looks at: extents, and per element of the space, what is read and kept.

    `load_bytes`: bytes of full-size tiles that one element loads; `num_loads` of them; `num_partials`
    accumulators of `accumulator_bytes` each.
    """

    rows: int
    cols: int
    num_loads: int
    load_bytes: int
    num_stores: int
    num_partials: int
    accumulator_bytes: int


def workload(program: LoopProgram) -> Workload:
    """Read the numbers off a merged program."""
    row, col = program.axis(AxisClass.ROW), program.axis(AxisClass.COLUMN)
    assert row is not None and col is not None
    both = {row.symbol, col.symbol}
    main = program.nests[0]
    loads = [s for s in main.body if isinstance(s, Load) and both <= s.index.free_symbols]
    partials = [s for s in main.body if isinstance(s, PartialAccumulate)]
    return Workload(
        int(row.size),
        int(col.size),
        num_loads=len(loads),
        load_bytes=sum(program.buffer(s.buffer).dtype.itemsize for s in loads),
        num_stores=sum(isinstance(s, Store) and both <= s.index.free_symbols for s in main.body),
        num_partials=len(partials),
        accumulator_bytes=sum(program.buffer(s.buffer).dtype.itemsize for s in partials),
    )


def choose(
    work: Workload, device: DeviceInfo, split_size: int = 0, autotune: bool = False
) -> Schedule:
    """The row-resident schedule for a workload; `split_size` rows per program if that is not 0."""
    if work.cols > MAX_RESIDENT_COLS:
        raise Decline(
            DeclineReason.ROW_TOO_WIDE, f"{work.cols} columns, at most {MAX_RESIDENT_COLS} fit"
        )
    r0_block = _next_power_of_2(work.cols)
    tile = _tile(work, r0_block, device)
    tiles = -(-work.rows // tile.xblock)
    per_sm = 2 if tile.num_warps <= 8 else 1
    num_splits = -(-work.rows // split_size) if split_size else min(tiles, per_sm * device.num_sm)
    final_block = min(16, r0_block)
    return Schedule(
        tile,
        r0_block,
        max(1, num_splits),
        final_block,
        final_warps=4,
        alternatives=_neighbours(tile) if autotune else (),
    )


def _tile(work: Workload, r0_block: int, device: DeviceInfo) -> Tile:
    xblock = max(1, min(4096 // r0_block, _next_power_of_2(work.rows)))
    elements = xblock * r0_block
    num_warps = min(16, max(1, elements // (16 * device.warp_size)))
    return Tile(xblock, num_warps, _stages(work, elements, device))


def _stages(work: Workload, elements: int, device: DeviceInfo) -> int:
    """Row tiles in flight: three if their asynchronous copies fit in shared memory, else fewer."""
    budget = device.shared_memory // 2
    return max(1, min(3, budget // max(1, elements * work.load_bytes)))


def _neighbours(tile: Tile) -> tuple[Tile, ...]:
    """Tiles half and twice as large in rows and warps, and one stage more or less."""
    near = [
        dataclasses.replace(tile, num_warps=w) for w in (tile.num_warps // 2, tile.num_warps * 2)
    ]
    near += [dataclasses.replace(tile, xblock=x) for x in (tile.xblock // 2, tile.xblock * 2)]
    near += [
        dataclasses.replace(tile, num_stages=s) for s in (tile.num_stages - 1, tile.num_stages + 1)
    ]
    return tuple(t for t in near if 1 <= t.num_warps <= 32 and t.xblock >= 1 and t.num_stages >= 1)


def _next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
