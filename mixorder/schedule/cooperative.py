"""Choose a schedule for rows that several programs share, from plain numbers.

What a schedule needs: turns of the loop that are long enough to hide the exchange; two rows per tile, because
an accumulator takes half the registers then; narrow parts, because programs on one multiprocessor hide one
another's barriers, as long as not too many share a row, and one warp reads a row's record at once; as many
tiles between a partial result and its total as the registers hold. The numbers are fitted to measurements
(`constants.py`, `tools/fit.py`; docs/tuning.md, section 12).

Raises `TooWide` where no such schedule fits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from ..errors import Decline, DeclineReason, TooWide
from ..ir.alignment_phase import skew_of
from ..ir.program import Carry, Exchange, Load, LoopProgram, PartialAccumulate
from ..transform.cooperative import share
from .constants import FITTED, Constants
from .cost import REGISTER_OVERHEAD, words_of
from .device import DeviceInfo
from .persistent import ALIGNMENT, MAX_COLS, final
from .schedule import Schedule, Tile

WARPS_PER_SM = 8
PER_THREAD = 32  # elements of a tile, at most
MAX_PARTS = 32  # a word for each lane of a warp
MAX_STAGES = 4
SPILLED_REGISTERS = 264  # by the estimate: 255 by ptxas, and nothing spilled where parts are powers of two
TRANSIENT_WORDS = 2.5  # per element, while a stage computes with it
LATER_STAGE_WORDS = 2.0  # the same, for each exchange after the first


@dataclasses.dataclass(frozen=True)
class SharedWork:
    """What the choice looks at, per element of the space if not said otherwise.

    `load_bytes` stream in; `held_bytes` are carried, times the stages that they are carried for.
    `column_words`: 32-bit words of accumulators and column vectors, per column. `exchanged`: reductions of
    the stage that has most. `period`: as in `heuristics.Workload`.
    `stages`: how many exchanges a row takes.
    """

    rows: int
    cols: int
    load_bytes: int
    held_bytes: int
    column_words: int
    exchanged: int
    period: int = 1
    stages: int = 1


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
        max(1, program.hint(row.size)),
        int(col.size),
        load_bytes=sum(loads[s.name] for s in main.body if isinstance(s, Load) and tile <= deps[s.name]),
        held_bytes=sum(loads[name] * stages for name, stages in held.items()),
        column_words=sum(map(words_of, columns))
        + sum((1 + s.compensated) * words_of(program.buffer(s.buffer)) for s in partials),
        exchanged=max((len(s.values) for s in main.body if isinstance(s, Exchange)), default=0),
        period=1 if (skew := skew_of(program)) is None else skew.period,
        stages=sum(isinstance(s, Exchange) for s in main.body),
    )


def choose_shared(
    work: SharedWork, device: DeviceInfo, split_size: int = 0, constants: Constants = FITTED
) -> Schedule:
    """The schedule of a row that two to `MAX_PARTS` programs share.

    `split_size`: rows for each group of programs, if it is not 0 and so many groups are resident at once.
    """
    if not device.exchanges:
        raise Decline(DeclineReason.ROW_TOO_WIDE, f"{work.cols} columns, and no exchange on {device.name}")
    if found := shared_schedules(work, device, constants):
        return found[0] if not split_size else _with_groups(found[0], math.ceil(work.rows / split_size))
    detail = f"{work.cols} columns of {work.held_bytes} bytes each in the registers of {MAX_PARTS} programs"
    raise TooWide(work.column_words + work.held_bytes, detail)


def shared_schedules(work: SharedWork, device: DeviceInfo, constants: Constants = FITTED) -> list[Schedule]:
    """A schedule for each way to lay a turn's tile over rows and parts; the best guess first."""
    # Not scaled by the bandwidth: a longer turn hides the exchange all the better.
    elements = constants.elements(constants.tile_bytes, work.load_bytes)
    # Where one narrow tensor is all that streams in: no more per thread than was measured.
    elements = min(elements, PER_THREAD * WARPS_PER_SM * device.warp_size)
    # Smaller tiles hide less: only for rows that cannot be read twice instead.
    sizes = (elements, elements // 2) if work.cols > MAX_COLS else (elements,)
    return [s for size in sizes for s in _laid_out(work, device, size, constants)]


def _with_groups(schedule: Schedule, groups: int) -> Schedule:
    """With fewer groups, of each kind of rows as many."""
    whole = math.ceil(groups / schedule.period) * schedule.period
    return dataclasses.replace(schedule, num_splits=min(schedule.num_splits, whole))


def _laid_out(work: SharedWork, device: DeviceInfo, elements: int, constants: Constants) -> list[Schedule]:
    """First those of few parts, and of these, whose tiles the registers hold for as long as is needed."""
    found: list[tuple[bool, bool, Schedule]] = []
    for xblock, per_sm, few in _layouts(work, constants):
        tile = Tile(xblock, WARPS_PER_SM // per_sm, MAX_STAGES)
        r0_block = elements // (xblock * per_sm)
        parts, depth = _parts(work, r0_block), _depth(work, tile, r0_block, constants)
        if depth and xblock <= work.rows and parts <= MAX_PARTS:
            tight = registers_of(work, tile, r0_block, depth) > constants.full_registers
            schedule = _schedule(work, device, tile, r0_block, depth, constants)
            found.append((parts > few, tight or depth < constants.least_depth, schedule))
    return [schedule for *_, schedule in sorted(found, key=lambda one: one[:2])]


def _layouts(work: SharedWork, constants: Constants) -> Iterator[tuple[int, int, int]]:
    """Rows per tile, programs per multiprocessor, and the most parts that this is good for."""
    most = min(MAX_PARTS, constants.words_of_2_rows // max(1, work.exchanged))
    for rows in (2, 4):
        yield rows, 4, min(most, constants.parts_of_4)
        yield rows, 2, min(most, constants.parts_of_2)
        yield rows, 1, most
    yield 1, 1, MAX_PARTS


def _depth(work: SharedWork, tile: Tile, r0_block: int, constants: Constants) -> int:
    """Tiles between a partial result and its total; 0 if the registers do not hold even one."""
    for depth in range(constants.max_depth, 0, -1):
        # One tile deep is the least there is; rows of several stages have nothing else. Beside what the last
        # stage loads itself, the estimate leaves no room for more.
        least = (depth == constants.least_depth and not _late(work)) or (depth == 1 and work.stages > 1)
        most = SPILLED_REGISTERS if least else constants.full_registers
        if registers_of(work, tile, r0_block, depth) <= most:
            return depth
    return 0


def registers_of(work: SharedWork, tile: Tile, r0_block: int, depth: int) -> float:
    """Registers of a thread, by an estimate that is within 25 of what ptxas takes for the norms."""
    per_thread = tile.xblock * r0_block / (tile.num_warps * 32)
    words = (
        TRANSIENT_WORDS
        + math.ceil(_late(work) / 4)
        + LATER_STAGE_WORDS * (work.stages - 1)
        + work.column_words / tile.xblock
        + depth * work.held_bytes / 4
    )
    return REGISTER_OVERHEAD + per_thread * words


def _late(work: SharedWork) -> int:
    """Bytes per element of what only the last stage loads, such as a gradient that comes in beside."""
    return max(0, work.load_bytes - work.held_bytes)


def _parts(work: SharedWork, r0_block: int) -> int:
    """Shifted columns need up to an access more than there are."""
    return max(2, math.ceil(work.cols / (r0_block - ALIGNMENT * (work.period > 1))))


def _groups(work: SharedWork, device: DeviceInfo, tile: Tile, r0_block: int) -> int:
    """Groups of programs that are resident at once."""
    return (WARPS_PER_SM // tile.num_warps) * device.num_sm // _parts(work, r0_block)


def _schedule(
    work: SharedWork, device: DeviceInfo, tile: Tile, r0_block: int, depth: int, constants: Constants
) -> Schedule:
    if work.period > _groups(work, device, tile, r0_block):
        work = dataclasses.replace(work, period=1)
    part_cols = math.ceil(work.cols / _parts(work, r0_block) / ALIGNMENT) * ALIGNMENT
    parts = math.ceil(work.cols / part_cols)
    per_sm = WARPS_PER_SM // tile.num_warps
    staged = per_sm * tile.xblock * r0_block * work.load_bytes
    pays = MAX_STAGES if tile.xblock * parts >= constants.records_for_4_stages else MAX_STAGES - 1
    stages = max(1, min(pays, 1 + device.shared_memory // max(1, staged)))
    groups = min(per_sm * device.num_sm // parts, math.ceil(work.rows / tile.xblock))
    num_splits = max(1, groups // work.period) * work.period
    final_block, final_warps = final(num_splits, r0_block, device, constants)
    return Schedule(
        dataclasses.replace(tile, num_stages=stages),
        r0_block,
        num_splits,
        final_block,
        final_warps,
        parts=parts,
        part_cols=part_cols,
        depth=depth,
        period=work.period,
        overlap=device.overlaps,
    )
