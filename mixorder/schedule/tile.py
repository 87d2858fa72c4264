"""Choose the tile of a program whose reductions all end within it, and predict its time. Nothing is timed.

A program has whole blocks along the axes that are reduced. Along the others it has as many elements as wide
accesses need, in every order in which a full tensor lies in memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import sympy

from ..errors import Decline, DeclineReason
from ..ir.hardware import LINE, MAX_THREADS, SECTOR, WARP
from ..ir.program import (
    Axis,
    Load,
    LoopProgram,
    Nest,
    Store,
    closure,
    is_full,
)
from . import baseline
from .device import MEASURED, DeviceInfo
from .finalisation import final, most_partials
from .kernel_time import TIMES, Kind
from .plan import Launch, Layout, Plan, TileOrder, Workspace, in_tiles, next_power_of_2, tiles_along
from .predicted import Case, Expected
from .producers import with_producers
from .staged import pays, placing_us, saved_us, staged_of
from .tile_facts import TileFacts, facts_of_tile, small_result
from .work import Work, computing

ELEMENTS = 8192  # of a tile with little to compute, half as many with more, if blocks are no larger
MOST_ELEMENTS = 32768  # of whole blocks, and of a tile without reductions
PER_THREAD = 64  # elements of a tile with little to compute, half as many with more
MOST_PER_THREAD = 128  # of larger blocks of one tensor, and of no reductions, half as many of several tensors

# Of blocks along columns, Inductor has so many elements at once at most, mostly one in a thread, and reduces
# them apart from what it stores transposed.
AT_ONCE = 64


def staged_results(program: LoopProgram, plan: Plan) -> dict[str, tuple[Axis, ...]]:
    """The results that a plan stages: by the buffer of each, its axes, innermost in memory first."""
    axes, names = program.nests[0].axes, {workspace.result for workspace in plan.results}
    stores = (s for s in program.nests[0].body if isinstance(s, Store) and s.buffer in names)
    small = filter(None, (small_result(program, stmt, axes) for stmt in stores))
    return {result.buffer: tuple(axes[place] for place in result.places) for result in small}


def choose(facts: TileFacts, device: DeviceInfo, split_size: int = 0) -> Plan:
    """The tile of a tile-local program. Raises `Decline` for blocks that do not fit a program."""
    extents = [n if i in facts.whole else 1 for i, n in enumerate(facts.sizes)]
    if math.prod(extents) > MOST_ELEMENTS:
        detail = f"a block of {math.prod(extents)} elements, at most {MOST_ELEMENTS} fit a program"
        raise Decline(DeclineReason.TOO_MANY_LIVE_TILES, detail)
    while True:
        runs = [_run(facts, extents, size, chain) for size, chain in facts.tensors.chains]
        possible = [(run, -place) for run, place in runs if place >= 0]
        if not possible or math.prod(extents) >= _most(facts, min(possible)[0]):
            break
        if facts.of_norm and min(possible)[0] >= 2 * SECTOR and _free(facts, extents) >= WARP:
            break
        larger = list(extents)
        larger[-min(possible)[1]] *= 2
        if (
            all(got >= SECTOR for got, _ in runs)
            and math.prod(tiles_along(facts.sizes, larger)) < 4 * device.num_sm
        ):
            break
        extents = larger
    chosen = completed(extents, warps_of(extents, facts), facts, device)
    if chosen.results and not facts.light and (wide := _wide(facts, extents)) != extents:
        wider = completed(wide, warps_of(wide, facts), facts, device)
        chosen = wider if wider.results else chosen
    return with_finalisation(chosen, facts, device)


def completed(extents: Sequence[int], warps: int, facts: TileFacts, device: DeviceInfo) -> Plan:
    """The plan of a tile of these elements, but for the second stage."""
    chosen = _ordered(schedule_of(extents, warps, facts), facts)
    if facts.row_axes:
        chosen = with_producers(chosen, facts.sizes, facts.row_axes, device)
    return _with_staging(chosen, facts, device)


def _wide(facts: TileFacts, extents: Sequence[int]) -> list[int]:
    """A tile with one block along the first axis instead of several, and more along the columns: each warp
    has whole blocks then, so that none waits for another one's."""
    wide = list(extents)
    if len(wide) == 4 and facts.whole == {1, 3} and facts.tensors.transposed:
        wide[0], wide[2] = 1, max(wide[2], min(wide[0] * wide[2], facts.sizes[2]))
    return wide


def _with_staging(plan: Plan, facts: TileFacts, device: DeviceInfo) -> Plan:
    moved = facts.load_bytes + facts.tensors.store_bytes
    if not pays(facts.small, facts.sizes, plan.extents, moved, device):
        return dataclasses.replace(plan, results=()).changed(dependent=False)
    band = plan.order.grouped
    if not facts.light and not plan.produced:
        band = max(band, _band(facts, plan.extents, 8, 0))
    return through_workspace(plan, facts).changed(dependent=device.overlaps, grouped=band)


def through_workspace(plan: Plan, facts: TileFacts) -> Plan:
    """A plan that stages the small results of which a tile has few that lie next to each other."""
    small = staged_of(facts.small, facts.sizes, plan.extents)
    workspaces = tuple(Workspace(result.buffer, result.placing_tile(facts.sizes)) for result in small)
    return dataclasses.replace(plan, results=workspaces)


def _free(facts: TileFacts, extents: Sequence[int]) -> int:
    """Elements of a tile for each place along the axes that are reduced."""
    return math.prod(extent for i, extent in enumerate(extents) if i not in facts.whole)


def _most(facts: TileFacts, run: int) -> int:
    """The elements up to which a tile grows whose shortest run in memory is of so many bytes."""
    if not facts.reductions:
        return MOST_ELEMENTS
    if not _roomy(facts):
        return ELEMENTS // 4 if facts.heavy else ELEMENTS // 2
    return ELEMENTS if run >= LINE else 2 * ELEMENTS


def _roomy(facts: TileFacts) -> bool:
    """Whether a large tile is faster: with little to compute, and a reduction of blocks. With sums or maxima
    of all rows alone, warps of a large tile wait for each other."""
    return facts.light and bool(facts.whole)


def _ordered(plan: Plan, facts: TileFacts) -> Plan:
    """A plan with the order of its tiles, and of the elements in a tile."""
    # A kernel without reductions follows the one that computes its scales, and reads the same tensor.
    order = TileOrder(backwards=not facts.reductions, grouped=_band(facts, plan.extents))
    ordered = dataclasses.replace(plan, order=order)
    lanes, warps = WARP, plan.launch.num_warps
    if facts.of_norm:  # Triton spreads threads over all rows first
        return ordered
    each, elements = facts.per_access, math.prod(plan.extents) // (warps * lanes)
    rows = max(1, min(elements, PER_THREAD if facts.reductions else MOST_PER_THREAD) // each)
    cols = lanes // max(1, 32 // rows) * each  # of the 32 rows that a warp loads
    limited = ordered.changed(max_registers=_most_registers(facts, elements))
    # For more elements, a GPU gets the same instructions without words of columns, or spills more.
    return dataclasses.replace(limited, layout=Layout(rows, cols, elements <= 64))


def _most_registers(facts: TileFacts, elements: int) -> int:
    """The most that a thread with so many elements gets, so that more programs run at once; 0 where the
    compiler decides. ptxas takes all that a limit allows, and spills where it needs more."""
    if elements > 64 and facts.reductions:
        return 168  # so that 12 warps fit a multiprocessor
    if facts.light or not facts.tensors.transposed:
        return 0
    # Where a thread computes much, but not most of the time, more programs gain more than a few spilled
    # registers cost; a kernel that would spill many is compiled with more (`inductor.launch_options.fit`).
    return 72 if elements <= 32 and 24 <= facts.instructions <= 56 else 0


def _band(facts: TileFacts, extents: Sequence[int], band: int = 16, least: float = 4e6) -> int:
    """Tiles along the first axis in a row, where several of them write one line of a transposed result, and
    all tiles of some rows move more than `least` bytes: of less, L2 still has the line when its next tile
    comes."""
    several = [n for n in tiles_along(facts.sizes, extents) if n > 1]
    shortest = min(
        (_run(facts, extents, size, chain)[0] for size, chain in facts.tensors.chains), default=LINE
    )
    if shortest >= LINE or len(several) != 2 or several[0] % band:
        return 1
    moved = facts.numel * (facts.load_bytes + facts.tensors.store_bytes) / several[0]
    return band if moved > least else 1


def _run(facts: TileFacts, extents: Sequence[int], size: int, chain: Sequence[int]) -> tuple[int, int]:
    """Bytes of a tile that lie next to each other along a chain of elements of `size` bytes, and the axis
    along which the tile can grow to have more; -1 if there is none."""
    run = size
    for place in chain:
        run *= extents[place]
        if extents[place] < facts.sizes[place]:
            return run, place
    return run, -1


def _in_sectors(facts: TileFacts, extents: Sequence[int]) -> float:
    """The bytes of the sectors that a tile touches, over those of its elements."""
    runs = [_run(facts, extents, size, chain)[0] for size, chain in facts.tensors.chains]
    return sum(max(1.0, SECTOR / run) for run in runs) / len(runs) if runs else 1.0


def warps_of(extents: Sequence[int], facts: TileFacts) -> int:
    """The warps of a program with a tile of these elements."""
    elements, whole = math.prod(extents), math.prod(facts.sizes[i] for i in facts.whole)
    each = PER_THREAD if _roomy(facts) else PER_THREAD // 2
    if facts.of_norm:
        each = 16  # and a tile has a column for each lane of a warp at least
    elif (whole > ELEMENTS and facts.tensors.loads <= 1) or not facts.reductions:
        each = MOST_PER_THREAD if facts.tensors.loads <= 1 else MOST_PER_THREAD // 2
    return max(1, min(MAX_THREADS // WARP, elements // WARP // each))


def schedule_of(extents: Sequence[int], warps: int, facts: TileFacts) -> Plan:
    """A plan with a tile of these elements."""
    return Plan(in_tiles(facts.sizes, extents, facts.summed), Launch(warps))


def with_finalisation(plan: Plan, facts: TileFacts, device: DeviceInfo) -> Plan:
    """A plan with the number of partial results that its tiles leave, and how these are reduced. Raises
    `Decline` for more than a program holds."""
    if not facts.summed:
        return plan
    if plan.splits > most_partials(device):
        detail = f"{plan.splits} partial results, at most {most_partials(device)} fit a program"
        raise Decline(DeclineReason.TOO_MANY_LIVE_TILES, detail)
    cols = math.prod(n for i, n in enumerate(facts.sizes) if i not in facts.summed)
    block, warps = final(plan.splits, next_power_of_2(cols), device)
    return plan.changed(block=block, warps=warps)


def expected_of_tile(case: Case) -> Expected:
    """The prediction for a tile-local program: it moves every tensor once. Inductor has a kernel for the
    blocks along each axis, which reads its inputs and writes its results."""
    loops, facts, moved, device, times = case.loops, case.facts, case.moved, case.device, case.times
    nest = loops.nests[0]
    once = moved.read + moved.written + moved.workspace
    from_l2 = facts.load_bytes * facts.numel if facts.row_axes else 0  # from L2, for values of whole rows
    once += 2 * moved.joined
    idle = Work(once, once * _in_sectors(facts, case.plan.extents) + from_l2)
    launch = times.start_us + times.fused.latency_us
    tiled, exchanged = times.tiled, facts.tensors.transposed
    exchanges = tiled.reduced_us * facts.reductions + tiled.transposed_us * exchanged
    exchanges *= facts.numel / 1e6 * MEASURED.num_sm / device.num_sm
    staged, sizes, extents = 0, facts.sizes, case.plan.extents
    if case.plan.results:
        staged = sum(result.num_bytes(sizes) for result in staged_of(facts.small, sizes, extents))
        launch += placing_us(staged, device, times) - saved_us(facts.small, sizes, extents)
    if workspace := moved.workspace - staged:
        launch += times.launch_us * (not case.plan.results)  # they are one kernel
        launch += times.us(Kind.FINAL, Work(workspace, workspace), device)
    work = idle + computing(loops, nest, nest.body)
    if loops.producer_nest is not None:
        launch += times.launch_us  # the mailbox is filled before
        work += computing(loops, loops.producer_nest, loops.producer_nest.body)
    ours_us = (
        launch + exchanges + times.us(Kind.POINTWISE, work, device),
        launch + times.us(Kind.POINTWISE, idle, device),
    )
    return case.versus(kernels_of(case.lowered), ours_us, launches_of(loops))


def launches_of(loops: LoopProgram) -> int:
    """How many launches the loops take: what follows the first kernel is one."""
    return 1 + (len(loops.nests) > 1) + (loops.producer_nest is not None)


def kernels_of(program: LoopProgram) -> list[baseline.Kernel]:
    """What Inductor has in a kernel each of a lowered program: the stores that need reductions over the same
    axes. What needs no reduction is stored by one of them."""
    (nest,), stores_by_axes = program.nests, dict[frozenset[sympy.Symbol], list[Store]]()
    for store in (s for s in nest.body if isinstance(s, Store)):
        needed = Nest(nest.loops, closure(nest.body, [store]))
        stores_by_axes.setdefault(needed.reduced, []).append(store)
    plain, kernels = stores_by_axes.pop(frozenset(), []), list[baseline.Kernel]()
    casts = any(item == 1 for item, _ in facts_of_tile(program).tensors.chains)
    for stores in list(stores_by_axes.values()) or [[]]:
        every = facts_of_tile(_subprogram(program, [*plain, *stores]))
        small = [s for s in stores if not is_full(s, nest.axes, nest.reduced)]
        if separate := casts and every.memory_orders > 1 and _block(every) <= AT_ONCE and bool(small):
            kernels.append(_kernel_of(_subprogram(program, small), casts))
            stores = [s for s in stores if s not in small]
        kernels.append(_kernel_of(_subprogram(program, [*plain, *stores]), casts and not separate))
        plain = []
    return kernels


def _subprogram(program: LoopProgram, stores: Sequence[Store]) -> LoopProgram:
    """What some stores of a program of one nest need."""
    (nest,) = program.nests
    return dataclasses.replace(program, nests=(Nest(nest.loops, closure(nest.body, stores)),))


def _block(facts: TileFacts) -> int:
    return math.prod(facts.sizes[i] for i in facts.whole)


def _kernel_of(program: LoopProgram, combines: bool) -> baseline.Kernel:
    """Inductor's kernel for a program of one nest: it reads its inputs once, and writes its results.
    `combines`: whether threads combine what they have of a block, as far as is known."""
    facts, nest = facts_of_tile(program), program.nests[0]
    moves = baseline.moving_once(program, (s.buffer for s in nest.body if isinstance(s, Load | Store)))
    along_rows = facts.whole <= {len(facts.sizes) - 1}
    kind = Kind.POINTWISE if along_rows or facts.memory_orders > 1 else Kind.COLUMNS
    moved = moves.dram / (TIMES.tiled.transposed_share if facts.memory_orders > 1 else 1.0)
    work = Work(moved, moved) + computing(program, nest, nest.body)
    if combines and not along_rows:
        combined = TIMES.tiled.combine_instructions * facts.reductions / max(1.0, _block(facts) / AT_ONCE)
        work += Work(0, 0, combined * facts.numel)
    return baseline.Kernel(kind, work, facts.numel // baseline.BLOCK + 1, 1)
