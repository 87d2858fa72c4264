"""Choose a plan for a cooperative kernel, from plain numbers.

A good plan has

- iterations of the loop that are long enough to hide the exchange;
- two rows per tile, because an accumulator takes half the registers then;
- narrow parts, because programs on one multiprocessor hide each other's barriers, but not too many of them,
  because one warp reads a row's record at once;
- as many tiles between a partial result and its total as the registers hold.

docs/lab/tuning.md, "Wide rows", has the measurements.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

from ..errors import Decline, DeclineReason
from ..ir.hardware import WARP
from ..ir.program import ALIKE
from .device import DeviceInfo
from .facts import ALIGNMENT, REGISTER_OVERHEAD, RowFacts
from .finalisation import final
from .limits import ELEMENTS_PER_THREAD, MAX_STAGES, NOT_SPILLED, WARPS_PER_SM, Tile, elements_of
from .persistent import MAX_COLS
from .plan import Exchanged, Launch, Plan, SecondStage, Walk

MAX_DEPTH = 3  # tiles between a partial result and its total, at most; the registers may hold fewer
LEAST_DEPTH = 2  # used even at up to `SPILLED_REGISTERS` estimated registers: less waits for the exchange
MAX_PARTS = WARP  # a slot for each lane of a warp
MOST_STAGES = MAX_STAGES - 1  # as with several programs per multiprocessor
SPILLED_REGISTERS = 292  # estimated; 255 by ptxas, and rarely more than 100 bytes spilled


def choose(facts: RowFacts, device: DeviceInfo, split_size: int = 0) -> Plan:
    """The plan for rows that two to `MAX_PARTS` programs share.

    `split_size`: rows for each group of programs, if it is not 0 and the groups are resident at once. Raises
    `Decline` if no plan fits, and for a device without the exchange.
    """
    if not device.exchanges:
        raise Decline(DeclineReason.ROW_TOO_WIDE, f"programs cannot share a row on {device.name}")
    if plans := layouts(facts, device):
        return plans[0] if not split_size else _with_groups(plans[0], math.ceil(facts.rows / split_size))
    detail = f"{MAX_PARTS} programs that share a row hold at most {_widest(facts, device)} columns"
    raise Decline(DeclineReason.TOO_MANY_LIVE_TILES, detail)


def _widest(facts: RowFacts, device: DeviceInfo) -> int:
    """The columns, as a power of two, of the widest such row that programs can share; 0 if there is none."""
    narrower = (2**n for n in range(facts.cols.bit_length() - 1, 0, -1))
    of = functools.partial(dataclasses.replace, facts)
    return next((cols for cols in narrower if layouts(of(cols=cols), device)), 0)


def layouts(facts: RowFacts, device: DeviceInfo) -> list[Plan]:
    """A plan for each way to divide an iteration's tile into rows and parts; the best guess first."""
    # Fewer bytes per multiprocessor and iteration do not hide the exchange, on no device.
    elements = elements_of(32 * 1024, facts.loads.staged_bytes)
    # If only one narrow tensor streams in: no more elements per thread than were measured.
    elements = min(elements, ELEMENTS_PER_THREAD * WARPS_PER_SM * device.warp_size)
    # Smaller tiles hide less: only for rows that no program holds, or where loads of several
    # widths take the registers.
    halved = facts.cols > MAX_COLS or facts.loads.mixed
    sizes = (elements, elements // 2) if halved else (elements,)
    return [s for size in sizes for s in _laid_out(facts, device, size)]


def _with_groups(plan: Plan, groups: int) -> Plan:
    """The plan with at most `groups` groups, rounded up to a multiple of the period."""
    whole = math.ceil(groups / plan.period) * plan.period
    return plan.changed(splits=min(plan.splits, whole))


def _laid_out(facts: RowFacts, device: DeviceInfo, elements: int) -> list[Plan]:
    """Plans with few parts first; among equals, those deep enough without tight registers first."""
    candidates: list[tuple[bool, bool, Plan]] = []
    for xblock, per_sm, few in _layouts(facts):
        tile = Tile(xblock, elements // (xblock * per_sm), WARPS_PER_SM // per_sm, MOST_STAGES, per_sm)
        parts, depth = _parts(facts, tile), _depth(facts, tile)
        fits = xblock <= facts.rows and parts <= MAX_PARTS and tile.lanes >= _least_lanes(facts, tile)
        if depth and fits:
            tight = _registers(facts, tile, depth) > NOT_SPILLED
            plan = _schedule(facts, device, tile, depth)
            candidates.append((parts > few, tight or depth < LEAST_DEPTH, plan))
    return [plan for *_, plan in sorted(candidates, key=lambda candidate: candidate[:2])]


def _least_lanes(facts: RowFacts, tile: Tile) -> int:
    """With fewer, threads have wide accesses of some rows only, and each step adds up rows across warps."""
    return facts.per_access * tile.num_warps * WARP


def _layouts(facts: RowFacts) -> Iterator[tuple[int, int, int]]:
    """Rows per tile, programs per multiprocessor, and the most parts for which this pays: programs on one
    multiprocessor hide each other's barriers, but one warp reads all slots of a row, and more slots take
    longer to arrive."""
    most = min(MAX_PARTS, 32 // max(1, facts.exchange.values))  # slots of a row, of half the registers
    for rows in (2, 4):
        yield rows, 4, min(most, 12)
        yield rows, 2, min(most, 16)
        yield rows, 1, most
    yield 1, 1, MAX_PARTS


def _depth(facts: RowFacts, tile: Tile) -> int:
    """Tiles between a partial result and its total; 0 if the registers do not hold even one."""
    for depth in range(MAX_DEPTH, 0, -1):
        most = SPILLED_REGISTERS if depth == LEAST_DEPTH else NOT_SPILLED
        if _registers(facts, tile, depth) <= most:
            return depth
    return 0


def _registers(facts: RowFacts, tile: Tile, depth: int) -> float:
    return registers_of(facts, tile.xblock, tile.xblock * tile.lanes / (tile.num_warps * WARP), depth)


def registers_of(facts: RowFacts, rows: int, per_thread: float, depth: int) -> float:
    """Estimated registers of a thread with so many elements of a tile of so many rows.

    Of plans that spill, half are estimated between 15 too low and 110 too high.
    """
    # Where loads are of several widths, Triton may carry a value in two layouts.
    copies = depth * (1 + facts.loads.mixed)
    words = facts.exchange.at_once + facts.held.of_columns / rows + copies * facts.exchange.carried_bytes / 4
    of_rows = rows * (facts.exchange.rows_at_once + copies * facts.exchange.row_words)
    return REGISTER_OVERHEAD + per_thread * words + of_rows


def _parts(facts: RowFacts, tile: Tile) -> int:
    """Parts of a row. Shifted columns need up to one access more than there are columns."""
    return max(2, math.ceil(facts.cols / (tile.lanes - ALIGNMENT * (facts.alignment.period > 1))))


def _schedule(facts: RowFacts, device: DeviceInfo, tile: Tile, depth: int) -> Plan:
    programs = tile.per_sm * device.num_sm  # that are resident at once
    if facts.alignment.period > programs // _parts(facts, tile):
        facts = dataclasses.replace(facts, alignment=ALIKE)
    part_cols = math.ceil(facts.cols / _parts(facts, tile) / ALIGNMENT) * ALIGNMENT
    parts = math.ceil(facts.cols / part_cols)
    staged = tile.per_sm * tile.xblock * tile.lanes * facts.loads.staged_bytes
    pays = MOST_STAGES - (tile.xblock * parts < 32)  # with more records, exchanges take longer
    stages = max(1, min(pays, 1 + device.shared_memory // max(1, staged)))
    groups = min(programs // parts, math.ceil(facts.rows / tile.xblock))
    num_splits = max(1, groups // facts.alignment.period) * facts.alignment.period
    second = final(num_splits, tile.lanes, device)
    return Plan(
        (
            Walk(split=num_splits, tile=tile.xblock, period=facts.alignment.period),
            Walk(group=parts, part=part_cols, tile=tile.lanes),
        ),
        Launch(tile.num_warps, stages, dependent=device.overlaps and facts.final.numbered),
        SecondStage(*second),
        Exchanged(depth),
    )
