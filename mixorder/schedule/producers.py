"""How many programs of a tile's kernel compute values of whole rows, and how far before the tiles."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..errors import Decline, DeclineReason
from ..ir.hardware import WARP
from ..ir.program import Nest
from .device import DeviceInfo
from .limits import ELEMENTS_PER_THREAD
from .plan import Plan, Produced, next_power_of_2, tiles_along


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
    tiles = tiles_along(sizes, plan.extents)
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
    elements = ELEMENTS_PER_THREAD * threads
    size = math.prod(sizes[row_axes:])
    cols = next_power_of_2(size)
    rows = max(1, min(elements // cols, math.prod(plan.extents[:row_axes])))
    at_once = cols if cols <= 2 * elements else elements
    # So that 5 programs of 4 warps run at once on a multiprocessor. Where rows are added up part by part,
    # fewer at once are faster up to a point.
    few = size <= 4 * elements
    limited = plan.changed(grouped=1, max_registers=96 if few else 128)
    produced = dataclasses.replace(limited, totals=Produced(1, rows, at_once))
    groups = program_groups(sizes, row_axes, produced)
    # Producers lead by about as many as would run at once with 72 registers: fewer make tiles wait, and of
    # more, L2 has lost what they have read.
    programs = device.num_sm * (device.registers // (72 * threads))
    lag = int(programs / groups.programs + 0.5)
    return produced.changed(lag=max(1, min(groups.row_tiles, lag)))
