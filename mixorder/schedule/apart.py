"""What Inductor would do with a region: its kernels, and their predicted time.

Inductor makes one kernel of the row-wise reductions and what follows from them, and one or two of the
column-wise ones; from some sizes on, its own fusion makes one of both. Facts of torch 2.11 to 2.15.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import sympy
import torch

from ..inductor.config import fuses_both_orders
from ..ir.hardware import ACCESS
from ..ir.program import (
    AxisClass,
    Load,
    LoopProgram,
    Nest,
    Reduce,
    Statement,
    Store,
    Value,
    closure,
    operands,
)
from . import split
from .cost import without
from .device import DeviceInfo
from .kernel_time import NO_WALK, Kind, Times, Walk
from .layout import offsets, sizes_of
from .plan import next_power_of_2
from .work import Access, Work, accesses, computing, in_both_orders, lies_across, masks, total

PERSISTENT_COLS = 1024  # a longer row is read in a loop, once per reduction that depends on another
MIXED_ROWS, MIXED_NUMEL, MIXED_COLS, MIXED_READS = 4096, 5 * 2**20, 16384, 10
TILE = 32  # rows and columns of a tile of a kernel that keeps no whole rows
# Requests for an element that lies across a tile in memory, by 1,144 duels.
# Where as many tensors lie across as along, Inductor's tile has several rows, and reads more of each sector.
ACROSS, ACROSS_AND_ALONG = 6, 2
BLOCK = 1024  # elements of a program of a kernel without rows
ROW_LANES = 256  # of narrower rows, a program of a kernel that keeps whole rows has several


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One of Inductor's kernels. `programs`: how many it can be divided into. `launches`: itself, and
    one for each reduction that is split. `walk`: through the parts of the rows. `sums`: reductions of
    partial sums by kernels of PyTorch's; `casts`: kernels that cast their results. `partials`: of each of so
    many `outputs`."""

    kind: Kind
    work: Work
    programs: int
    launches: int
    accesses: tuple[Access, ...]
    walk: Walk = NO_WALK
    sums: int = 0
    casts: int = 0
    partials: int = 1
    outputs: int = 0

    def us(self, device: DeviceInfo, times: Times) -> float:
        """Microseconds, with those of the kernels that finish its sums, without launches."""
        own = times.us(self.kind, self.work, device, self.programs, self.walk)
        finishing = self.launches - 1 - self.sums - self.casts
        moved = 4 * self.partials * self.outputs
        return (
            own
            + self.sums * times.summing_us(self.partials, self.outputs, device)
            + self.casts * times.latency_us[Kind.POINTWISE.value]
            + finishing * times.us(Kind.FINAL, Work(moved, moved), device)
        )


def microseconds(kernels: Sequence[Kernel], device: DeviceInfo, times: Times) -> float:
    """Predicted time of kernels, one after the other."""
    launches = times.launch_us * (sum(kernel.launches for kernel in kernels) - 1)
    return times.start_us + launches + sum(kernel.us(device, times) for kernel in kernels)


def kernels_of(program: LoopProgram, device: DeviceInfo) -> list[Kernel]:
    """The kernels, in the order of the nests; each nest reads its inputs or, if that is less, values that an
    earlier nest has stored."""
    nests, stored, found = list(program.nests), dict[str, str](), list[Kernel]()
    if len(nests) == 2 and any(isinstance(s, Reduce) for s in nests[0].statements):
        own, others = _by_dependence(program, nests[1])
        nests = [nest for nest in (nests[0], own, others) if nest is not None]
        if own is not None and _is_mixed(program):
            found.append(_mixed(program, (nests[0], own), device))
            stored.update(_stores(nests[0]))
            nests = nests[2:]
    for nest in nests:
        for part in _by_reads(program, nest, stored):
            found.append(_kernel(program, part, stored, device))
        stored.update(_stores(nest))
    return found


def _kernel(program: LoopProgram, nest: Nest, stored: dict[str, str], device: DeviceInfo) -> Kernel:
    reductions = [s for s in nest.statements if isinstance(s, Reduce)]
    row, last = program.tile_axes
    rows, cols = program.hint(row.size), program.hint(last.size)
    batch = program.axis(AxisClass.BATCH)
    outside = 1 if batch is None else program.hint(batch.size)
    over_rows = any(row.symbol in s.axes for s in reductions)
    # Inductor tiles a kernel so that the tensors' contiguous dims are in its tiles.
    tile = (TILE, TILE) if over_rows or not reductions else (max(1, TILE // 4), cols)
    moves, statements = _moves(program, nest, stored, tile)
    work = total(moves) + computing(program, nest, statements)
    blocks = rows * cols * outside // BLOCK + 1
    if over_rows:
        parts, outputs = split.parts(rows, cols * outside, device), cols * outside
        sums = sum(row.symbol in s.axes for s in reductions)
        walk = split.walk(rows, outputs, parts, _loads(statements, row.symbol))
        if rows % parts:
            work = dataclasses.replace(work, dram=split.UNEVEN * work.dram)
        if last.kind is AxisClass.COMMON:  # Inductor has another rule; the walk was fitted by that of columns
            parts, outputs = split.parts_of_all(rows * cols, outside, device), outside
        launches = 1 + (parts > 1) * sums
        return Kernel(Kind.COLUMNS, work, blocks, launches, moves, walk, partials=parts, outputs=outputs)
    if not reductions:
        return Kernel(Kind.POINTWISE, work, blocks, 1, moves)
    alike = 2 * sum(a.across for a in moves) >= sum(a.tiled for a in moves)
    work += Work(0, 0, requests=(ACROSS_AND_ALONG if alike else ACROSS) * in_both_orders(moves))
    if cols <= PERSISTENT_COLS:
        programs = rows * outside * min(ROW_LANES, next_power_of_2(cols)) // ROW_LANES
        return Kernel(Kind.ROWS, _in_lanes(work, cols), max(1, programs), 1, moves)
    above = nest.reductions_above()
    passes = 1 + max(above[s.name] for s in reductions)
    passes += any(isinstance(s, Store) and last.symbol in s.index.free_symbols for s in nest.statements)
    return Kernel(Kind.LOOPED, dataclasses.replace(work, l2=work.l2 * passes), rows * outside, 1, moves)


def _loads(statements: Sequence[Statement], row: sympy.Symbol) -> int:
    """The loads that vary from row to row, those of values that an earlier nest has stored too."""
    own = {s.name for s in statements if isinstance(s, Value)}
    stored = {name for s in statements for name in operands(s)} - own
    return len(stored) + sum(isinstance(s, Load) and row in s.index.free_symbols for s in statements)


def _in_lanes(work: Work, cols: int) -> Work:
    """The work of a kernel that has a row in a power of two of lanes."""
    return work.scaled(next_power_of_2(cols) / cols)


def _moves(
    program: LoopProgram, nest: Nest, stored: dict[str, str], tile: tuple[int, int]
) -> tuple[tuple[Access, ...], Sequence[Statement]]:
    """The accesses of a nest, of its inputs or, if that is less, of values that are stored, and the
    statements that it is left with. Less is fewer bytes or, for as many, fewer requests or lines."""
    whole = accesses(program, nest, nest.statements, tile, beside=True)
    rest = without(nest, stored)
    known = {stored[n] for s in rest for n in operands(s) if n in stored}
    instead = accesses(program, nest, rest, tile, beside=True) + moved_once(program, known)
    least, most = total(instead), total(whole)
    if known and (least.dram, least.requests, least.lines) < (most.dram, most.requests, most.lines):
        return tuple(instead), rest
    return tuple(whole), nest.statements


def moved_once(program: LoopProgram, buffers: Collection[str]) -> list[Access]:
    """Accesses that move all elements of some buffers, in order."""
    sizes = {b: program.hint(program.buffer(b).numel) * program.buffer(b).dtype.itemsize for b in buffers}
    return [Access(b, size, size, size, size / ACCESS) for b, size in sizes.items()]


def _once(found: Sequence[Access]) -> list[Access]:
    """One access for each buffer: that which moves the most."""
    return list({a.buffer: a for a in sorted(found, key=lambda a: a.dram)}.values())


def _stores(nest: Nest) -> dict[str, str]:
    """The values that a nest stores, and their buffers."""
    return {s.value.name: s.buffer for s in nest.statements if isinstance(s, Store)}


def _by_dependence(program: LoopProgram, nest: Nest) -> tuple[Nest | None, Nest | None]:
    """A nest's column-wise reductions of values without a row-wise one above, and the others. Inductor has a
    kernel for each; its fusion with the row-wise ones takes only the former."""
    _, last = program.tile_axes
    parts: dict[bool, list[Store]] = {False: [], True: []}
    for store in (s for s in nest.statements if isinstance(s, Store)):
        needed = closure(nest.statements, [store])
        parts[any(isinstance(s, Reduce) and last.symbol in s.axes for s in needed)].append(store)
    own, others = (
        Nest(nest.loops, closure(nest.statements, parts[key])) if parts[key] else None
        for key in (False, True)
    )
    return own, others


def _by_reads(program: LoopProgram, nest: Nest, stored: dict[str, str]) -> list[Nest]:
    """A nest's parts that read no full tensor in common: Inductor has no reason to fuse these. Nor does it
    fuse a sum of tensors that lie in both orders, which has tiles, with others."""
    row, last = program.tile_axes
    full = {row.symbol, last.symbol}
    if not any(isinstance(s, Reduce) and row.symbol in s.axes for s in nest.statements):
        return [nest]
    parts: list[tuple[bool, set[str], list[Store]]] = []
    for store in (s for s in nest.statements if isinstance(s, Store)):
        body = without(Nest(nest.loops, closure(nest.statements, [store])), stored)
        reads = {stored[name] for s in body for name in operands(s) if name in stored}
        loads = [s for s in body if isinstance(s, Load) and full <= s.index.free_symbols]
        reads |= {s.buffer for s in loads}
        stores, tiled = [store], len({lies_across(program, s) for s in loads}) > 1
        for part in [part for part in parts if part[0] == tiled and part[1] & reads]:
            parts.remove(part)
            reads, stores = reads | part[1], part[2] + stores
        parts.append((tiled, reads, stores))
    return [Nest(nest.loops, closure(nest.statements, stores)) for _, _, stores in parts]


def _is_mixed(program: LoopProgram) -> bool:
    """Whether Inductor's own fusion takes both nests."""
    row, last = program.tile_axes
    rows, cols = program.hint(row.size), program.hint(last.size)
    first, second = program.nests
    loads = [[s for s in nest.statements if isinstance(s, Load)] for nest in program.nests]
    reads = [{s.buffer for s in found} for found in loads]
    full = {row.symbol, last.symbol}
    inner = [s for s in first.statements if isinstance(s, Reduce)]
    needed = closure(first.statements, inner)
    outer = [s for s in second.statements if isinstance(s, Reduce)]
    return (
        fuses_both_orders()
        and bool(inner)
        and any(s.buffer in reads[1] and full <= s.index.free_symbols for s in loads[0])
        and last.kind is AxisClass.COLUMN
        and program.axis(AxisClass.BATCH) is None
        and rows >= max(MIXED_ROWS, 2 * cols)
        and rows * cols >= MIXED_NUMEL
        and cols <= MIXED_COLS
        and len(reads[0] | reads[1]) <= MIXED_READS
        and all(s.kind.name in ("sum", "prod") and s.dtype == torch.float32 for s in outer)
        and all(_is_plain(program, s.index) for s in needed if isinstance(s, Load))
    )


def _is_plain(program: LoopProgram, index: sympy.Expr) -> bool:
    """Whether the second column is next to the first, or the same; Inductor looks at no others."""
    first, second = offsets(index.xreplace(dict(program.hints)), sizes_of(program), (1, 2))
    return second - first in (0, 1)


def _mixed(program: LoopProgram, nests: tuple[Nest, Nest], device: DeviceInfo) -> Kernel:
    row, last = program.tile_axes
    tile = (1, program.hint(last.size))
    found = [a for n in nests for a in accesses(program, n, n.statements, tile)]
    work = total(_once(found))
    for nest in nests:
        work += computing(program, nest, nest.statements)
    sums = [s.name for s in nests[1].statements if isinstance(s, Reduce) and row.symbol in s.axes]
    cols = program.hint(last.size)
    work = _in_lanes(work, cols)
    rows, lanes = program.hint(row.size), next_power_of_2(cols)
    each = split.rows_of_mixed(rows, device)
    partials = -(-rows // each)
    stored = (s for s in nests[1].statements if isinstance(s, Store))
    casts = sum(program.buffer(s.buffer).dtype.itemsize < 4 for s in stored)
    return Kernel(
        Kind.MIXED,
        work,
        rows,
        1 + len(sums) + casts,
        tuple(found),
        split.mixed_walk(rows, lanes, each, len(masks(program, found))),
        sums=len(sums),
        casts=casts,
        partials=partials,
        outputs=cols,
    )
