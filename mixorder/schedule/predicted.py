"""The predicted cost of a region, fused and apart: launches, and microseconds.

The limit is the time of `torch.add(x, dy, out=dx)` for as many bytes as a region has to move, each once.
Nothing is timed here.
"""

from __future__ import annotations

import dataclasses
import math

from ..errors import Decline, DeclineReason
from ..ir.program import BufferRole, Load, LoopProgram
from . import apart
from .cost import Traffic
from .device import H200, DeviceInfo
from .facts import Facts
from .kernel_time import TIMES, Kind, Times
from .persistent import registers_of
from .schedule import Schedule
from .work import Work, accesses, computing, total

# H200, torch 2.11, 2026-11-20: the limit's time against its bytes, by least squares over the 42 norms of
# tools/data/h200.json whose rows start at boundaries (mean error 1%, largest 4%).
LIMIT_US, LIMIT_US_PER_MB = 5.54, 0.2282


@dataclasses.dataclass(frozen=True)
class Expected:
    """Microseconds of the limit, of the fused kernels, and of Inductor's for the same nodes; launches.

    `idle_us`: of the fused kernels if they computed nothing.

    `measured`: whether the figures are of this device; otherwise they are the H200's, scaled by bandwidth.
    """

    limit_us: float
    fused_us: float
    apart_us: float
    idle_us: float
    launches: int
    launches_apart: int
    measured: bool

    @property
    def saved_us(self) -> float:
        """What fusing saves."""
        return self.apart_us - self.fused_us

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
    times: Times = TIMES,
) -> Expected:
    """The prediction for a region: `lowered` has its nests before the merge, `loops` those that run.

    `stretch`: the strategy's factor on the time of the bytes.
    """
    slower = H200.bandwidth / device.bandwidth if device.bandwidth else 1.0
    fused = fused_kernels(loops, schedule, facts, moved, stretch)
    others = apart.kernels_of(lowered, device)
    return Expected(
        LIMIT_US + LIMIT_US_PER_MB * slower * (moved.read + moved.written) / 1e6,
        fused.us(device, times),
        apart.microseconds(others, device, times),
        dataclasses.replace(fused, work=fused.work.idle()).us(device, times),
        fused.launches,
        sum(kernel.launches for kernel in others),
        measured=device.name == H200.name,
    )


@dataclasses.dataclass(frozen=True)
class Fused:
    """A region's kernels: the work of the main kernel's `programs`, each of `warps`, with `registers` of 32
    bits (0 where all programs run at once) and with `steps` tiles that it waits for, longer if they are
    loaded by less than 4 bytes (`narrow`): these are not prefetched. `finalising`: programs of the last
    kernel. Bytes of the workspace and of copied inputs."""

    launches: int
    work: Work
    programs: int
    warps: int
    registers: int
    steps: float
    narrow: bool
    finalising: int
    workspace: int
    copied: int

    def us(self, device: DeviceInfo, times: Times) -> float:
        """Microseconds."""
        last = Work(self.workspace, self.workspace)
        return (
            times.start_us
            + times.launch_us * (self.launches - 1)
            + times.us(
                Kind.FUSED,
                self.work,
                device,
                self.programs,
                self.warps,
                self.waits(device, times),
                self.waves(device) - 1,
            )
            + times.us(Kind.COLUMNS, last, device, self.finalising)
            + (moving_us(2 * self.copied, device, times) if self.copied else 0.0)
        )

    def waits(self, device: DeviceInfo, times: Times) -> float:
        """Tiles that a multiprocessor's programs wait for, one after the other."""
        each = times.narrow if self.narrow else 1.0
        return each * self.steps * self.waves(device)

    def waves(self, device: DeviceInfo) -> float:
        """How many programs run one after the other in the same registers."""
        if self.registers == 0:
            return 1.0
        resident = max(1, device.registers // self.registers)
        return max(1.0, self.programs / device.num_sm / resident)


def fused_kernels(
    loops: LoopProgram, schedule: Schedule, facts: Facts, moved: Traffic, stretch: float
) -> Fused:
    """The kernels of a region, for a prediction."""
    programs = schedule.num_splits * schedule.parts * facts.batch
    steps = math.ceil(facts.rows / (schedule.tile.xblock * schedule.num_splits))
    registers, spilled = _registers(schedule, facts)
    spills = Work(0, 0, requests=2 * spilled * steps * programs)
    return Fused(
        2 + sum(b.fill is not None for b in loops.buffers) + moved.copies,
        main_work(loops, schedule, facts, stretch) + spills,
        programs,
        schedule.tile.num_warps,
        registers,
        steps,
        facts.cols * facts.item_bytes % 4 != 0 and schedule.period == 1,
        facts.batch * -(-facts.cols // schedule.final_block),
        moved.workspace,
        moved.copied,
    )


def _registers(schedule: Schedule, facts: Facts) -> tuple[int, int]:
    """Of a program that shares its rows with no other: registers, and words that have none."""
    if schedule.parts > 1:
        return 0, 0
    threads = schedule.tile.num_warps * H200.warp_size
    elements = max(1, schedule.tile.xblock * schedule.r0_block // threads)
    needed = registers_of(facts, elements, schedule.chunks) * threads
    given = min(needed, MOST_REGISTERS * threads, H200.registers)
    return given, needed - given


MOST_REGISTERS = 255  # of a thread


def main_work(loops: LoopProgram, schedule: Schedule, facts: Facts, stretch: float) -> Work:
    """The work of the main kernel. Lanes beyond a row's end compute as well; `stretch` is on its bytes."""
    nest = loops.nests[0]
    tile = (schedule.tile.xblock * schedule.period, schedule.chunk)
    found = accesses(loops, nest, nest.body, tile, shifted=schedule.period > 1)
    moves = total(found)
    turned = Work(0, 0, requests=BANK_CONFLICTS * sum(a.turned for a in found))
    lanes = schedule.r0_block * schedule.parts / max(1, facts.cols)
    arithmetic = computing(loops, nest, nest.body)
    once = sum(  # loads of columns, once per program
        schedule.r0_block * schedule.parts * loops.buffer(s.buffer).dtype.itemsize
        for s in nest.preamble
        if isinstance(s, Load)
    )
    programs = schedule.num_splits * facts.batch
    workspace = 4 * len(loops.role(BufferRole.WORKSPACE)) * facts.cols * programs
    bytes_moved = Work(stretch * moves.dram - moves.dram + workspace, workspace + once * programs)
    return (moves + turned + arithmetic).scaled(lanes) + bytes_moved


# Shared memory has 32 banks of 4 bytes. Triton stages a tile in the order in which it lies in memory; along
# the other one, 32 threads with 4 elements each find what they read in 2 of them.
BANK_CONFLICTS = 16


def moving_us(moved: float, device: DeviceInfo, times: Times = TIMES) -> float:
    """The time in which device memory moves so many bytes."""
    return times.us(Kind.POINTWISE, Work(moved, moved), device)


def check_size(facts: Facts, min_numel: int) -> None:
    """Raise `Decline` for a space of fewer than `min_numel` elements."""
    if facts.numel < min_numel:
        raise Decline(DeclineReason.TOO_SMALL, f"{facts.numel} elements, fewer than {min_numel}")


def check_saves(expected: Expected, min_numel: int) -> None:
    """Raise `Decline` where the prediction says that fusing does not pay; never with a `min_numel` of 0."""
    if min_numel and expected.saved_us <= 0:
        ours, others = f"{expected.fused_us:.1f}", f"{expected.apart_us:.1f}"
        detail = f"{ours} us predicted for mixorder's kernels, {others} us for Inductor's"
        raise Decline(DeclineReason.SLOWER, detail)
