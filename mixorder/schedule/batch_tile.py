"""Tiles of several indices of the batch, for short rows that lie next to each other along it.

Rows of 49 elements in bf16 do not start at boundaries of memory's sectors, and a thread loads an element at a
time. A tile with rows of one index has gaps in memory as long as all other indices; each row moves parts of
sectors that other programs move as well. A tile of several indices has no gaps. H100, bf16, 4096 rows of 49 at
196 indices, five tensors: 291 us by tiles of 4 rows, 180 by tiles of 4 indices; Inductor 241 to 258.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import sympy

from ..errors import Decline, DeclineReason
from ..ir.program import AxisClass, BufferRole, Load, LoopProgram, Store
from . import limits
from .constants import FITTED, Constants
from .cost import Traffic
from .device import H200, DeviceInfo
from .facts import Facts, facts_of
from .finalisation import final, final_neighbours, most_partials
from .fused import Fused
from .kernel_time import TIMES, Times
from .predicted import Expected, expected_of
from .schedule import Schedule, Tile, is_power_of_2, next_power_of_2, shifted
from .space import combined_from, differing
from .unstaged import NARROW_ELEMENTS, STALLED_WARPS
from .work import Work, accesses, computing, total

PARTS = (("tile",), ("num_splits",), ("final_block", "final_warps"))
MOST_THREAD, MOST_LANES = 16, 128  # elements of a thread; lanes of a row, so that a warp has two at least


def check_beside(program: LoopProgram) -> None:
    """Raise `Decline` unless a merged program's rows are short, narrow, and next to each other along the batch
    in each tensor that has all of them."""
    batch, (row, last) = program.axis(AxisClass.BATCH), program.tile_axes
    known = batch is not None and batch.size.is_number and program.phase is None
    if not known or batch is None or not 1 < next_power_of_2(int(last.size)) <= MOST_LANES:
        raise Decline(DeclineReason.ROW_TOO_WIDE, "no tile has several indices of the batch")
    every = {batch.symbol, row.symbol, last.symbol}
    moved = (s for s in program.nests[0].body if isinstance(s, Load | Store))
    full = [sympy.expand(s.index) for s in moved if every <= s.index.free_symbols]
    beside = all(i.coeff(batch.symbol) == last.size and i.coeff(last.symbol) == 1 for i in full)
    if not (full and beside and facts_of(program).narrow):
        raise Decline(DeclineReason.ROW_TOO_WIDE, "rows of the batch are not short and next to each other")


def choose(facts: Facts, device: DeviceInfo, split_size: int = 0, constants: Constants = FITTED) -> Schedule:
    """A tile of one warp, `NARROW_ELEMENTS` of a thread, and as many programs as hide its loads."""
    lanes = next_power_of_2(facts.cols)
    indices = min(NARROW_ELEMENTS * device.warp_size // lanes, next_power_of_2(facts.batch))
    groups = -(-facts.batch // indices)
    most = min(facts.rows, most_partials(device))
    splits = min(max(1, STALLED_WARPS * device.num_sm // groups), most)
    splits = min(-(-facts.rows // split_size), most) if split_size else splits
    columns = facts.cols * facts.batch
    finalising = final(splits, lanes, columns, device, constants)
    tile, overlap = Tile(indices, 1, 1), device.overlaps and facts.numbered
    return Schedule(tile, lanes, splits, *finalising, overlap=overlap, finishable=facts.finishable)


def starts(facts: Facts, device: DeviceInfo, split_size: int) -> Iterator[Schedule]:
    """No schedules beside the chosen one."""
    yield from ()


def expected_of_batch(
    lowered: LoopProgram,
    loops: LoopProgram,
    schedule: Schedule,
    facts: Facts,
    moved: Traffic,
    device: DeviceInfo,
    stretch: float,
    times: Times = TIMES,
) -> Expected:
    """The prediction for a region: see `predicted.expected`."""
    return expected_of(lowered, kernels(loops, schedule, facts, moved, stretch), moved, device, times)


def kernels(loops: LoopProgram, schedule: Schedule, facts: Facts, moved: Traffic, stretch: float) -> Fused:
    """The kernels, for a prediction: a tile of the same loops with rows and indices exchanged."""
    turned, tile = _exchanged(loops), schedule.tile
    nest, threads = turned.nests[0], schedule.tile.num_warps * H200.warp_size
    moves = total(accesses(turned, nest, nest.body, (tile.xblock, schedule.r0_block)))
    programs = -(-facts.batch // tile.xblock) * schedule.num_splits
    workspace = 4 * len(loops.role(BufferRole.WORKSPACE)) * facts.cols * facts.batch * schedule.partials
    work = (moves + computing(turned, nest, nest.body)).scaled(schedule.r0_block / max(1, facts.cols))
    work += Work(stretch * moves.dram - moves.dram + workspace, workspace)
    elements = max(1, tile.xblock * schedule.r0_block // threads)
    registers = max(1, min(limits.registers_of(facts, elements, 1), limits.MAX_REGISTERS))
    return Fused(
        launches=2 - schedule.finishes + sum(b.fill is not None for b in loops.buffers) + moved.copies,
        work=work,
        programs=programs,
        warps=tile.num_warps,
        chains=elements,
        resident=max(1, min(H200.registers // (registers * threads), H200.max_threads // threads)),
        steps=math.ceil(facts.rows / schedule.num_splits),
        rows=1,
        levels=facts.levels,
        warps_of_row=1,
        ahead=1,
        tile_bytes=tile.xblock * facts.cols * facts.load_bytes,
        width=facts.item_bytes,
        spilled=0.0,
        sums=0,  # nothing is added up across a tile
        exchanges=0,
        parts=1,
        depth=1,
        finalising=0 if schedule.finishes else facts.batch * -(-facts.cols // schedule.final_block),
        workspace=moved.workspace,
        copied=moved.copied,
    )


def _exchanged(program: LoopProgram) -> LoopProgram:
    """The program with its rows as the batch, and its batch as the rows."""
    kinds = {AxisClass.ROW: AxisClass.BATCH, AxisClass.BATCH: AxisClass.ROW}
    nests = (
        dataclasses.replace(
            nest,
            loops=tuple(dataclasses.replace(a, kind=kinds.get(a.kind, a.kind)) for a in nest.loops),
        )
        for nest in program.nests
    )
    return dataclasses.replace(program, nests=tuple(nests))


@dataclasses.dataclass(frozen=True)
class BatchSpace:
    """The schedules that may take the place of `start`. `pinned`: the number of programs is the user's."""

    facts: Facts
    device: DeviceInfo
    start: Schedule
    pinned: bool = False

    def near(self, schedule: Schedule) -> tuple[Schedule, ...]:
        """The other legal schedules with half or twice the indices, the warps, both, or the splits."""
        tile, found = schedule.tile, list(final_neighbours(schedule))
        for indices, warps in ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1)):
            one = Tile(shifted(tile.xblock, indices), shifted(tile.num_warps, warps), tile.num_stages)
            found.append(dataclasses.replace(schedule, tile=one))
        for splits in (2 * schedule.num_splits, schedule.num_splits // 2):
            found.append(dataclasses.replace(schedule, num_splits=splits))
        return tuple(s for s in dict.fromkeys(found) if s != schedule and self.legal(s))

    def combined(self, times: Mapping[Schedule, float], around: Schedule) -> Schedule:
        """`around`, with each of `PARTS` from the fastest schedule that changes only this part."""
        result = combined_from(PARTS, times, around)
        return result if self.legal(result) else around

    def legal(self, schedule: Schedule) -> bool:
        """Whether the kernels are correct and fit the device."""
        tile, elements = schedule.tile, schedule.tile.xblock * schedule.r0_block
        threads = tile.num_warps * self.device.warp_size
        partials = next_power_of_2(schedule.num_splits) * schedule.final_block
        return (
            differing(schedule, self.start) <= {name for part in PARTS for name in part}
            and all(map(is_power_of_2, (tile.xblock, tile.num_warps, schedule.final_block)))
            and is_power_of_2(schedule.final_warps)
            and tile.num_warps <= limits.MAX_WARPS
            and threads <= elements <= MOST_THREAD * threads
            and 1 <= schedule.num_splits <= min(self.facts.rows, most_partials(self.device))
            and (not self.pinned or schedule.num_splits == self.start.num_splits)
            and partials <= self.device.registers
            and schedule.final_block <= max(schedule.r0_block, self.start.final_block)
        )
