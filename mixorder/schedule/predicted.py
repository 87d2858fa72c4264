"""What a region should take, fused and apart: launches, and time as a share of the limit.

The limit is the time of `torch.add(x, dy, out=dx)` for as many bytes as a region has to move, each once.
Plain numbers in, plain numbers out; nothing is timed here.
"""

from __future__ import annotations

import dataclasses
import math

from ..ir.program import AxisClass, BufferRole, Load, LoopProgram
from .cost import MIN_ROWS, Traffic, instructions
from .device import H200, DeviceInfo
from .schedule import Schedule

# H200, torch 2.11, triton 3.6, 2026-11-22: least squares over the 42 norms of tools/data/h200.json whose
# rows start at boundaries. The limit's time against its bytes (2026-11-20: mean error 1%, largest 4%), and
# the best schedule's time against the limit's (mean error 3%, largest 7%).
LIMIT_US, LIMIT_US_PER_MB = 5.54, 0.2282
OVERHEAD_US, STRETCH, STRETCH_PER_ACCUMULATOR = 1.82, 1.058, 0.036
# docs/tuning.md: rows that start off a boundary at 4097 columns (section 15), and rows that are read twice at
# 16384 (section 11), with one accumulator and with two.
OFF_BOUNDARY, READ_TWICE, READ_TWICE_MORE = 1.33, 1.04, 1.42
# docs/tuning.md, section 26: of GELU, by erf and by tanh (`cost.instructions`), to within 5%.
INSTRUCTIONS_PER_SM_US = 1.89e5


@dataclasses.dataclass(frozen=True)
class Expected:
    """Microseconds of the limit and of the region's kernels; launches when fused and, at least, when apart.

    `measured`: whether the figures are of this device; otherwise they are the H200's, by bandwidth.
    """

    limit_us: float
    fused_us: float
    launches: int
    launches_apart: int
    measured: bool

    @property
    def share(self) -> float:
        """The limit's time over the kernels'."""
        return self.limit_us / self.fused_us


def strategy_of(loops: LoopProgram, schedule: Schedule) -> str:
    """How a program comes by a row: it holds it, shares it with others, or reads it twice."""
    if schedule.parts > 1:
        return f"shared by {schedule.parts}"
    return "read twice" if _reads_again(loops) else "held"


def expected(
    lowered: LoopProgram,
    loops: LoopProgram,
    schedule: Schedule,
    moved: Traffic,
    device: DeviceInfo,
    copies: int,
) -> Expected:
    """Of a region's nests before they were merged, and as they are run after `copies` inputs were copied."""
    slower = H200.bandwidth / device.bandwidth if device.bandwidth else 1.0
    limit = LIMIT_US + LIMIT_US_PER_MB * slower * (moved.read + moved.written) / 1e6
    accumulators = len(loops.role(BufferRole.WORKSPACE))
    stretch = STRETCH + STRETCH_PER_ACCUMULATOR * (accumulators - 1)
    if schedule.period > 1:
        stretch *= OFF_BOUNDARY
    if _reads_again(loops):
        stretch *= READ_TWICE if accumulators == 1 else READ_TWICE_MORE
    fused = max(stretch * limit + OVERHEAD_US, _computing_us(loops, device))
    copied_us = copies * LIMIT_US + LIMIT_US_PER_MB * slower * 2 * moved.copied / 1e6
    words = bool(loops.role(BufferRole.WORDS))
    return Expected(
        limit,
        fused + copied_us,
        launches=2 + words + copies,
        launches_apart=_launches_apart(lowered, loops),
        measured=device.name == H200.name,
    )


def _computing_us(loops: LoopProgram, device: DeviceInfo) -> float:
    """What the main kernel's instructions take, where nothing else does."""
    axes = (axis for axis in loops.nests[0].loops if axis.kind is not AxisClass.SPLIT)
    elements = math.prod(loops.hint(axis.size) for axis in axes)
    return elements * instructions(loops) / (INSTRUCTIONS_PER_SM_US * device.num_sm)


def _launches_apart(lowered: LoopProgram, loops: LoopProgram) -> int:
    """One per nest, and another for outer reductions of so many rows that Inductor splits them."""
    rows = loops.hint(loops.tile_axes[0].size)
    return len(lowered.nests) + (rows >= MIN_ROWS)


def _reads_again(loops: LoopProgram) -> bool:
    return any(isinstance(stmt, Load) and stmt.again for stmt in loops.nests[0].body)
