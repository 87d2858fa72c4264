"""Whether a tile's small results, such as the scales of its blocks, are staged in a workspace.

A tile has few scales that lie next to each other: of 64x64 elements in blocks of 32, two for each row and
two for each column. Each such run is a request of its own to L2, however short it is. In a workspace where
the other dim is contiguous, a tile's scales are a few whole sectors. A second, small kernel then puts them
where the graph has them (`transform.staged`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..ir.hardware import LINE, SECTOR
from .device import DeviceInfo
from .kernel_time import TIMES, Kind, Times
from .plan import next_power_of_2, tiles_along
from .work import Work


@dataclasses.dataclass(frozen=True)
class Small:
    """A result that has no element for each point of the loops: its buffer, the bytes of an element, and the
    places of its axes, innermost in memory first."""

    buffer: str
    item_bytes: int
    places: tuple[int, ...]

    def is_scattered(self, sizes: Sequence[int], extents: Sequence[int]) -> bool:
        """Whether a tile of these extents has less than a sector of it in a row, not all of the first axis,
        and fewer requests in the other order."""
        first = self.places[0]
        short = extents[first] < sizes[first] and extents[first] * self.item_bytes < SECTOR
        return short and self.requests(sizes, extents, True) < self.requests(sizes, extents, False)

    def requests(self, sizes: Sequence[int], extents: Sequence[int], staged: bool) -> int:
        """How many requests a tile's elements of it are."""
        order = (*self.places[1:], self.places[0]) if staged else self.places
        run = self.item_bytes
        for place in order:
            run *= extents[place]
            if extents[place] < sizes[place]:
                break
        elements = math.prod(extents[place] for place in order)
        return -(-elements * self.item_bytes // min(run, LINE))

    def placing_tile(self, sizes: Sequence[int]) -> tuple[int, int]:
        """The second kernel's tile, along the dim that is contiguous in the graph, and along the others."""
        inner, *outer = (sizes[place] for place in self.places)
        lengths = next_power_of_2(inner), next_power_of_2(math.prod(outer))
        return min(128, lengths[0]), min(64, lengths[1])

    def num_bytes(self, sizes: Sequence[int]) -> int:
        return self.item_bytes * math.prod(sizes[place] for place in self.places)


def staged_of(small: Sequence[Small], sizes: Sequence[int], extents: Sequence[int]) -> list[Small]:
    """Those results that are staged, if any are."""
    return [result for result in small if result.is_scattered(sizes, extents)]


def saved_us(small: Sequence[Small], sizes: Sequence[int], extents: Sequence[int]) -> float:
    """What the first kernel saves, in microseconds."""
    spared = sum(
        result.requests(sizes, extents, False) - result.requests(sizes, extents, True)
        for result in staged_of(small, sizes, extents)
    )
    return TIMES.tiled.request_us * math.prod(tiles_along(sizes, extents)) * spared


def placing_us(num_bytes: int, device: DeviceInfo, times: Times = TIMES) -> float:
    """What the second kernel takes for results of so many bytes, in microseconds."""
    return times.launch_us + times.us(Kind.POINTWISE, Work(2 * num_bytes, 2 * num_bytes), device)


def pays(
    small: Sequence[Small],
    sizes: Sequence[int],
    extents: Sequence[int],
    element_bytes: int,
    device: DeviceInfo,
) -> bool:
    """Whether staging is predicted to be faster for a kernel that moves so many bytes of an element."""
    results = staged_of(small, sizes, extents)
    if not results or not device.bandwidth:
        return False
    takes = placing_us(sum(result.num_bytes(sizes) for result in results), device)
    gain = saved_us(small, sizes, extents) - takes
    # Of the time that memory takes; a launch more also takes a processor 5 us.
    return gain > 0.05 * 1e6 * math.prod(sizes) * element_bytes / device.bandwidth
