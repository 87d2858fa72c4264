"""The finalisation, which reduces the partials of all programs: its block and warps, and those near them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from .device import DeviceInfo
from .plan import Plan, next_power_of_2, shifted

FINAL_BLOCKS = (16, 8)  # columns of a finalising program: 8 fp32 partials still fill a sector of 32 bytes


def most_partials(device: DeviceInfo) -> int:
    """The most programs whose partials one program of the finalisation can hold in registers."""
    return device.registers // FINAL_BLOCKS[-1]


def final(num_splits: int, r0_block: int, device: DeviceInfo) -> tuple[int, int]:
    """Block and warps for a number of partials of each column: the widest block, and then the fewest warps,
    that hold 32 for each thread."""
    partials, choices = next_power_of_2(num_splits), list(itertools.product(FINAL_BLOCKS, (4, 8)))
    fitting = (
        (block, warps) for block, warps in choices if partials * block <= 32 * warps * device.warp_size
    )
    block, warps = next(fitting, choices[-1])
    return min(block, r0_block), warps


def final_neighbours(plan: Plan) -> Iterator[Plan]:
    """Plans with half or twice the block or the warps of the finalisation."""
    for block, warps in ((-1, 0), (1, 0), (0, 1), (0, -1), (-1, 1)):
        second = plan.second
        yield plan.changed(block=shifted(second.block, block), warps=shifted(second.warps, warps))
