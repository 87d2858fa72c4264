"""The time of a kernel from its work: what takes longest of memory, L2 and instructions.

The numbers are in `times.json`, fitted by `tools/fit_times.py` to subgraphs of real models that ran
with and without mixorder. On another device they are scaled by its bandwidth and its multiprocessors.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from pathlib import Path
from typing import Any

from .device import H200, DeviceInfo
from .work import Work


class Kind(enum.Enum):
    """How a kernel walks through its tensors. The first is ours; the others are Inductor's."""

    FUSED = "fused"
    ROWS = "rows"  # a row stays in registers
    LOOPED = "looped"  # a row is read again for each reduction that needs an earlier one's result
    COLUMNS = "columns"  # reduces over rows
    MIXED = "mixed"  # Inductor's own fusion of both
    POINTWISE = "pointwise"


@dataclasses.dataclass(frozen=True)
class Times:
    """Microseconds, and rates. `start_us`: of a graph with one kernel, beyond its work; `launch_us`: of each
    further kernel; `sum_us`: of PyTorch's sum of partial sums. `crowded_lanes`: of a row, with which
    Inductor's own fusion takes twice as long. `memory_mb_us`, `l2_mb_us`: megabytes per microsecond.
    `instructions_sm_us`, `requests_sm_us`: per multiprocessor and microsecond. `full_warps`: per
    multiprocessor, to reach that rate with functions. `program_us`: from one program's start on a
    multiprocessor to the next one's. `step_us`: of one tile of a program that waits for its loads;
    `narrow`: a factor on that where loads are narrow; `wave_us`: of programs that start behind others.
    `sharpness`: how little the lesser of these times add to the largest. `share`: of the memory's rate that a
    kind of kernel reaches; `latency_us`: of such a kernel without work."""

    start_us: float
    launch_us: float
    sum_us: float
    crowded_lanes: float
    memory_mb_us: float
    l2_mb_us: float
    instructions_sm_us: float
    requests_sm_us: float
    full_warps: float
    program_us: float
    step_us: float
    wave_us: float
    narrow: float
    sharpness: float
    share: dict[str, float]
    latency_us: dict[str, float]

    def us(
        self,
        kind: Kind,
        work: Work,
        device: DeviceInfo,
        programs: float = math.inf,
        warps: float = math.inf,
        steps: float = 0,
        waves: float = 0,
    ) -> float:
        """Microseconds of a kernel, without its launch. `warps`: of a program. `steps`: tiles that a
        multiprocessor's programs load, one after the other. `waves`: programs that start behind others."""
        slower = H200.bandwidth / device.bandwidth if device.bandwidth else 1.0
        busy = min(max(programs, 1.0), device.num_sm)  # a traced size may be 0
        hidden = min(1.0, max(programs / device.num_sm, 1.0) * warps / self.full_warps)
        parts = (
            slower * work.dram / 1e6 / self.memory_mb_us / self.share[kind.value],
            work.l2 / 1e6 / self.l2_mb_us * H200.num_sm / busy,
            (work.light + work.heavy / hidden) / (self.instructions_sm_us * busy),
            work.requests / (self.requests_sm_us * busy),
            steps * self.step_us + waves * self.wave_us,
            0.0 if math.isinf(programs) else programs / device.num_sm * self.program_us,
        )
        most = max(parts)
        if not most:
            return self.latency_us[kind.value]
        return self.latency_us[kind.value] + most * float(
            sum((part / most) ** self.sharpness for part in parts) ** (1 / self.sharpness)
        )


FILE = Path(__file__).with_name("times.json")


def read(path: Path = FILE) -> Times:
    """The numbers of a file that `tools/fit_times.py` wrote."""
    found: dict[str, Any] = json.loads(path.read_text())["times"]
    return Times(**found)


TIMES = read()
