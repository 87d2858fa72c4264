"""The kernels of a fused region as a prediction sees them, and their time.

The main kernel's programs walk through their rows tile by tile. Its time is what takes longest of memory, L2,
instructions, and a program's own chain: a tile waits for its loads, and each of its reductions for the one
before and for what is computed in between. Other programs on the same multiprocessor run meanwhile.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence

from ..ir.hardware import ACCESS, ASYNC_BYTES, LINE, MAX_REGISTERS, WARP
from ..ir.program import BufferRole, Load, LoopProgram
from . import cooperative, limits
from .cost import Traffic
from .device import MEASURED, DeviceInfo
from .facts import NARROW, RowFacts
from .kernel_time import Kind, Times, moving_us
from .plan import Plan
from .work import Access, Work, accesses, computing, full_inputs, in_minority_order, total


@dataclasses.dataclass(frozen=True)
class Main:
    """The main kernel."""

    work: Work

    programs: int

    warps: int
    """Of a program."""

    chains: int
    """Elements of a chunk that a thread computes at the same time."""

    resident: int
    """Programs that fit a multiprocessor at once."""

    steps: int
    """Tiles of a program."""

    rows: int
    """Of a tile."""

    levels: int
    """Dependent reductions of a tile."""

    prefetched_tiles: int
    """Tiles that are loaded while one is computed with."""

    tile_bytes: float
    """That a tile loads."""

    width: int
    """Bytes of a load."""

    spilled: float
    """Words of all threads and steps without a register."""

    sums: int
    """Over the rows."""

    mixed_layouts: bool
    """Whether what is prefetched lies along rows and across them, in wide rows."""

    def us(self, device: DeviceInfo, times: Times, exposed: bool = True) -> float:
        """Microseconds of the main kernel, without its launch. `exposed`: a chain has what it computes."""
        fused, work = times.fused, self.work
        each = self.programs / device.num_sm
        at_once, turns = self._turns(each)
        busy = min(1.0, each) * device.num_sm
        uneven = math.ceil(each / at_once) * at_once / each if each > 1 else 1.0
        needed = fused.in_flight_us * times.memory_mb_us * 1e6 / MEASURED.num_sm * min(1.0, each)
        in_flight = at_once * self.tile_bytes * self.prefetched_tiles
        starved = max(1.0, needed / in_flight) if in_flight else 1.0  # what is only stored waits for nothing
        computed = work.instructions / (times.instructions_sm_us * busy)
        # All warps of a program wait for its reductions: meanwhile only other programs compute.
        alone = computed / at_once if exposed and self.levels else 0.0
        overlapping_us = (
            device.slower * starved * work.dram / 1e6 / times.memory_mb_us / fused.share,
            work.l2 / 1e6 / times.l2_mb_us * MEASURED.num_sm / busy,
            computed * (1 + fused.uneven * (uneven - 1)),
            work.requests / (times.requests_sm_us * busy),
            work.lines / (times.lines_sm_us * busy),
            turns * self.steps * (fused.step_us + self.levels * fused.level_us) + alone,
            max(1.0, each / self.resident)
            * self.steps
            * fused.load_us
            * self._more_loads() ** fused.narrow
            / self.prefetched_tiles,
            fused.spill_us * self.spilled / 1e6,
            fused.branch_us * turns * work.branches / (max(1, self.programs) * self.warps * WARP),
            each * times.program_us,
        )
        narrow = self.width <= NARROW and self.rows >= 8 and at_once <= 2
        lanes = self.chains * self.warps * WARP / self.rows
        levels = math.log2(self.rows * self.warps + 1) * min(1.0, lanes / fused.tree_lanes)
        levels *= fused.one_warp if self.warps == 1 else 1.0
        tree = fused.tree_us * self.sums * levels
        longer = (fused.narrow_factor if narrow else 1.0) * (
            fused.mixed_factor if self.mixed_layouts else 1.0
        )
        return fused.latency_us + longer * times.joined(overlapping_us) + tree

    def _turns(self, each: float) -> tuple[int, int]:
        """Programs that run at once on a multiprocessor, and how often others take their place."""
        return min(self.resident, math.ceil(each)), max(1, math.ceil(each / self.resident))

    def _more_loads(self) -> float:
        """A thread's loads over those of 16 bytes each."""
        each = self.tile_bytes / (self.warps * WARP)
        return max(1.0, each / self.width) / max(1.0, each / ACCESS)


@dataclasses.dataclass(frozen=True)
class Fused:
    """A region's kernels."""

    launches: int

    main: Main

    finalising: int
    """Programs of the last kernel, if there is one."""

    workspace: int
    """Bytes of partial results."""

    copied: int
    """Bytes of copied inputs, and of results that are joined with others."""

    def us(self, device: DeviceInfo, times: Times, exposed: bool = True) -> float:
        """Microseconds of all kernels; `exposed` as in `Main.us`."""
        last = Work(self.workspace, self.workspace)
        return (
            times.start_us
            + times.launch_us * (self.launches - 1)
            + self.main.us(device, times, exposed)
            + (times.us(Kind.FINAL, last, device, self.finalising) if self.finalising else 0.0)
            + (moving_us(2 * self.copied, device, times) - times.kernel_us if self.copied else 0.0)
        )


def fused_kernels(loops: LoopProgram, plan: Plan, facts: RowFacts, moved: Traffic) -> Fused:
    """The kernels of a region, for a prediction."""
    copies = moved.copies + (moved.joined > 0)
    return Fused(
        launches=2 - plan.finishes + sum(b.fill is not None for b in loops.buffers) + copies,
        main=_main(loops, plan, facts),
        finalising=0 if plan.finishes else facts.batch * -(-facts.cols // plan.second.block),
        workspace=moved.workspace,
        copied=moved.copied + moved.joined,
    )


def _main(loops: LoopProgram, plan: Plan, facts: RowFacts) -> Main:
    rows, launch = plan.tile_rows, plan.launch
    programs = plan.splits * plan.group * facts.batch
    steps = math.ceil(facts.rows / (rows * plan.splits))
    threads = launch.num_warps * WARP
    needed, spilled = _registers(plan, facts, plan.per_thread(plan.lanes))
    given = min(needed, MAX_REGISTERS, MEASURED.registers // threads)
    spilled = max(spilled, needed - MEASURED.registers // threads)
    work, width = main_work(loops, plan, facts)
    return Main(
        work,
        programs,
        launch.num_warps,
        chains=plan.per_thread(plan.chunk),
        resident=_resident(plan, facts, given * threads),
        steps=steps,
        rows=rows,
        levels=facts.levels,
        prefetched_tiles=_prefetched_tiles(launch.num_stages, steps, width),
        tile_bytes=rows * facts.cols / plan.group * facts.load_bytes,
        width=width,
        spilled=spilled * threads * steps * programs,
        sums=len(loops.role(BufferRole.WORKSPACE)),
        mixed_layouts=launch.num_stages > 1 and facts.lies.mixed_layouts and facts.cols > 256,
    )


def _prefetched_tiles(stages: int, steps: int, width: int) -> int:
    """Tiles that are loaded before they are needed, by loads of so many bytes. A program's only tile is
    loaded as early as the first of several."""
    if steps == 1:
        return limits.MAX_STAGES - 1
    return 1 if width < ASYNC_BYTES else max(1, stages - 1)


def _registers(plan: Plan, facts: RowFacts, elements: int) -> tuple[int, int]:
    """Estimated registers of a thread with so many elements, and words that find none."""
    if plan.group > 1:
        needed = int(cooperative.registers_of(facts, plan.tile_rows, elements, plan.lag))
        return needed, max(0, needed - cooperative.SPILLED_REGISTERS)
    needed = limits.registers_of(facts, elements, plan.chunks)
    return needed, limits.spilled(facts, elements, plan.chunks)


def _resident(plan: Plan, facts: RowFacts, registers: int) -> int:
    """Programs that fit a multiprocessor of the measured device, by registers, warps and shared memory."""
    launch = plan.launch
    staged = plan.tile_rows * plan.lanes * facts.prefetched_bytes
    limits = (
        MEASURED.registers // registers,
        MEASURED.max_threads // (launch.num_warps * WARP),
        MEASURED.shared_memory // max(1, staged * (launch.num_stages - 1)),
    )
    return max(1, min(limits))


def main_work(loops: LoopProgram, plan: Plan, facts: RowFacts) -> tuple[Work, int]:
    """The work of the main kernel, and the bytes of its accesses. Lanes beyond a row's end compute as
    well."""
    moves, arithmetic, tile_accesses = _by_tiles(
        loops, (plan.tile_rows * plan.period, plan.chunk), plan.period > 1
    )
    # Shared memory has 32 banks of 4 bytes. Triton stages a tile in the order in which it lies in memory;
    # along the other one, 32 threads with 4 elements each find what they read in 2 of them.
    conflicts = 16 * in_minority_order(tile_accesses)
    transposed = Work(0, 0, requests=conflicts, lines=_extra_lines(loops, plan, facts, tile_accesses))
    lanes = plan.lanes * plan.group / max(1, facts.cols)
    once = sum(  # loads of columns, once per program
        plan.lanes * plan.group * loops.buffer(s.buffer).dtype.itemsize
        for s in loops.nests[0].preamble
        if isinstance(s, Load)
    )
    programs = plan.splits * facts.batch
    workspace = 4 * len(loops.role(BufferRole.WORKSPACE)) * facts.cols * programs
    bytes_moved = Work(workspace, workspace + once * programs)
    return (moves + transposed + arithmetic).scaled(lanes) + bytes_moved, _width(
        tile_accesses, full_inputs(loops, tile_accesses), plan, facts
    )


@functools.lru_cache(maxsize=256)
def _by_tiles(
    loops: LoopProgram, tile: tuple[int, int], shifted: bool
) -> tuple[Work, Work, tuple[Access, ...]]:
    """What the main kernel's body moves and computes, and its accesses: the same for many plans."""
    nest = loops.nests[0]
    tile_accesses = accesses(loops, nest, nest.body, tile, shifted)
    return total(loops, tile_accesses), computing(loops, nest, nest.body), tuple(tile_accesses)


def _extra_lines(loops: LoopProgram, plan: Plan, facts: RowFacts, accesses: Sequence[Access]) -> float:
    """Lines of accesses of 16 bytes, of tensors that are wider than the narrowest one, of which a thread has
    as many elements as 16 bytes have: a warp's access touches more lines of the first-level cache, or banks
    of shared memory. Eight cost nothing more; each of the others counts as more than one."""
    elements, lines = min(plan.per_thread(plan.chunk), facts.per_access), 0.0
    for access in (a for a in accesses if a.tiled and a.width == ACCESS and not a.transposed):
        stride = elements * loops.buffer(access.buffer).dtype.itemsize
        touched = min(WARP, WARP * stride / LINE)
        if stride > ACCESS:
            lines += 1.5 * access.requests / WARP * max(0.0, touched - 8)
    return lines


def _width(accesses: Sequence[Access], read: Collection[str], plan: Plan, facts: RowFacts) -> int:
    """Bytes of the widest accesses that all rows can have: those that start at the same distance from a
    boundary or, where rows are next to each other, that a tile's rows fill. Of pieces of what is `read`,
    which begin anywhere, those of most elements."""
    if 2 * sum(a.transposed for a in accesses) > sum(a.tiled for a in accesses):
        return min(min(a.width, plan.tile_rows * facts.item_bytes) for a in accesses if a.transposed)
    if plan.period > 1:
        return ACCESS
    widths = sorted((a.width, a.tiled) for a in accesses if a.buffer in read and a.tiled)
    half, below = sum(tiled for _, tiled in widths) / 2, 0.0
    for width, tiled in widths:
        below += tiled
        if below > half:
            return min(width, math.gcd(facts.cols * facts.item_bytes, ACCESS))
    return math.gcd(facts.cols * facts.item_bytes, ACCESS)
