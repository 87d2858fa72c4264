"""The time of a kernel from its work: what takes longest of memory, L2 and instructions.

The numbers are in `times.json`, fitted by `tools/fit_times.py` to subgraphs of real models that ran
with and without mixorder. On another device they are scaled by its bandwidth and its multiprocessors.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .device import MEASURED, DeviceInfo
from .work import Work


class Kind(enum.Enum):
    """How one of Inductor's kernels walks through its tensors."""

    ROWS = "rows"  # a row stays in registers
    LOOPED = "looped"  # a row is reread for each reduction that needs an earlier one's result
    COLUMNS = "columns"  # reduces over rows
    MIXED = "mixed"  # Inductor's own fusion of both
    POINTWISE = "pointwise"
    FINAL = "final"  # adds up the partial sums of a kernel before it; ours as well


# A program of theirs computes once all is loaded: the times of memory, L2 and instructions add up.
ADDING = frozenset({Kind.ROWS, Kind.COLUMNS})


@dataclasses.dataclass(frozen=True)
class FusedTimes:
    """Of mixorder's main kernel (`fused.Main`).

    `share`: of the memory's rate that it reaches.
    `in_flight_us`: how long the bytes of a load are under way.
    `uneven`: how much of the last turn of programs is lost where not all have one.
    Microseconds of a program for a tile, one after the other: `step_us`; `level_us` for each dependent
    reduction; `load_us` for its loads of 16 bytes, without prefetching;
    `narrow`: the power of so many times more loads, where they are narrower, that this takes.
    `spill_us`: of a million words that find no register.
    `tree_us`: of a sum over a program's rows at its end, for each doubling of rows and warps.
    `branch_us`: of a call of a function that branches, in a thread.
    `latency_us`: of a kernel without work.
    `narrow_factor`: of tiles of several rows that are loaded in 4 bytes at most, by few programs of a
    multiprocessor: none computes while another waits.
    `mixed_factor`: of wider rows that are prefetched, of tensors that lie along rows and across them.
    `tree_lanes`: of rows, below which a sum over a program's rows takes less.
    `one_warp`: of such a sum, without shared memory and barriers.
    """

    share: float
    in_flight_us: float
    uneven: float
    step_us: float
    level_us: float
    load_us: float
    narrow: float
    spill_us: float
    tree_us: float
    branch_us: float
    latency_us: float
    narrow_factor: float
    mixed_factor: float
    tree_lanes: int
    one_warp: float


@dataclasses.dataclass(frozen=True)
class TiledTimes:
    """Of kernels for casts and for reduction groups: mixorder's, and Inductor's for the same nodes.

    `reduced_us`, `transposed_us`: of a million elements of a tile that are reduced, beside what memory
    takes, and that are exchanged for a transposed store.
    `transposed_share`: of the limit, at best, that Inductor's kernels reach which store transposed.
    `combine_instructions`: to combine an element with those of other threads and warps.
    `request_us`: of a request to L2 for a part of a line.
    `fill_us`: until the first program over contiguous rows has a tile, and from the last tile to the sums.
    `warm_bytes`: that L2 still has for the next kernel.
    `wait_us`: of a program with whole groups, for what it loads, and for its reductions.
    How many times as long kernels take: `uneven_factor`, ours for tiles of several rows of a number of
    elements that is no multiple of 4; `across_factor`, `whole_across_factor` and `inductors_across_factor`,
    ours in two passes, ours with whole groups and Inductor's where tensors lie along another axis;
    `sums_across_factor`, Inductor's for sums across memory.
    """

    reduced_us: float
    transposed_us: float
    transposed_share: float
    combine_instructions: int
    request_us: float
    fill_us: float
    warm_bytes: float
    wait_us: float
    uneven_factor: float
    across_factor: float
    whole_across_factor: float
    inductors_across_factor: float
    sums_across_factor: float


@dataclasses.dataclass(frozen=True)
class Times:
    """Microseconds, and rates.

    `start_us`: of a graph with one kernel, beyond its work; `launch_us`: of each further kernel.
    `kernel_us`: of a kernel of Inductor's without work; `final_us`: of one that adds up partial sums.
    `sum_us`: of PyTorch's sum of many partial sums.
    `memory_mb_us`, `l2_mb_us`: megabytes per microsecond.
    `instructions_sm_us`, `requests_sm_us`, `lines_sm_us`: per multiprocessor and microsecond.
    `program_us`: from one program's start on a multiprocessor to the next one's.
    `sharpness`: how little the lesser of these times add to the largest, where they overlap.
    `share`: of the memory's rate that a kind of kernels reaches.
    `limit_us`, `limit_us_mb`: of `torch.add(x, dy, out=dx)`, by least squares over norms whose rows start at
    boundaries: without work, and of a megabyte.
    `fused`, `tiled`: of ours, for rows and others.
    """

    start_us: float
    launch_us: float
    kernel_us: float
    final_us: float
    sum_us: float
    memory_mb_us: float
    l2_mb_us: float
    instructions_sm_us: float
    requests_sm_us: float
    lines_sm_us: float
    program_us: float
    sharpness: float
    share: dict[str, float]
    limit_us: float
    limit_us_mb: float
    fused: FusedTimes
    tiled: TiledTimes

    def us(self, kind: Kind, work: Work, device: DeviceInfo, programs: float = math.inf) -> float:
        """Microseconds of a kernel of which nothing else is known, without its launch."""
        busy = min(max(programs, 1.0), device.num_sm)  # a traced size may be 0
        overlapping_us = (
            device.slower * work.dram / 1e6 / self.memory_mb_us / self.share[kind.value],
            work.l2 / 1e6 / self.l2_mb_us * MEASURED.num_sm / busy,
            work.instructions / (self.instructions_sm_us * busy),
        )
        fixed_us = self.final_us if kind is Kind.FINAL else self.kernel_us
        return fixed_us + (sum(overlapping_us) if kind in ADDING else self.joined(overlapping_us))

    def joined(self, overlapping_us: Sequence[float]) -> float:
        """The time of what overlaps."""
        most = max(overlapping_us)
        if not most:
            return 0.0
        return most * float(
            sum((us / most) ** self.sharpness for us in overlapping_us) ** (1 / self.sharpness)
        )


FILE = Path(__file__).with_name("times.json")


def read(path: Path = FILE) -> Times:
    """The numbers of a file that `tools/fit_times.py` wrote."""
    numbers: dict[str, Any] = json.loads(path.read_text())["times"]
    parts = {"fused": FusedTimes(**numbers["fused"]), "tiled": TiledTimes(**numbers["tiled"])}
    return Times(**numbers | parts)


TIMES = read()


def moving_us(moved: float, device: DeviceInfo, times: Times = TIMES) -> float:
    """The time in which device memory moves so many bytes."""
    return times.us(Kind.POINTWISE, Work(moved, moved), device)
