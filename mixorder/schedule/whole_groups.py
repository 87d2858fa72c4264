"""Choose the tile of a program that keeps whole reduction groups in registers, and predict its time. Nothing
is timed.

A tile has whole groups, as many as make up a line of memory and give each thread enough to load at once.
"""

from __future__ import annotations

import dataclasses
import math

import sympy

from ..errors import Decline, DeclineReason, GainsNothing
from ..ir.hardware import LINE, MAX_REGISTERS, MAX_THREADS, SECTOR, WARP
from ..ir.program import Compute, LoopProgram
from ..transform.reduction_groups import two_pass
from . import baseline
from .device import DeviceInfo
from .facts import REGISTER_OVERHEAD, TiledFacts, cost_of, held_words, streamed
from .kernel_time import Kind
from .plan import Launch, Plan, SecondStage, in_tiles, next_power_of_2, tiles_along
from .predicted import Case, Expected
from .reduction_groups import (
    MOST_PARTIALS,
    WARPS,
    across,
    facts_of_reduction_groups,
    inductors_kernels,
    longer,
    sizes_of,
)
from .tile import kernels_of
from .work import Work, computing


@dataclasses.dataclass(frozen=True)
class WholeGroupFacts(TiledFacts):
    """Facts of a program that keeps whole reduction groups."""

    inside: frozenset[int] = frozenset()
    """The places of those that a tile has whole."""

    across: tuple[int, ...] = ()
    """The places of other axes than the last along which a full tensor is contiguous."""

    words: float = 0.0
    """Words of an element that a thread holds across a reduction."""

    columns: int = 1
    """The last axis of the second nest, but for the splits that it adds up."""


def facts_of_whole_groups(program: LoopProgram) -> WholeGroupFacts:
    nest, *second = program.nests
    sizes = sizes_of(program, nest.axes)
    inside = frozenset(i for i, axis in enumerate(nest.axes) if axis.symbol in nest.reduced)
    cols = math.prod(sizes[i] for i in inside)
    return WholeGroupFacts(
        math.prod(sizes) // cols,
        cols,
        **streamed(program, nest.accesses()),
        instructions=sum(cost_of(s) for s in nest.body if isinstance(s, Compute)),
        sizes=sizes,
        inside=inside,
        across=across(nest.axes, nest.accesses()),
        words=held_words(nest, {axis.symbol for axis in nest.axes}),
        columns=(1, *sizes_of(program, [axis for final in second for axis in final.loops[1:]]))[-1],
    )


def choose(facts: WholeGroupFacts, device: DeviceInfo, split_size: int = 0) -> Plan:
    """The plan. Raises `Decline` where a reduction group does not fit a program, or these are too few."""
    extents = _extents(facts, device)
    elements, programs = math.prod(extents), math.prod(tiles_along(facts.sizes, extents))
    # Elements of a thread: it reduces those of a group by itself where groups are adjacent in memory.
    least = 16 if len(extents) - 1 in facts.inside else 32
    most = max(1, min(MAX_THREADS, elements // least) // WARP)
    fewest = max(1, elements // 64 // WARP)
    every = (2**n for n in range(fewest.bit_length() - 1, most.bit_length()))
    several = {warps: resident(facts, elements, warps, device) for warps in every}
    more = 1 if len(extents) - 1 in facts.inside else -1
    # Four programs of a multiprocessor are enough to load while others compute, if they load 48 KB at once.
    warps = max(several, key=lambda n: (min(several[n], 4), more * n), default=0)
    if several.get(warps, 0) * elements * facts.load_bytes < 48 << 10:
        detail = f"a reduction group of {facts.cols} elements does not fit a program, or computes too much"
        raise GainsNothing(DeclineReason.TOO_MANY_LIVE_TILES, detail)
    if programs < device.num_sm:
        detail = f"{programs} programs, too few for {device.num_sm} multiprocessors"
        raise GainsNothing(DeclineReason.ROW_TOO_WIDE, detail)
    columns = min(SECTOR // 4, next_power_of_2(facts.columns))
    return Plan(in_tiles(facts.sizes, extents), Launch(warps), SecondStage(columns, WARPS))


def _extents(facts: WholeGroupFacts, device: DeviceInfo) -> list[int]:
    """A tile of whole groups: of as many as fill lines of memory, where they lie side by side in it, and of
    several small ones, if there are enough."""
    extents = [next_power_of_2(n) if i in facts.inside else 1 for i, n in enumerate(facts.sizes)]
    last = len(extents) - 1
    for place in {last, *facts.across} - facts.inside:
        extents[place] = min(LINE // facts.item_bytes, next_power_of_2(facts.sizes[place]))
        while extents[place] * facts.item_bytes > SECTOR and math.prod(extents) > 16384:
            extents[place] //= 2
    for place in (i for i in reversed(range(last)) if i not in facts.inside):
        while math.prod(extents) < 2048 and extents[place] < facts.sizes[place]:
            larger = [n * (1 + (i == place)) for i, n in enumerate(extents)]
            if math.prod(tiles_along(facts.sizes, larger)) < 4 * device.num_sm:
                break
            extents = larger
    return extents


def resident(facts: WholeGroupFacts, elements: int, warps: int, device: DeviceInfo) -> int:
    """How many programs have registers on a multiprocessor at once."""
    each = elements / (WARP * warps) * facts.words + REGISTER_OVERHEAD
    if each > MAX_REGISTERS:
        return 0
    return int(min(device.registers // (each * WARP * warps), device.max_threads // (WARP * warps)))


def totals_tile(sizes: tuple[int, ...], plan: Plan) -> tuple[int, ...]:
    """The second kernel's tile, along each of its axes."""
    columns = plan.second.block
    rows = min(MOST_PARTIALS // columns, next_power_of_2(sizes[0]))
    return (rows, *[1] * (len(sizes) - 2), columns)[: len(sizes)]


def expected_of_whole_groups(case: Case) -> Expected:
    """The prediction: the first kernel moves every tensor once. A program computes when all is loaded, while
    others of its multiprocessor load."""
    loops, plan, facts, moved = case.loops, case.plan, case.facts, case.moved
    device, times = case.device, case.times
    nest, elements = loops.nests[0], math.prod(plan.extents)
    once = moved.read + moved.written + moved.workspace
    launch = times.start_us + times.kernel_us + (len(loops.nests) - 1) * times.launch_us
    if len(loops.nests) > 1:
        launch += times.us(Kind.FINAL, Work(moved.workspace, moved.workspace), device)
    programs = math.prod(tiles_along(facts.sizes, plan.extents))
    lanes = elements * programs / facts.numel
    moved_once = Work(once, once * _in_sectors(loops, plan))
    computed = computing(loops, nest, nest.body).scaled(lanes)
    moving_us, computing_us = (
        times.us(Kind.POINTWISE, work, device) - times.kernel_us for work in (moved_once, computed)
    )
    several = max(1, resident(facts, elements, plan.launch.num_warps, device))
    if len(facts.sizes) - 1 in facts.inside:
        moving_us *= longer(facts.sizes, plan.extents)
    moving_us *= times.tiled.whole_across_factor if facts.across else 1.0
    less, more = sorted((moving_us, computing_us))
    waits = times.tiled.wait_us * programs / (several * device.num_sm)
    ours_us = launch + more + (less + waits) / several, launch + moving_us
    return case.versus(_inductors(case.lowered, device), ours_us, len(loops.nests))


def _in_sectors(loops: LoopProgram, plan: Plan) -> float:
    """The bytes of the sectors that a tile touches of full tensors, over those of its elements."""
    nest, touched, item_bytes = loops.nests[0], 0.0, 0.0
    for access in nest.accesses():
        item, run = loops.buffer(access.buffer).dtype.itemsize, 1
        strides = {access.index.coeff(axis.symbol): i for i, axis in enumerate(nest.axes)}
        while (place := strides.get(sympy.Integer(run))) is not None:
            size = loops.hint(nest.axes[place].size)
            run *= max(1, min(size, plan.extents[place]))
            if plan.extents[place] < size:
                break
        item_bytes += item
        touched += SECTOR * (-(-run * item // SECTOR) + bool(run * item % SECTOR)) / run
    return touched / item_bytes if item_bytes else 1.0


def _inductors(lowered: LoopProgram, device: DeviceInfo) -> list[baseline.Kernel]:
    """Inductor's kernels, as for two passes; for what those are not enough, as for a tile."""
    try:
        loops = two_pass(lowered)
    except Decline:
        return kernels_of(lowered)
    return inductors_kernels(loops, facts_of_reduction_groups(loops), device)
