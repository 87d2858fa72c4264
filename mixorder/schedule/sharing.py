"""Choose a schedule for rows that several programs share, from plain numbers.

Swept on the H200 over RMSNorm and LayerNorm in bf16, 16384x16384, 8192x32768 and 2048x65536 (hand-written
kernels of the same form, 160 to 240 schedules each; docs/tuning.md). What the best had in common:

- 32 KB of tiles per multiprocessor and turn of the loop, 8 warps: shorter turns do not hide the exchange;
- two rows per tile, because an accumulator takes half the registers then;
- the narrowest part, because two programs on a multiprocessor hide one another's barriers, as long as at most
  16 programs share a row, and one warp reads a row's record at once;
- two or three tiles between a partial result and its total, as many as the registers hold.

Raises `TooWide` where no such schedule fits.
"""

from __future__ import annotations

import dataclasses
import math

from ..errors import Decline, DeclineReason, TooWide
from ..loops.alignment import skew_of
from ..loops.ir import Carry, Exchange, Load, LoopProgram, PartialAccumulate
from ..loops.share import share
from .cost import REGISTER_OVERHEAD, words_of
from .device import DeviceInfo
from .heuristics import MAX_COLS
from .schedule import Schedule, Tile

TILE_BYTES = 32 * 1024  # loaded per multiprocessor and turn of the loop
WARPS_PER_SM = 8
MAX_PARTS = 32  # a word for each lane of a warp
LAYOUTS = ((2, 4, 12), (2, 2, 16), (2, 1, 32), (1, 1, 32))  # rows, programs per multiprocessor, most parts
MAX_DEPTH = 3
MAX_STAGES = 4
ALIGNMENT = 16  # columns; a part starts where its loads are as wide as they can be
# By this estimate. H200, bf16: RMSNorm at 232 three tiles deep 90%, two deep 86%; LayerNorm at 248 three deep
# 85%, two deep 91% (16384x16384; 76 and 87 at 2048x65536), though nothing is spilled.
FULL_REGISTERS = 240
TRANSIENT_WORDS = 2.5  # per element, while a stage computes with it


@dataclasses.dataclass(frozen=True)
class SharedWork:
    """What the choice looks at, per element of the space if not said otherwise.

    `load_bytes` stream in; `held_bytes` are carried, times the stages that they are carried for.
    `column_words`: 32-bit words of accumulators and column vectors, per column. `exchanged`: reductions of
    the stage that has most. `period`: as in `heuristics.Workload`.
    """

    rows: int
    cols: int
    load_bytes: int
    held_bytes: int
    column_words: int
    exchanged: int
    period: int = 1


def shared_workload(program: LoopProgram) -> SharedWork:
    """Read the numbers off a merged program."""
    (row, col), main = program.tile_axes, share(program, 2, 1).nests[0]
    deps, tile = main.dependence(), {row.symbol, col.symbol}
    loads = {s.name: program.buffer(s.buffer).dtype.itemsize for s in main.statements if isinstance(s, Load)}
    carries = [s for s in main.body if isinstance(s, Carry)]
    held = {s.value.name: s.stages for s in carries if tile <= deps[s.value.name]}
    columns = [s for s in main.preamble if isinstance(s, Load) and deps[s.name]]
    partials = [s for s in main.body if isinstance(s, PartialAccumulate)]
    return SharedWork(
        program.hint(row.size),
        int(col.size),
        load_bytes=sum(loads[s.name] for s in main.body if isinstance(s, Load) and tile <= deps[s.name]),
        held_bytes=sum(loads[name] * stages for name, stages in held.items()),
        column_words=sum(map(words_of, columns))
        + sum((1 + s.compensated) * words_of(program.buffer(s.buffer)) for s in partials),
        exchanged=max((len(s.values) for s in main.body if isinstance(s, Exchange)), default=0),
        period=1 if (skew := skew_of(program)) is None else skew.period,
    )


def choose_shared(work: SharedWork, device: DeviceInfo) -> Schedule:
    """The schedule of a row that two to `MAX_PARTS` programs share."""
    if not device.exchanges:
        raise Decline(DeclineReason.ROW_TOO_WIDE, f"{work.cols} columns, and no exchange on {device.name}")
    if found := shared_schedules(work, device):
        return found[0]
    detail = f"{work.cols} columns of {work.held_bytes} bytes each in the registers of {MAX_PARTS} programs"
    raise TooWide(work.column_words + work.held_bytes, detail)


def shared_schedules(work: SharedWork, device: DeviceInfo) -> list[Schedule]:
    """A schedule for each way to lay a turn's tile over rows and parts; the best guess first."""
    elements = 1 << round(math.log2(TILE_BYTES / max(1, work.load_bytes)))
    # Smaller tiles hide less: only for rows that cannot be read twice instead.
    sizes = (elements, elements // 2) if work.cols > MAX_COLS else (elements,)
    return [s for size in sizes for s in _laid_out(work, device, size)]


def _laid_out(work: SharedWork, device: DeviceInfo, elements: int) -> list[Schedule]:
    found, others = [], []
    for xblock, per_sm, few in LAYOUTS:
        tile = Tile(xblock, WARPS_PER_SM // per_sm, MAX_STAGES)
        r0_block = elements // (xblock * per_sm)
        depths = [
            d for d in range(1, MAX_DEPTH + 1) if registers_of(work, tile, r0_block, d) <= FULL_REGISTERS
        ]
        if depths and xblock <= work.rows and (parts := _parts(work, r0_block)) <= MAX_PARTS:
            (found if parts <= few else others).append(_schedule(work, device, tile, r0_block, depths[-1]))
    return found + others


def registers_of(work: SharedWork, tile: Tile, r0_block: int, depth: int) -> float:
    """Registers of a thread, by an estimate that is within 25 of what ptxas takes for the norms."""
    per_thread = tile.xblock * r0_block / (tile.num_warps * 32)
    words = TRANSIENT_WORDS + work.column_words / tile.xblock + depth * work.held_bytes / 4
    return REGISTER_OVERHEAD + per_thread * words


def _parts(work: SharedWork, r0_block: int) -> int:
    """Shifted columns need up to an access more than there are."""
    return max(2, math.ceil(work.cols / (r0_block - ALIGNMENT * (work.period > 1))))


def _groups(work: SharedWork, device: DeviceInfo, tile: Tile, r0_block: int) -> int:
    """Groups of programs that are resident at once."""
    return (WARPS_PER_SM // tile.num_warps) * device.num_sm // _parts(work, r0_block)


def _schedule(work: SharedWork, device: DeviceInfo, tile: Tile, r0_block: int, depth: int) -> Schedule:
    if work.period > _groups(work, device, tile, r0_block):
        work = dataclasses.replace(work, period=1)
    part_cols = math.ceil(work.cols / _parts(work, r0_block) / ALIGNMENT) * ALIGNMENT
    parts = math.ceil(work.cols / part_cols)
    per_sm = WARPS_PER_SM // tile.num_warps
    staged = per_sm * tile.xblock * r0_block * work.load_bytes
    stages = max(1, min(MAX_STAGES, 1 + device.shared_memory // max(1, staged)))
    groups = min(per_sm * device.num_sm // parts, math.ceil(work.rows / tile.xblock))
    return Schedule(
        dataclasses.replace(tile, num_stages=stages),
        r0_block,
        num_splits=max(1, groups // work.period) * work.period,
        final_block=min(16, r0_block),
        final_warps=4,
        parts=parts,
        part_cols=part_cols,
        depth=depth,
        period=work.period,
    )
