"""The schedules that `tools/tune.py` tries: the rules' choice, and a grid around it or fewer (`CHOICES`)."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from mixorder.errors import Decline
from mixorder.ir.program import LoopProgram
from mixorder.schedule.constants import FITTED
from mixorder.schedule.cooperative import MAX_PARTS
from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.facts import ALIGNMENT, Facts, facts_of
from mixorder.schedule.finalisation import final
from mixorder.schedule.persistent import choose, even, layouts
from mixorder.schedule.persistent_space import PersistentSpace
from mixorder.schedule.schedule import Schedule, Tile, next_power_of_2
from mixorder.strategies import STRATEGIES, Strategy
from mixorder.transform.column_blocks import in_blocks

from .by_hand import BY_HAND

SHARE_FROM = 8192  # columns; for narrower rows no cooperative kernel was faster
IN_FLIGHT = range(44 * 1024, 100 * 1024)  # bytes per multiprocessor; fewer and more were never the best
HEAVY = 24  # instructions per element, from which computing takes time besides memory
HEAVY_IN_FLIGHT = range(12 * 1024, 100 * 1024)  # from that number of instructions
CHUNKED_SPILL_FACTOR = 1.33  # LayerNorm in bf16, 12288 columns in 3 chunks, compiled for sm_90: 32 bytes


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to run a region: the strategy, its transformed loops, and a schedule."""

    strategy: Strategy
    loops: LoopProgram
    schedule: Schedule


def candidates(program: LoopProgram, device: DeviceInfo) -> list[Candidate]:
    """The rules' choice first, then a grid around each strategy's own choice, each schedule once.

    A strategy that reads rows more often is swept only where no other strategy applies.
    """
    found: list[Candidate] = []
    chunked: list[Candidate] = []
    for strategy in STRATEGIES:
        with contextlib.suppress(Decline):
            strategy.applies(program)
            loops = strategy.transform(program)
            facts = strategy.facts(loops)
            if (facts.rereads and found) or (facts.exchanges and facts.cols <= SHARE_FROM):
                continue
            try:
                schedules = grid(strategy, facts, device, strategy.choose(facts, device, 0, FITTED))
            except Decline:
                chunked += _candidates(strategy, loops, in_chunks(strategy, facts, device))
                continue
            found += _candidates(strategy, loops, schedules)
    return list(dict.fromkeys([*found, *chunked]))


def _candidates(strategy: Strategy, loops: LoopProgram, schedules: Iterable[Schedule]) -> Iterator[Candidate]:
    for schedule in schedules:
        yield Candidate(strategy, strategy.place(loops, schedule), schedule)


def grid(strategy: Strategy, facts: Facts, device: DeviceInfo, base: Schedule) -> Iterator[Schedule]:
    """Schedules over a strategy's whole search space."""
    return (single if strategy.space is PersistentSpace else several)(facts, device, base)


def several(facts: Facts, device: DeviceInfo, base: Schedule) -> Iterator[Schedule]:
    """Cooperative schedules: parts, rows per tile, depth and stages."""
    yield base
    for per_sm, xblock, warps, depth, stages in itertools.product(
        (1, 2, 4), (1, 2, 4), (2, 4, 8), (1, 2, 3), (3, 4)
    ):
        for elements in (4096, 8192):
            r0_block = elements // (per_sm * xblock)
            parts = max(2, -(-facts.cols // (r0_block - ALIGNMENT * (base.period > 1))))
            if per_sm * warps != 8 or r0_block < 512 or not 2 <= parts <= MAX_PARTS:
                continue
            part_cols = math.ceil(facts.cols / parts / ALIGNMENT) * ALIGNMENT
            if elements * facts.staged_bytes * (stages - 1) > device.shared_memory:
                continue
            yield dataclasses.replace(
                base,
                tile=Tile(xblock, warps, stages),
                r0_block=r0_block,
                parts=-(-facts.cols // part_cols),
                part_cols=part_cols,
                depth=depth,
                num_splits=whole(min(per_sm * device.num_sm // parts, -(-facts.rows // xblock)), base),
            )


def whole(splits: int, base: Schedule) -> int:
    """So many of each kind of rows (`Schedule.period`)."""
    return max(1, splits // base.period) * base.period


def single(facts: Facts, device: DeviceInfo, base: Schedule) -> Iterator[Schedule]:
    """Schedules of one program per row: the choice by hand-tuned constants, the finalisation, then a grid
    over what a program can hold, for each layout of a row over lanes."""
    yield base
    with contextlib.suppress(Decline):
        yield choose(facts, device, constants=BY_HAND)
    for block, warps in itertools.product((8, 16, 32), (2, 4, 8)):
        yield dataclasses.replace(base, final_block=min(block, base.r0_block), final_warps=warps)
    for lanes, chunks in layouts(facts):
        layout = dataclasses.replace(base, r0_block=lanes, chunks=chunks)
        for tile, per_sm in tiles(facts, lanes, chunks):
            count = -(-facts.rows // tile.xblock)
            splits = min(-(-per_sm * device.num_sm // facts.batch), count)
            splits = whole(splits, base) if base.period > 1 else even(count, splits)
            final_block, final_warps = final(splits, lanes, facts.cols * facts.batch, device, FITTED)
            yield dataclasses.replace(
                layout, tile=tile, num_splits=splits, final_block=final_block, final_warps=final_warps
            )


def filling(program: LoopProgram, device: DeviceInfo) -> list[Candidate]:
    """The rules' choice first, then schedules that differ in how many warps a multiprocessor has and how much
    a thread computes, for the columns in blocks and for whole rows; and some for blocks of other widths."""
    found: list[Candidate] = []
    for strategy in STRATEGIES:
        with contextlib.suppress(Decline):
            strategy.applies(program)
            loops = strategy.transform(program)
            facts = strategy.facts(loops)
            if strategy.space is not PersistentSpace or facts.rereads or facts.levels:
                continue
            first = not found
            base = strategy.choose(facts, device, 0, FITTED)
            found.append(Candidate(strategy, loops, base))
            found += _candidates(strategy, loops, fillings(facts, device, base, FILLINGS if first else FEW))
            if facts.batch > 1:
                for width in (facts.cols // 2, 2 * facts.cols):
                    found += _in_blocks_of(width, strategy, program, device)
    return list(dict.fromkeys(found))


# Elements per thread, warps of a program, warps of a multiprocessor, stages.
FEW = ((32, 2, 8, 4), (32, 4, 8, 3), (16, 2, 8, 4), (16, 4, 16, 4), (8, 8, 32, 4))
FILLINGS = (
    *itertools.product((32,), (1, 2, 4), (4, 8, 12), (3, 4)),
    *itertools.product((16,), (1, 2, 4), (8, 16), (3, 4)),
    *itertools.product((8,), (4, 8), (16, 32), (3, 4)),
    *FEW,
)


def fillings(
    facts: Facts, device: DeviceInfo, base: Schedule, chosen: Iterable[tuple[int, int, int, int]]
) -> Iterator[Schedule]:
    """Schedules of one chunk with so many elements, warps and stages each, where rows suffice."""
    lanes = next_power_of_2(facts.cols)
    for elements, warps, per_sm, stages in chosen:
        xblock = elements * warps * device.warp_size // lanes
        if not 1 <= xblock <= facts.rows:
            continue
        at_once = max(1, per_sm // warps * device.num_sm // facts.batch)
        splits = even(count := -(-facts.rows // xblock), min(count, at_once))
        final_block, final_warps = final(splits, lanes, facts.cols * facts.batch, device, FITTED)
        yield dataclasses.replace(
            base,
            tile=Tile(xblock, warps, stages),
            r0_block=lanes,
            chunks=1,
            num_splits=splits,
            final_block=final_block,
            final_warps=final_warps,
        )


def _in_blocks_of(
    width: int, strategy: Strategy, program: LoopProgram, device: DeviceInfo
) -> Iterator[Candidate]:
    cols = int(program.tile_axes[1].size)
    if cols % width == 0 and width < cols:
        loops = in_blocks(program, width)
        facts = facts_of(loops)
        base = strategy.choose(facts, device, 0, FITTED)
        yield from _candidates(strategy, loops, [base, *fillings(facts, device, base, FEW)])


def in_chunks(strategy: Strategy, facts: Facts, device: DeviceInfo) -> Iterator[Schedule]:
    """Schedules in chunks for a row that no program holds by the rules, where almost nothing is spilled."""
    constants = dataclasses.replace(FITTED, chunk_saving=0.0)
    if strategy.space is PersistentSpace and not facts.rereads:
        with contextlib.suppress(Decline):
            start = choose(facts, device, constants=constants, spill_factor=CHUNKED_SPILL_FACTOR)
            yield from (s for s in single(facts, device, start) if s.chunks > 1)


def tiles(facts: Facts, lanes: int, chunks: int) -> Iterator[tuple[Tile, int]]:
    """Tiles of rows of `lanes` lanes, and how many programs to run on a multiprocessor."""
    for xblock, warps in itertools.product((2**i for i in range(15)), (1, 2, 4, 8, 16, 32)):
        elements = xblock * lanes
        per_thread = elements // (warps * 32)
        # Accesses of fewer than 4 elements of a chunk are too narrow.
        least = 8 if facts.instructions < HEAVY else 4
        fits_a_thread = least <= per_thread <= 40 and per_thread >= 4 * chunks
        if xblock > facts.rows or not 80 * least <= elements <= 16384 or not fits_a_thread:
            continue
        for stages, per_sm in itertools.product(range(1, 7), (1, 2, 4, 8, 16)):
            staged = per_sm * elements * facts.staged_bytes * (stages - 1)
            in_flight = per_sm * xblock * facts.cols * facts.load_bytes * (stages - 1)
            if staged > 225_000 or per_sm * warps < 4:
                continue
            # Many warps hide a load's latency themselves: one stage.
            if facts.instructions >= HEAVY:
                wanted = per_sm * warps <= 64 and (stages == 1 or in_flight in HEAVY_IN_FLIGHT)
            else:
                wanted = per_sm * warps <= 16 and in_flight in IN_FLIGHT
            if wanted:
                yield Tile(xblock, warps, stages), per_sm


CHOICES: dict[str, Callable[[LoopProgram, DeviceInfo], list[Candidate]]] = {
    "grid": candidates,
    "filling": filling,
}
"""What to try, by name."""
