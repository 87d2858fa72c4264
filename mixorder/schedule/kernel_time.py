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

from .device import H200, DeviceInfo
from .work import Work

# PyTorch has a thread add up fewer partial sums than SERIAL one after the other, and those of so few columns.
SERIAL, SERIAL_COLS = 1024, 128


class Kind(enum.Enum):
    """How one of Inductor's kernels walks through its tensors."""

    ROWS = "rows"  # a row stays in registers
    LOOPED = "looped"  # a row is read again for each reduction that needs an earlier one's result
    COLUMNS = "columns"  # reduces over rows
    MIXED = "mixed"  # Inductor's own fusion of both
    POINTWISE = "pointwise"
    FINAL = "final"  # adds up the partial sums of a kernel before it; ours as well


@dataclasses.dataclass(frozen=True)
class Walk:
    """What a program of a kernel of Inductor's does one after the other (`turns`). Of a sum over rows: the
    loads beyond the first of each of its tiles. Of Inductor's own fusion: its tiles. `tiles`: the turns of
    all programs."""

    turns: int = 0
    tiles: int = 0


NO_WALK = Walk()  # nothing waits for what came before


@dataclasses.dataclass(frozen=True)
class FusedTimes:
    """Of mixorder's main kernel (`fused.Fused`). `share`: of the memory's rate that it reaches.
    `in_flight_us`: how long the bytes of a load are under way. `full_warps`: per multiprocessor, to reach the
    rate of instructions with branches; `full_chains`: warps times the elements that a thread computes at the
    same time, to reach that of the others. `uneven`: how much of the last turn of programs is lost where not
    all have one. Microseconds of a program for a tile, one after the other: `step_us`; `level_us` for each
    dependent reduction, `warps_us` for each doubling of the warps of a row; `exchange_us` for each exchange
    between programs, `parts_us` for each doubling of these; `load_us` for its loads of 16 bytes, without
    prefetching; `narrow`: the power of so many times more loads, where they are narrower, that this takes.
    `spill_us`: of a million words that find no register. `tree_us`: of a sum over a program's rows at its
    end, for each doubling of rows and warps, and `plain_tree_us`, where no reduction runs along a row;
    `tree_rows`: of a tile at most, more are added up by a thread itself; `free_rows`: of a tile that has no
    such sum. `latency_us`: of a kernel without work."""

    share: float
    in_flight_us: float
    full_warps: float
    full_chains: float
    uneven: float
    step_us: float
    level_us: float
    warps_us: float
    exchange_us: float
    parts_us: float
    load_us: float
    narrow: float
    spill_us: float
    tree_us: float
    plain_tree_us: float
    tree_rows: float
    free_rows: float
    latency_us: float


@dataclasses.dataclass(frozen=True)
class Times:
    """Microseconds, and rates. `start_us`: of a graph with one kernel, beyond its work; `launch_us`: of each
    further kernel; `sum_us`: of PyTorch's sum of many partial sums, beyond moving them, and `serial_us`: for
    each of few. `memory_mb_us`, `l2_mb_us`: megabytes per microsecond.
    `instructions_sm_us`, `requests_sm_us`, `lines_sm_us`: per multiprocessor and microsecond. `program_us`:
    from one program's start on a multiprocessor to the next one's; `row_us`: the same of one that keeps a row
    in registers. By kind of kernel, `turn_us`: of a turn of its walk, and `tile_us`: of each tile of a
    multiprocessor. `sharpness`: how little the lesser of these times
    add to the largest. `share`: of the memory's rate that a kind of Inductor's kernels reaches; `latency_us`:
    of such a kernel without work. `fused`: of ours."""

    start_us: float
    launch_us: float
    sum_us: float
    serial_us: float
    memory_mb_us: float
    l2_mb_us: float
    instructions_sm_us: float
    requests_sm_us: float
    lines_sm_us: float
    program_us: float
    row_us: float
    sharpness: float
    share: dict[str, float]
    latency_us: dict[str, float]
    turn_us: dict[str, float]
    tile_us: dict[str, float]
    fused: FusedTimes

    def us(
        self,
        kind: Kind,
        work: Work,
        device: DeviceInfo,
        programs: float = math.inf,
        walk: Walk = NO_WALK,
    ) -> float:
        """Microseconds of one of Inductor's kernels, without its launch."""
        busy = min(max(programs, 1.0), device.num_sm)  # a traced size may be 0
        program = self.row_us if kind is Kind.ROWS else self.program_us
        computed = (work.light + work.heavy) / (self.instructions_sm_us * busy)
        parts = (
            device.slower * work.dram / 1e6 / self.memory_mb_us / self.share[kind.value],
            work.l2 / 1e6 / self.l2_mb_us * H200.num_sm / busy,
            0.0 if kind is Kind.COLUMNS else computed,
            work.requests / (self.requests_sm_us * busy),
            0.0 if math.isinf(programs) else programs / device.num_sm * program,
        )
        waiting = self._waiting_us(kind, walk, device)
        if kind is Kind.MIXED:  # a turn reduces along the row and adds to the sums before the next one loads
            return self.latency_us[kind.value] + self.joined(parts) + waiting
        # A tile of a sum over rows is loaded after the one before has been computed with.
        behind = computed if kind is Kind.COLUMNS else 0.0
        return self.latency_us[kind.value] + self.joined((*parts, waiting)) + behind

    def _waiting_us(self, kind: Kind, walk: Walk, device: DeviceInfo) -> float:
        if kind.value not in self.turn_us:
            return 0.0
        turns, tiles = walk.turns, walk.tiles / device.num_sm
        return turns * self.turn_us[kind.value] + tiles * self.tile_us[kind.value]

    def summing_us(self, partials: int, cols: int, device: DeviceInfo) -> float:
        """Microseconds of PyTorch's sum of partial sums in float32 of so many columns."""
        if partials < SERIAL or cols < SERIAL_COLS:
            return self.serial_us * min(partials, SERIAL)
        return self.sum_us + device.slower * 4 * partials * cols / 1e6 / self.memory_mb_us

    def joined(self, parts: Sequence[float]) -> float:
        """The time of parts that overlap."""
        most = max(parts)
        if not most:
            return 0.0
        return most * float(sum((part / most) ** self.sharpness for part in parts) ** (1 / self.sharpness))


FILE = Path(__file__).with_name("times.json")


def read(path: Path = FILE, name: str = "times") -> Times:
    """The numbers of a file that `tools/fit_times.py` wrote."""
    found: dict[str, Any] = json.loads(path.read_text())[name]
    return Times(**found | {"fused": FusedTimes(**found["fused"])})


TIMES = read()
CHOOSING = read(name="choosing")
"""By which schedules are chosen: as they were when the schedules were timed. `TIMES` tells Inductor's kernels
from ours better, and the schedules of one region worse (docs/tuning.md, "Fuse or not")."""


def moving_us(moved: float, device: DeviceInfo, times: Times = TIMES) -> float:
    """The time in which device memory moves so many bytes."""
    return times.us(Kind.POINTWISE, Work(moved, moved), device)
