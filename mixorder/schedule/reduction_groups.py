"""Choose how a program over reduction groups is divided, and predict its time. Nothing is timed.

The programs of the first kernel have a split of the reduced axes each. They are as many as keep all
multiprocessors busy, but leave few partial sums. A tile fills whole lines of memory. A thread of the first
kernel loads all that it has of a tile at once, and adds up what different accesses gave it before it adds
that to its sums. So these are few, and registers are left for loads under way. Along contiguous rows, a sum
for each element of a tile was faster.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import sympy

from ..errors import Decline, DeclineReason
from ..inductor.config import realize_threshold
from ..ir.hardware import ACCESS, SECTOR, WARP
from ..ir.program import (
    NUM_SPLITS,
    Axis,
    AxisClass,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Statement,
    Store,
    Value,
    closure,
    operands,
)
from . import baseline
from .device import DeviceInfo
from .facts import REGISTER_OVERHEAD, TiledFacts, cost_of, streamed, words_of
from .kernel_time import TIMES, Kind
from .plan import Applied, Launch, Plan, SecondStage, TileOrder, Walk, next_power_of_2, tiles_along
from .predicted import Case, Expected
from .work import Work, addressing, computing

ELEMENTS = 4096  # of a tile
NARROW_COLUMNS = 64  # of a tile: a line of half precision; at least so many where that axis is reduced
WARPS = 4
PER_THREAD = 8  # elements, at least
MOST_PARTIALS = 4096  # partial sums of a program of the second kernel, at most


@dataclasses.dataclass(frozen=True)
class TotalAxes:
    """The axes of the totals, which the second nest computes."""

    sizes: tuple[int, ...] = ()

    reduced: frozenset[int] = frozenset()
    """The places of those that it reduces."""

    looped: bool = False
    """Whether the first one of these has any size, so that the second kernel has a loop over it."""


@dataclasses.dataclass(frozen=True)
class ReductionGroupFacts(TiledFacts):
    """Facts of a program over reduction groups. `sizes`: of the axes of the first and the third nest."""

    summed: frozenset[int] = frozenset()
    """The places of those that are reduced."""

    column_sums: tuple[int, ...] = ()
    """Sizes of the axes of sums over elements that are computed from totals, if there are any."""

    in_column_sums: frozenset[int] = frozenset()
    """The places of axes that those have."""

    sums: int = 0
    """Words of the first nest's sums: moments have three."""

    moments: bool = False
    """Whether some of these are moments."""

    at_once: float = 0.0
    """Words of an element that the first nest has at once beside its sums."""

    applied: float = 0.0
    """Words of an element that the third nest has at once, and that it stores."""

    across: tuple[int, ...] = ()
    """The place of another axis along which some full tensors are contiguous, if there is one."""

    total_axes: TotalAxes = TotalAxes()
    """Of the second nest."""


def facts_of_reduction_groups(program: LoopProgram) -> ReductionGroupFacts:
    first, second, third, *fourth = program.nests
    sizes, kept, reduced = sizes_of(program, third.axes), second.axes, second.reduced
    summed = [i for i, axis in enumerate(third.axes) if axis in first.summed]
    rows = math.prod(sizes[i] for i in summed)
    partials = [s for s in first.body if isinstance(s, PartialAccumulate)]
    return ReductionGroupFacts(
        rows,
        math.prod(sizes) // rows,
        **streamed(program, first.accesses()),
        instructions=sum(cost_of(s) for s in third.body if isinstance(s, Compute)),
        sizes=sizes,
        summed=frozenset(summed),
        sums=sum(3 if s.moments else 1 for s in partials),
        moments=any(s.moments for s in partials),
        at_once=_at_once(program, first),
        applied=_at_once(program, third) + _bytes(program, third, Store) / 4,
        across=across(third.axes, [*first.accesses(), *third.accesses()]),
        column_sums=sizes_of(program, [axis for nest in fourth for axis in nest.loops[1:]]),
        in_column_sums=frozenset(
            i for i, axis in enumerate(third.axes) if fourth and axis not in third.summed
        ),
        total_axes=TotalAxes(
            sizes_of(program, kept),
            frozenset(i for i, axis in enumerate(kept) if axis.symbol in reduced),
            any(not axis.size.is_number and axis.symbol in reduced for axis in kept),
        ),
    )


def _at_once(program: LoopProgram, nest: Nest) -> float:
    """The most words of an element that a thread has at once: what is loaded, before it is converted, or what
    is computed, in the order of the statements."""
    deps, every = nest.dependence(), {axis.symbol for axis in nest.axes if axis.size != 1}
    last = {name: i for i, stmt in enumerate(nest.body) for name in operands(stmt)}
    change = [0] * len(nest.body)
    for i, stmt in enumerate(nest.body):
        if isinstance(stmt, Load | Compute) and stmt.name in last and every <= deps[stmt.name]:
            change[i] += words_of(stmt)
            change[last[stmt.name]] -= words_of(stmt)
    return max(_bytes(program, nest, Load) / 4, *itertools.accumulate(change))


def _bytes(program: LoopProgram, nest: Nest, kind: type[Load | Store]) -> int:
    """Bytes of an element that loads or stores move along all axes of a nest."""
    every = {axis.symbol for axis in nest.axes if axis.size != 1}
    moved = (s.buffer for s in nest.body if isinstance(s, kind) and every <= s.index.free_symbols)
    return sum(program.buffer(name).dtype.itemsize for name in moved)


def sizes_of(program: LoopProgram, axes: Iterable[Axis]) -> tuple[int, ...]:
    """The sizes of axes; of one that has any, that of the example."""
    return tuple(max(1, program.hint(axis.size)) for axis in axes)


def across(axes: Sequence[Axis], accesses: Iterable[Load | Store]) -> tuple[int, ...]:
    """The places of axes but the last along which an access is contiguous."""
    places = {i for s in accesses for i, axis in enumerate(axes[:-1]) if s.index.coeff(axis.symbol) == 1}
    return tuple(sorted(places))


def choose(facts: ReductionGroupFacts, device: DeviceInfo, split_size: int = 0) -> Plan:
    """The plan of a program over reduction groups. Raises `Decline` if a kernel cannot hold all it needs."""
    along, all_summed = not _in_columns(facts), math.prod(facts.sizes[i] for i in facts.summed)
    # Of the first kernel's tile, where that is not all that is summed, and a thread has much at once.
    most_elements = ELEMENTS // 2 if along and all_summed > ELEMENTS and facts.at_once > 2 else ELEMENTS
    # Where memory is contiguous along an axis that is kept: two lines, and one for moments and where tensors
    # lie along another axis.
    wide = 2 * NARROW_COLUMNS
    columns = NARROW_COLUMNS if facts.moments or facts.across else wide
    extents = _fitting(
        facts, lambda tile: facts.at_once + facts.sums / _unrolled(facts, tile), most_elements, columns
    )
    applied = _fitting(facts, lambda tile: facts.applied, ELEMENTS // 2 if along else ELEMENTS, wide)
    tiles = tiles_along(facts.sizes, extents)
    steps = math.prod(tiles[i] for i in facts.summed)
    programs = math.prod(tiles) // steps
    most = MOST_PARTIALS // math.prod(_whole(facts).values())
    if not most:
        together = [facts.total_axes.sizes[i] for i in sorted(facts.total_axes.reduced)]
        detail = f"{together} results are reduced together"
        raise Decline(DeclineReason.ROW_TOO_WIDE, detail)
    most_programs = device.num_sm * 4 * ELEMENTS // math.prod(extents)
    wanted = most_programs // programs
    if split_size:
        wanted = -(-facts.rows // split_size)
    splits = max(1, min(wanted, steps, most))
    splits = -(-steps // -(-steps // splits))  # as many as it takes for programs of the same number of tiles
    # Where the shared memory of a multiprocessor is enough for two programs.
    room = device.shared_memory // (2 * math.prod(extents) * max(1, facts.load_bytes))
    stages = max(1, min(2 if facts.across else 3, 1 + room))
    outer = _outermost(facts, extents) if _in_columns(facts) else min(facts.summed)
    walks = [Walk(1 if i in facts.summed else tiles[i], tile=extent) for i, extent in enumerate(extents)]
    unroll = _unrolled(facts, extents)
    walks[outer] = Walk(split=splits, unroll=unroll, tile=extents[outer] // unroll)
    second_tile = _second_tile(facts, splits)
    order = TileOrder(backwards=True)
    second = SecondStage(second_tile[-1], WARPS)
    column_sums = _column_sums_tile(facts, applied) if facts.column_sums else ()
    totals = Applied(applied, warps_of(applied), second_tile, programs < most_programs, column_sums)
    return Plan(tuple(walks), Launch(warps_of(extents), stages), second, totals, order)


def _in_columns(facts: ReductionGroupFacts) -> bool:
    """Whether a tile has memory that is contiguous along an axis that is kept."""
    return len(facts.sizes) - 1 not in facts.summed or bool(facts.across)


def _outermost(facts: ReductionGroupFacts, extents: tuple[int, ...]) -> int:
    """The place of the outermost reduced axis along which a tile has several elements, if one has."""
    return min(facts.summed, key=lambda i: (extents[i] == 1, i))


def _unrolled(facts: ReductionGroupFacts, extents: tuple[int, ...]) -> int:
    """How many elements of a tile the first kernel adds up before it adds them to a sum."""
    if not _in_columns(facts):
        return 1
    accesses = math.prod(extents) * facts.item_bytes // (WARP * warps_of(extents) * ACCESS)  # of each tensor
    return max(1, min(accesses, extents[_outermost(facts, extents)]))


def _fitting(
    facts: ReductionGroupFacts, words: Callable[[tuple[int, ...]], float], elements: int, columns: int
) -> tuple[int, ...]:
    """The largest tile of at most so many elements whose `words` of an element find registers."""
    while True:
        extents = tile_of(facts, elements, columns)
        each = math.prod(extents) // (WARP * warps_of(extents))
        if each <= PER_THREAD or each * words(extents) + REGISTER_OVERHEAD <= 224:
            return extents
        elements //= 2


def warps_of(extents: tuple[int, ...]) -> int:
    return max(1, min(WARPS, math.prod(extents) // (WARP * PER_THREAD)))


def tile_of(facts: ReductionGroupFacts, elements: int, columns: int) -> tuple[int, ...]:
    """A tile of at most so many elements, along each axis: first along the contiguous one, then along the one
    along which other tensors are, then along those before. With long parts of a row, it has rows of one
    channel, or only one row."""
    last = len(facts.sizes) - 1
    extents, left = [1] * (last + 1), elements
    for place in dict.fromkeys((last, *facts.across, *range(last, -1, -1))):
        size = facts.sizes[place]
        kept = place not in facts.summed
        if place < last and last in facts.summed and extents[last] >= (256 if kept else 1024):
            continue
        if place in facts.across or (place == last and _in_columns(facts)):
            extents[place] = min(left, columns, next_power_of_2(size))
        elif place < last:
            extents[place] = min(left, next_power_of_2(size))
        else:
            extents[place] = min(left, _least_idle(size))
        left //= extents[place]
    return tuple(extents)


def _least_idle(size: int) -> int:
    """The longest part of a row, of those that leave nearly as few lanes idle as any."""
    lengths = [2**n for n in range(ELEMENTS.bit_length() - 1, NARROW_COLUMNS.bit_length() - 2, -1)]
    lanes = {n: -(-size // n) * n for n in lengths}
    return next(n for n in lengths if lanes[n] <= 1.35 * min(lanes.values()))


def _whole(facts: ReductionGroupFacts) -> dict[int, int]:
    """The elements of the second kernel's tile along the axes that it reduces, by the places of these."""
    extents = {i: next_power_of_2(facts.total_axes.sizes[i]) for i in sorted(facts.total_axes.reduced)}
    if facts.total_axes.looped:
        first, *rest = extents
        room = MOST_PARTIALS // math.prod(extents[i] for i in rest)
        extents[first] = max(1, min(extents[first], room))
    return extents


def _second_tile(facts: ReductionGroupFacts, splits: int) -> tuple[int, ...]:
    """The second kernel's tile, along the splits and each axis of the totals."""
    extents = [_whole(facts).get(i, 1) for i in range(len(facts.total_axes.sizes))]
    tile = [next_power_of_2(splits), *extents]
    free = [
        i for i in range(len(extents)) if i not in facts.total_axes.reduced and facts.total_axes.sizes[i] > 1
    ]
    if free:
        inner = free[-1]
        in_groups = len(extents) - 1 in facts.total_axes.reduced
        room = max(1, (1024 if in_groups else MOST_PARTIALS) // math.prod(tile))
        tile[inner + 1] = min(32, room, next_power_of_2(facts.total_axes.sizes[inner]))
    return tuple(tile)


def _column_sums_tile(facts: ReductionGroupFacts, applied: tuple[int, ...]) -> tuple[int, ...]:
    """The fourth kernel's tile, along the splits and each axis of its sums: the columns of a sector, or fewer
    where there are many splits, so that more programs add them up."""
    extents, splits = [1] * len(facts.column_sums), _tiles(facts.sizes, facts.in_column_sums, applied)
    rows = min(1024, next_power_of_2(splits))
    extents[-1] = min(SECTOR // 4, 1024 // rows, next_power_of_2(facts.column_sums[-1]))
    return rows, *extents


def _steps_of_column_sums(facts: ReductionGroupFacts, totals: Applied) -> int:
    """The steps of a program of the fourth kernel, each of which loads a tile and adds it up."""
    return -(-_tiles(facts.sizes, facts.in_column_sums, totals.tile) // totals.ends[0])


def _tiles(sizes: Sequence[int], kept: Collection[int], tile: Sequence[int]) -> int:
    """The tiles along all axes that are not kept."""
    return math.prod(n for i, n in enumerate(tiles_along(sizes, tile)) if i not in kept)


def placed(program: LoopProgram, plan: Plan) -> LoopProgram:
    """The program with the number of splits that the second and the fourth nest add up."""
    assert isinstance(plan.totals, Applied)
    first, second, third, *fourth = program.nests
    nests, buffers = [first, _of_splits(second, plan.splits), third], list(program.buffers)
    num_splits = dict.fromkeys((buffer.name for buffer in buffers), plan.splits)
    for nest in fourth:
        kept = [i for i, axis in enumerate(third.axes) if axis not in third.summed]
        count = _tiles(sizes_of(program, third.axes), kept, plan.totals.tile)
        nests.append(_of_splits(nest, count))
        workspaces = {s.buffer for s in third.body if isinstance(s, PartialAccumulate)}
        num_splits |= dict.fromkeys(workspaces, count)
        for i, buffer in enumerate(buffers):
            if buffer.name in workspaces:
                buffers[i] = dataclasses.replace(buffer, shape=(sympy.Integer(count), *buffer.shape[1:]))
    nests = [
        dataclasses.replace(nest, body=tuple(_of_so_many(stmt, num_splits) for stmt in nest.body))
        for nest in nests
    ]
    return dataclasses.replace(program, buffers=tuple(buffers), nests=tuple(nests))


def _of_so_many(stmt: Statement, num_splits: dict[str, int]) -> Statement:
    """A statement whose place in a buffer depends on the number of splits there."""
    if not isinstance(stmt, Load | Store | PartialAccumulate):
        return stmt
    index = stmt.index.xreplace({NUM_SPLITS: sympy.Integer(num_splits[stmt.buffer])})
    return dataclasses.replace(stmt, index=index)


def _of_splits(nest: Nest, count: int) -> Nest:
    """A nest that adds up so many splits."""
    split, *axes = nest.loops
    splits = dataclasses.replace(split, size=sympy.Integer(count), kind=AxisClass.ROW)
    body = nest.body
    if count == 1:
        only = {split.symbol: sympy.S.Zero}
        body = tuple(
            dataclasses.replace(s, index=s.index.xreplace(only)) if isinstance(s, Load) else s for s in body
        )
    return Nest((splits, *axes), body)


def expected_of_reduction_groups(case: Case) -> Expected:
    """The prediction for a program over reduction groups.

    Where lanes are along columns, a program adds up the rows of its tile at its end, through shared
    memory."""
    loops, plan, facts, totals = case.loops, case.plan, case.facts, case.plan.totals
    device, times = case.device, case.times
    assert isinstance(totals, Applied)
    first, _, third, *fourth = loops.nests
    sums, applied = _work(loops, first), _work(loops, third)
    small = times.us(Kind.FINAL, Work(2 * case.moved.workspace, 2 * case.moved.workspace), device)
    launch = times.start_us + (len(loops.nests) - 1) * times.launch_us
    of_rows = len(facts.sizes) - 1 in facts.summed
    if of_rows:
        small += times.tiled.fill_us
    else:
        rows = math.prod(plan.walk[i].tile for i in facts.summed)
        partials = sum(isinstance(s, PartialAccumulate) for s in first.body)
        small += times.fused.tree_us * partials * math.log2(rows * plan.launch.num_warps + 1)
    if fourth:
        small += times.fused.load_us * _steps_of_column_sums(facts, totals)
    warm = _reread_bytes(loops) if of_rows else 0.0
    idle = 1.0
    if of_rows:
        idle = longer(facts.sizes, totals.tile) * (times.tiled.across_factor if facts.across else 1.0)

    def ours(reducing: Work, applying: Work) -> float:
        reducing, applying = (
            dataclasses.replace(w, dram=w.dram * idle, l2=w.l2 * idle) for w in (reducing, applying)
        )
        applying = dataclasses.replace(applying, dram=max(0.0, applying.dram - warm))
        return launch + small + sum(times.us(Kind.POINTWISE, work, device) for work in (reducing, applying))

    inductor_kernels = inductors_kernels(loops, facts, device)
    ours_us = ours(sums, applied), ours(sums.idle(), applied.idle())
    return case.versus(inductor_kernels, ours_us, len(loops.nests))


def _reread_bytes(loops: LoopProgram) -> float:
    """Bytes that the third kernel reads after the first one, and that L2 still has."""
    read, reread = ({s.buffer for s in nest.accesses() if isinstance(s, Load)} for nest in loops.nests[:3:2])
    return min(TIMES.tiled.warm_bytes, baseline.moving_once(loops, reread & read).dram)


def longer(sizes: Sequence[int], tile: Sequence[int]) -> float:
    """How many times as long tiles along rows take, for idle lanes and for accesses that are not wide."""
    factor = (1 + -(-sizes[-1] // tile[-1]) * tile[-1] / sizes[-1]) / 2
    return factor * TIMES.tiled.uneven_factor if math.prod(tile[:-1]) > 1 and sizes[-1] % 4 else factor


def _work(program: LoopProgram, nest: Nest) -> Work:
    moves = baseline.moving_once(program, (s.buffer for s in nest.accesses()))
    return moves + computing(program, nest, nest.body)


def _recomputed_work(loops: LoopProgram) -> Work:
    """The work of Inductor's kernel for the third nest: that recomputes what the first nest stores."""
    first, _, third, *_ = loops.nests
    outputs = {b.name for b in loops.role(BufferRole.OUTPUT)}
    read = {s.buffer for s in third.body if isinstance(s, Load)} & outputs
    stores = [s for s in first.body if isinstance(s, Store) and s.buffer in read]
    recomputed = [s for s in closure(first.body, stores) if s not in stores]
    rest = [s for s in third.body if not (isinstance(s, Load) and s.buffer in read)]
    moves = (s.buffer for s in (*Nest(third.axes, tuple(recomputed)).accesses(), *third.accesses()))
    work = baseline.moving_once(loops, (b for b in moves if b not in read))
    return work + computing(loops, first, recomputed) + computing(loops, third, rest)


def inductors_kernels(
    loops: LoopProgram, facts: ReductionGroupFacts, device: DeviceInfo
) -> list[baseline.Kernel]:
    """Inductor's kernels: one of values that it stores, one of the sums and one that adds up their splits,
    one of what is small, one of what has all elements, and one of sums over these. Where it does not divide
    the sums, and nothing else is reduced before the elements, one kernel reads these again."""
    blocks = facts.numel // baseline.BLOCK + 1
    first, second, third, *_ = loops.nests
    sums, applied = _work(loops, first), _recomputed_work(loops)
    outputs = {b.name for b in loops.role(BufferRole.OUTPUT)}
    handed = [s for s in second.body if isinstance(s, Store) and s.buffer not in outputs]
    between = Nest(second.loops, closure(second.body, handed)).reduced
    in_rows = len(facts.sizes) - 1 in facts.summed
    divided = baseline.is_divided(facts.rows, facts.cols, in_rows, device)
    if any(isinstance(s, PartialAccumulate) and s.moments for s in first.body):
        return _of_statistics(facts, sums, applied, device)
    written, computed = _stored_between(loops, facts)
    across = TIMES.tiled.inductors_across_factor if facts.across else 1.0

    def kernel(kind: Kind, work: Work, launches: int, longer: float = 1.0) -> baseline.Kernel:
        moved = (work.dram + written.dram) * across * longer
        return baseline.Kernel(kind, dataclasses.replace(work, dram=moved), blocks, launches)

    by_axes = {axes: Nest(first.axes, closure(first.body, roots)) for axes, roots in _by_axes(loops).items()}
    counts = {
        axes: sum(isinstance(s, PartialAccumulate) for s in nest.body) for axes, nest in by_axes.items()
    }
    of_sums = {
        axes: kernel(
            Kind.COLUMNS,
            _work(loops, nest),
            1 + divided * counts[axes],
            1.0 if in_rows else TIMES.tiled.sums_across_factor,
        )
        for axes, nest in by_axes.items()
    }
    if len(between) == 1 and not divided:
        # A loop reads as slowly from L2.
        held = in_rows and facts.rows <= baseline.PERSISTENT_COLS
        work = dataclasses.replace(applied if held else applied + sums, l2=0.0)
        of_sums.pop(between, None)
        return [baseline.Kernel(Kind.COLUMNS, work, facts.cols, 1), *of_sums.values()]
    more = len({s.axes for s in second.body if isinstance(s, Reduce)}) - len(of_sums)
    results = {s.buffer for s in third.accesses() if isinstance(s, Store)}
    added_up = baseline.moving_once(loops, results)
    return [
        *[kernel(Kind.POINTWISE, computed, 1)] * (divided and written.dram > 0),
        *of_sums.values(),
        *[baseline.Kernel(Kind.FINAL, Work(0, 0), 1, 1)] * more,
        kernel(Kind.POINTWISE, applied, 1),
        *[baseline.Kernel(Kind.COLUMNS, added_up, blocks, 2)] * (len(loops.nests) > 3),
    ]


def _by_axes(loops: LoopProgram) -> dict[frozenset[sympy.Symbol], list[Statement]]:
    """The sums of the first nest by their axes, for which Inductor has a kernel each: it has a sum that
    nothing but another sum reads over the axes of both. What is stored beside is with the most sums."""
    first, second, *_ = loops.nests
    users = {
        s.name: [u for u in second.body if s.name in operands(u)] for s in second.body if isinstance(s, Value)
    }
    sums, stores = dict[frozenset[sympy.Symbol], list[Statement]](), list[Statement]()
    for stmt in first.body:
        if isinstance(stmt, PartialAccumulate):
            (load,) = (s for s in second.body if isinstance(s, Load) and s.buffer == stmt.buffer)
            (total,) = users[load.name]
            assert isinstance(total, Reduce)
            axes = frozenset(total.axes)
            while len(users[total.name]) == 1 and isinstance(total := users[total.name][0], Reduce):
                axes |= frozenset(total.axes)
            sums.setdefault(axes, []).append(stmt)
        elif isinstance(stmt, Store):
            stores.append(stmt)
    max(sums.values(), key=len).extend(stores)
    return sums


def _stored_between(loops: LoopProgram, facts: ReductionGroupFacts) -> tuple[Work, Work]:
    """The work of writing values of all elements that Inductor stores, since several loops would read many
    tensors for them (`realize_reads_threshold`), and of computing them."""
    first = loops.nests[0]
    every = {axis.symbol for axis in first.axes if axis.size != 1}
    deps, reads, stored = first.dependence(), dict[str, set[str]](), list[Statement]()
    users = Counter(name for stmt in first.body for name in operands(stmt))
    for stmt in first.body:
        if isinstance(stmt, Load):
            reads[stmt.name] = {stmt.buffer}
        elif isinstance(stmt, Compute):
            reads[stmt.name] = set[str]().union(*(reads.get(name, set()) for name in operands(stmt)))
            many = len(reads[stmt.name]) > realize_threshold("reads")
            if many and users[stmt.name] > 1 and every <= deps[stmt.name]:
                reads[stmt.name] = {stmt.name}
                stored.append(stmt)
    written = float(len(stored) * facts.numel * facts.item_bytes)
    made = Nest(first.axes, closure(first.body, stored))
    return Work(written, written), _work(loops, made)


def _of_statistics(
    facts: ReductionGroupFacts, sums: Work, applied: Work, device: DeviceInfo
) -> list[baseline.Kernel]:
    """Inductor's kernels for statistics whose dims are in another order than in memory. It reads in the order
    of memory where it divides none. Where it does, it reads an element of a sector, at a place that takes
    three divisions, and adds up the splits in two kernels."""
    length = facts.rows * math.prod(facts.total_axes.sizes[i] for i in facts.total_axes.reduced)
    blocks = facts.numel // baseline.BLOCK + 1
    divided = baseline.is_divided(length, facts.numel // length, True, device)
    if divided:
        elements = sums.dram / facts.item_bytes
        sums += Work(0, SECTOR * elements - sums.l2, addressing(3) * elements)
    return [
        baseline.Kernel(Kind.COLUMNS, sums, blocks, 1 + 2 * divided),
        baseline.Kernel(Kind.POINTWISE, applied, blocks, 1),
    ]
