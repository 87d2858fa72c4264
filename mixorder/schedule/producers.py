"""How many programs of a tile's kernel compute values of whole rows, and how far before the tiles."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..errors import Decline, DeclineReason
from ..ir.hardware import WARP
from ..ir.program import Nest
from .device import DeviceInfo
from .plan import Plan, Produced, next_power_of_2

# Registers of a thread, so that 5 programs of 4 warps run at once on a multiprocessor; with 80, a norm's
# backward and mixed-order MXFP8 spill 64 bytes. Where rows are added up part by part, fewer programs at once
# are faster up to a point.
REGISTERS, REGISTERS_OF_MANY_CHUNKS, FEW_CHUNKS = 96, 128, 4
LAG_REGISTERS = 72  # registers of a thread, for the lag between producers and tiles
# Elements of a row in a thread. With 1 and 2 rows of a program: 16384x4096 172 and 189 us, 16384x2048 99
# and 93.
ELEMENTS = 32
# Elements of a row in a thread, up to which all are loaded at once.
MOST_ELEMENTS = 64


@dataclasses.dataclass(frozen=True)
class ProgramGroups:
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


def row_axes_of(producer_nest: Nest | None, sizes: Sequence[int]) -> int:
    """How many of the first axes, of these sizes, are the producer nest's rows; 0 where there is none."""
    if producer_nest is None:
        return 0
    rows = int(producer_nest.loops[0].size)
    return next(k for k in range(1, len(sizes)) if math.prod(sizes[:k]) == rows)


def program_groups(sizes: Sequence[int], row_axes: int, plan: Plan) -> ProgramGroups:
    """The groups of a kernel over axes of these sizes, of which the first ones are rows."""
    tiles = [-(-n // extent) for n, extent in zip(sizes, plan.extents, strict=True)]
    rows = math.prod(plan.extents[:row_axes])
    assert plan.produced is not None
    each = plan.produced.rows
    needed = -(-math.prod(sizes[:row_axes]) // each)
    values = rows // each
    return ProgramGroups(rows, values, math.prod(tiles[row_axes:]), math.prod(tiles[:row_axes]), needed)


def with_producers(plan: Plan, sizes: Sequence[int], row_axes: int, device: DeviceInfo) -> Plan:
    """A tile's plan with programs for the values of rows. Raises `Decline` for tiles whose rows do not follow
    one another, and for devices whose programs cannot wait."""
    if not device.exchanges:
        raise Decline(
            DeclineReason.TOO_MANY_LIVE_TILES, f"on a {device.name}, programs do not exchange values"
        )
    whole = [extent == n for n, extent in zip(sizes, plan.extents, strict=True)]
    if not all(whole[1:row_axes]) or not all(whole[row_axes + 1 :]):
        raise Decline(DeclineReason.TOO_MANY_LIVE_TILES, "rows or columns of a tile that are apart")
    threads = WARP * plan.launch.num_warps
    size = math.prod(sizes[row_axes:])
    cols = next_power_of_2(size)
    rows = max(1, min(ELEMENTS * threads // cols, math.prod(plan.extents[:row_axes])))
    at_once = cols if cols <= MOST_ELEMENTS * threads else ELEMENTS * threads
    few = size <= FEW_CHUNKS * ELEMENTS * threads
    registers = REGISTERS if few else REGISTERS_OF_MANY_CHUNKS
    limited = plan.changed(grouped=1, max_registers=registers)
    produced = dataclasses.replace(limited, totals=Produced(1, rows, at_once))
    groups = program_groups(sizes, row_axes, produced)
    # Producers lead by about as many as would run at once with few registers: fewer make tiles wait, and of
    # more, L2 has lost what they have read. The lag, us, and what this gives: 4096 columns, 8 182, 10 172.5,
    # 12 172.3, 14 173.0 (14); 7168, 9 2250, 11 2222, 13 2314 (11); 8192, 8 348, 10 329, 12 351 (10); 16384,
    # 4 846, 6 732, 8 794 (6); LayerNorm, 4096, 10 201, 12 194, 14 190.5 (14).
    programs = device.num_sm * (device.registers // (LAG_REGISTERS * threads))
    lag = int(programs / groups.programs + 0.5)
    return produced.changed(lag=max(1, min(groups.row_tiles, lag)))
