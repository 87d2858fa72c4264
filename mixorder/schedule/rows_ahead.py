"""How many programs of a tile's kernel compute values of whole rows, and how far ahead of the tiles."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..errors import TooWide
from ..ir.program import Nest
from .device import H200, DeviceInfo
from .schedule import Schedule, next_power_of_2

# RMSNorm's backward and MXFP8 both ways, H100, 16384x4096 (docs/tuning.md, section 52). Tiles ahead for each
# multiprocessor, of which 5 run at once: 3 212 us, 4 193, 5 188, 6 192. Rows of a program, with 4 tiles
# ahead: 1 195 us, 2 189, 4 193; 8 411 in a prototype with 185 for 4. Registers of a thread: 80 215, 96 188,
# 112 197.
TILES_AHEAD, ROWS, REGISTERS = 5, 4, 96
MOST_PER_THREAD = 128  # elements of a program's rows


@dataclasses.dataclass(frozen=True)
class Groups:
    """Numbers of programs. A group has `values` programs for values, of `rows` rows in all, and `tiles` for
    the tiles of as many rows. `row_tiles`: groups of tiles in all. `needed`: programs for values in all."""

    rows: int
    values: int
    tiles: int
    row_tiles: int
    needed: int

    @property
    def programs(self) -> int:
        """Of each group."""
        return self.values + self.tiles


def row_axes_of(ahead: Nest | None, sizes: Sequence[int]) -> int:
    """How many of the first axes, of these sizes, are the rows of what is computed ahead; 0 if nothing is."""
    if ahead is None:
        return 0
    rows = int(ahead.loops[0].size)
    return next(k for k in range(1, len(sizes)) if math.prod(sizes[:k]) == rows)


def groups_of(sizes: Sequence[int], row_axes: int, schedule: Schedule) -> Groups:
    """The groups of a kernel over axes of these sizes, of which the first ones are rows."""
    tiles = [-(-n // extent) for n, extent in zip(sizes, schedule.extents, strict=True)]
    rows = math.prod(schedule.extents[:row_axes])
    needed = -(-math.prod(sizes[:row_axes]) // schedule.ahead_rows)
    values = rows // schedule.ahead_rows
    return Groups(rows, values, math.prod(tiles[row_axes:]), math.prod(tiles[:row_axes]), needed)


def with_rows_ahead(schedule: Schedule, sizes: Sequence[int], row_axes: int, device: DeviceInfo) -> Schedule:
    """A tile's schedule with programs for the values of rows. Raises `TooWide` for rows that these do not
    hold, for tiles whose rows do not follow one another, and for devices whose programs cannot wait."""
    if not device.exchanges:
        raise TooWide(1, f"on a {device.name}, programs do not exchange values")
    whole = [extent == n for n, extent in zip(sizes, schedule.extents, strict=True)]
    if not all(whole[1:row_axes]) or not all(whole[row_axes + 1 :]):
        raise TooWide(1, "rows or columns of a tile that are apart")
    cols = next_power_of_2(math.prod(sizes[row_axes:]))
    most = MOST_PER_THREAD * H200.warp_size * schedule.tile.num_warps // cols
    rows = min(ROWS, most, math.prod(schedule.extents[:row_axes]))
    if not rows:
        raise TooWide(cols, f"a program holds {MOST_PER_THREAD} elements of a row in each thread at most")
    found = dataclasses.replace(schedule, ahead_rows=rows, ahead=1, band=1, max_registers=REGISTERS)
    groups = groups_of(sizes, row_axes, found)
    ahead = max(1, min(groups.row_tiles, TILES_AHEAD * device.num_sm // groups.tiles))
    return dataclasses.replace(found, ahead=ahead)
