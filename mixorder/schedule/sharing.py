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
from ..loops.ir import Carry, Exchange, Load, LoopProgram, PartialAccumulate
from ..loops.share import share
from .cost import REGISTER_OVERHEAD, words_of
from .device import DeviceInfo
from .heuristics import MAX_COLS
from .schedule import Schedule, Tile

TILE_BYTES = 32 * 1024  # loaded per multiprocessor and turn of the loop
WARPS_PER_SM = 8
MAX_PARTS = 32  # a word for each lane of a warp
FEW_PARTS = 16
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
    the stage that has most.
    """

    rows: int
    cols: int
    load_bytes: int
    held_bytes: int
    column_words: int
    exchanged: int


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
    )


def choose_shared(work: SharedWork, device: DeviceInfo) -> Schedule:
    """The schedule of a row that two to `MAX_PARTS` programs share."""
    if not device.exchanges:
        raise Decline(DeclineReason.ROW_TOO_WIDE, f"{work.cols} columns, and no exchange on {device.name}")
    elements = 1 << round(math.log2(TILE_BYTES / max(1, work.load_bytes)))
    # Smaller tiles hide less: only for rows that cannot be read twice instead.
    for size in (elements, elements // 2) if work.cols > MAX_COLS else (elements,):
        for xblock, r0_block, per_sm in _tiles(work, size):
            if depth := _depth(work, size, xblock):
                return _schedule(work, device, xblock, r0_block, per_sm, depth)
    detail = f"{work.cols} columns of {work.held_bytes} bytes each in the registers of {MAX_PARTS} programs"
    raise TooWide(work.column_words + work.held_bytes, detail)


def _tiles(work: SharedWork, elements: int) -> list[tuple[int, int, int]]:
    """Rows of a tile, columns of a part, and programs per multiprocessor; the best first."""
    tiles = [(2, elements // 4, 2), (2, elements // 2, 1), (1, elements, 1)]
    fitting = [t for t in tiles if _parts(work, t[1]) <= FEW_PARTS] or [
        t for t in tiles[-1:] if _parts(work, t[1]) <= MAX_PARTS
    ]
    return [t for t in fitting if t[0] <= work.rows]


def _parts(work: SharedWork, r0_block: int) -> int:
    return max(2, math.ceil(work.cols / r0_block))


def _depth(work: SharedWork, elements: int, xblock: int) -> int:
    """The most tiles that a program can hold on to; 0 if not even one."""
    per_thread = elements // (WARPS_PER_SM * 32)
    fixed = REGISTER_OVERHEAD + per_thread * (TRANSIENT_WORDS + work.column_words / xblock)
    held = per_thread * work.held_bytes / 4
    return max(0, min(MAX_DEPTH, int((FULL_REGISTERS - fixed) // max(1.0, held))))


def _schedule(
    work: SharedWork, device: DeviceInfo, xblock: int, r0_block: int, per_sm: int, depth: int
) -> Schedule:
    parts = _parts(work, r0_block)
    part_cols = math.ceil(work.cols / parts / ALIGNMENT) * ALIGNMENT
    parts = math.ceil(work.cols / part_cols)
    groups = max(1, per_sm * device.num_sm // parts)
    staged = per_sm * xblock * r0_block * work.load_bytes
    stages = max(1, min(MAX_STAGES, 1 + device.shared_memory // max(1, staged)))
    return Schedule(
        Tile(xblock, WARPS_PER_SM // per_sm, stages),
        r0_block,
        num_splits=min(groups, math.ceil(work.rows / xblock)),
        final_block=min(16, r0_block),
        final_warps=4,
        parts=parts,
        part_cols=part_cols,
        depth=depth,
    )
