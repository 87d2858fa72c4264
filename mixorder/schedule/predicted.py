"""The predicted cost of a region, fused and apart: launches, and time as a share of the limit.

The limit is the time of `torch.add(x, dy, out=dx)` for as many bytes as a region has to move, each once.
Nothing is timed here.
"""

from __future__ import annotations

import dataclasses

from ..ir.program import BufferRole, LoopProgram
from .cost import MIN_ROWS, Traffic
from .device import H200, DeviceInfo
from .facts import Facts
from .schedule import Schedule

# H200, torch 2.11, triton 3.6, 2026-11-22: least squares over the 42 norms of tools/data/h200.json whose
# rows start at boundaries. The limit's time against its bytes (2026-11-20: mean error 1%, largest 4%), and
# the best schedule's time against the limit's (mean error 3%, largest 7%).
LIMIT_US, LIMIT_US_PER_MB = 5.54, 0.2282
OVERHEAD_US, STRETCH, STRETCH_PER_ACCUMULATOR = 1.82, 1.058, 0.036
OFF_BOUNDARY = 1.33  # docs/tuning.md, section 15: rows that start off a boundary, at 4097 columns
# docs/tuning.md, section 26: fits GELU, by erf and by tanh (`Facts.instructions`), to within 5%.
INSTRUCTIONS_PER_SM_US = 1.89e5


@dataclasses.dataclass(frozen=True)
class Expected:
    """Microseconds of the limit and of the fused kernels; launches when fused, and the least when apart.

    `measured`: whether the figures are of this device; otherwise they are the H200's, scaled by bandwidth.
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


def expected(
    lowered: LoopProgram,
    loops: LoopProgram,
    schedule: Schedule,
    facts: Facts,
    moved: Traffic,
    device: DeviceInfo,
    stretch: float,
    copies: int,
) -> Expected:
    """The prediction for a region: `lowered` has its nests before the merge, `loops` those that run.

    `copies`: number of inputs that are copied before. `stretch`: the strategy's factor on the time of the
    bytes.
    """
    slower = H200.bandwidth / device.bandwidth if device.bandwidth else 1.0
    limit = LIMIT_US + LIMIT_US_PER_MB * slower * (moved.read + moved.written) / 1e6
    stretch *= STRETCH + STRETCH_PER_ACCUMULATOR * (len(loops.role(BufferRole.WORKSPACE)) - 1)
    if schedule.period > 1:
        stretch *= OFF_BOUNDARY
    computing = facts.numel * facts.instructions / (INSTRUCTIONS_PER_SM_US * device.num_sm)
    copied_us = copies * LIMIT_US + LIMIT_US_PER_MB * slower * 2 * moved.copied / 1e6
    return Expected(
        limit,
        max(stretch * limit + OVERHEAD_US, computing) + copied_us,
        launches=2 + sum(b.fill is not None for b in loops.buffers) + copies,
        launches_apart=_launches_apart(lowered, facts.rows),
        measured=device.name == H200.name,
    )


def _launches_apart(lowered: LoopProgram, rows: int) -> int:
    """One per nest, and one more if Inductor splits outer reductions over `rows`."""
    return len(lowered.nests) + (rows >= MIN_ROWS)
