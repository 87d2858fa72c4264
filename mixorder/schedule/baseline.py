"""What Inductor would do with a region: its kernels, and their predicted time.

Inductor makes one kernel of the row-wise reductions and what follows from them, and one or two of the
column-wise ones; from some sizes on, its own fusion makes one of both. Facts of torch 2.11 to 2.15.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

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
from .device import DeviceInfo
from .kernel_time import Kind, Times
from .plan import next_power_of_2
from .work import Access, Work, accesses, computing, total

PERSISTENT_COLS = 1024  # a longer row is read in a loop, once per reduction that depends on another
TILE = 32  # rows and columns of a tile of a kernel that keeps no whole rows
BLOCK = 1024  # elements of a program of a kernel without rows
# `InductorChoices.reduction_split_factor` divides a sum of more elements than the first, for fewer results to
# a multiprocessor than the second: of elements across memory, and along it.
FEW_ACROSS, FEW_ALONG = (128, 64), (8192, 2)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One of Inductor's kernels.

    `programs`: how many it can be divided into.
    `launches`: of it, and of the kernels that finish its sums.
    `sums`: of the latter, those of PyTorch's that add up partial sums.
    """

    kind: Kind
    work: Work
    programs: int
    launches: int
    sums: int = 0

    def us(self, device: DeviceInfo, times: Times) -> float:
        """Microseconds, with those of the kernels that finish its sums, without launches."""
        finishing = self.sums * times.sum_us + (self.launches - 1 - self.sums) * times.final_us
        return times.us(self.kind, self.work, device, self.programs) + finishing


def microseconds(kernels: Sequence[Kernel], device: DeviceInfo, times: Times) -> float:
    """Predicted time of kernels, one after the other."""
    launches = times.launch_us * (sum(kernel.launches for kernel in kernels) - 1)
    return times.start_us + launches + sum(kernel.us(device, times) for kernel in kernels)


def kernels_of(program: LoopProgram, device: DeviceInfo, mixed: bool = True) -> list[Kernel]:
    """The kernels, in the order of the nests; each nest reads its inputs or, if that is less, values that an
    earlier nest has stored. Without `mixed`, no kernel has both nests: compiles with mixorder keep Inductor
    from that."""
    nests, stored, kernels = list(program.nests), dict[str, str](), list[Kernel]()
    if len(nests) == 2:
        is_pair = any(isinstance(s, Reduce) for s in nests[0].statements)
        independent, dependent = _by_dependence(program, nests[1])
        together = dependent if is_pair else independent
        nests = [nest for nest in (nests[0], independent, dependent) if nest is not None]
        if mixed and is_pair and independent is not None and _is_mixed(program):
            kernels.append(_mixed(program, (nests[0], independent)))
            stored.update(_stores(nests[0]))
            nests = nests[2:]
        elif together is not None and _is_in_passing(program, nests[0], together, device):
            kernels.append(_with_sums(program, nests[0], together, device))
            stored.update(_stores(nests[0]))
            nests = [nest for nest in nests[1:] if nest is not together]
    for nest in nests:
        kernels.append(_kernel(program, nest, stored, device))
        stored.update(_stores(nest))
    return kernels


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
    # A kernel without reductions has one index: it computes all for each element.
    work = moves + computing(program, nest, statements, hoisted=bool(reductions))
    blocks = rows * cols * outside // BLOCK + 1
    if over_rows:
        if last.kind is AxisClass.COMMON:
            divided = is_divided(rows * cols, outside, True, device)
        else:
            divided = is_divided(rows, cols * outside, False, device)
        sums = 0 if _is_of_all(program, nest) else sum(row.symbol in s.axes for s in reductions)
        return Kernel(Kind.COLUMNS, work, blocks, 1 + divided * sums)
    if not reductions:
        return Kernel(Kind.POINTWISE, work, blocks, 1)
    if cols <= PERSISTENT_COLS:
        return Kernel(Kind.ROWS, _in_lanes(work, cols), rows * outside, 1)
    above = nest.reductions_above()
    passes = 1 + max(above[s.name] for s in reductions)
    passes += any(isinstance(s, Store) and last.symbol in s.index.free_symbols for s in nest.statements)
    return Kernel(Kind.LOOPED, dataclasses.replace(work, l2=work.l2 * passes), rows * outside, 1)


def _is_of_all(program: LoopProgram, nest: Nest) -> bool:
    """Whether a nest's results are added up further, to sums of all elements. Their second step is Inductor's
    in any case."""
    return all(program.buffer(b).added_up for b in _stores(nest).values())


def _is_in_passing(program: LoopProgram, first: Nest, sums: Nest, device: DeviceInfo) -> bool:
    """Whether the kernel of the first nest adds up all elements as well: each row, where the sum needs one of
    the row; otherwise equal splits of a loop over elements, if they are made of whole dims of its results."""
    if not _is_of_all(program, sums) or any(isinstance(s, Reduce) for s in first.statements):
        return _is_of_all(program, sums)
    shapes = [program.buffer(b).shape for b in _stores(first).values()]
    known = all(n.is_Integer for shape in shapes for n in shape)
    return known and all(_is_divided_into(shape, splits_of_all(math.prod(shape), device)) for shape in shapes)


def _is_divided_into(shape: Iterable[Any], splits: int) -> bool:
    """Whether so many equal splits of a tensor are whole dims, and equal splits of the next one."""
    for n in shape:
        if splits % n:
            return n % splits == 0
        splits //= n
    return splits == 1


def splits_of_all(elements: int, device: DeviceInfo) -> int:
    """The splits in which Inductor adds up so many elements (`InductorChoices.reduction_split_factor`)."""
    if elements <= FEW_ALONG[0]:
        return 1
    threads = device.num_sm * device.max_threads
    size, slack = 32, 0
    if elements > 512 * threads:
        size, slack = 512, 50
    elif elements > 32 * threads:
        size, slack = -(-elements // (256 * (threads // 512))), 30
    near = min(sympy.divisors(elements), key=lambda n: abs(n - size))
    return -(-elements // (256 * (max(near, 32) if abs(near - size) < slack else size)))


def _with_sums(program: LoopProgram, first: Nest, sums: Nest, device: DeviceInfo) -> Kernel:
    """The kernel of the first nest that adds up in passing."""
    kernel = _kernel(program, first, {}, device)
    statements = [s for s in sums.statements if s not in first.statements]
    moves = total(program, accesses(program, sums, statements, (TILE, TILE)))
    return dataclasses.replace(kernel, work=kernel.work + moves + computing(program, sums, statements))


def is_divided(elements: int, results: int, along: bool, device: DeviceInfo) -> bool:
    """Whether Inductor has two kernels for a sum of so many elements, for so many results."""
    few_elements, few_results = FEW_ALONG if along else FEW_ACROSS
    return elements > few_elements and results < few_results * device.num_sm


def _in_lanes(work: Work, cols: int) -> Work:
    """The work of a kernel that has a row in a power of two of lanes."""
    return work.scaled(next_power_of_2(cols) / cols)


def _moves(
    program: LoopProgram, nest: Nest, stored: dict[str, str], tile: tuple[int, int]
) -> tuple[Work, Sequence[Statement]]:
    """What a nest moves, its inputs or, if that is fewer bytes, values that are stored, and the statements
    that it is left with."""
    most = total(program, accesses(program, nest, nest.statements, tile))
    computed = (s for s in nest.statements if not (isinstance(s, Value) and s.name in stored))
    rest = closure(computed, [s for s in nest.statements if isinstance(s, Store)])
    known = {stored[n] for s in rest for n in operands(s) if n in stored}
    least = total(program, accesses(program, nest, rest, tile) + moved_once(program, known))
    if known and (least.dram, least.requests) < (most.dram, most.requests):
        return least, rest
    return most, nest.statements


def moving_once(program: LoopProgram, buffers: Iterable[str]) -> Work:
    """What it takes to move all elements of some buffers, in order."""
    return total(program, moved_once(program, dict.fromkeys(buffers)))


def moved_once(program: LoopProgram, buffers: Collection[str]) -> list[Access]:
    """Accesses that move all elements of some buffers, in order."""
    sizes = {b: program.hint(program.buffer(b).numel) * program.buffer(b).dtype.itemsize for b in buffers}
    return [Access(b, size, size, size, size / ACCESS) for b, size in sizes.items()]


def _once(accesses: Sequence[Access]) -> list[Access]:
    """One access for each part of a buffer: that which moves the most."""
    return list({(a.buffer, a.start): a for a in sorted(accesses, key=lambda a: a.dram)}.values())


def _stores(nest: Nest) -> dict[str, str]:
    """The values that a nest stores, and their buffers."""
    return {s.value.name: s.buffer for s in nest.statements if isinstance(s, Store)}


def _by_dependence(program: LoopProgram, nest: Nest) -> tuple[Nest | None, Nest | None]:
    """A nest's column-wise reductions of values without a row-wise one above, and the others. Inductor has a
    kernel for each; its fusion with the row-wise ones takes only the former."""
    _, last = program.tile_axes
    stores: dict[bool, list[Store]] = {False: [], True: []}
    for store in (s for s in nest.statements if isinstance(s, Store)):
        needed = closure(nest.statements, [store])
        stores[any(isinstance(s, Reduce) and last.symbol in s.axes for s in needed)].append(store)
    independent, dependent = (
        Nest(nest.loops, closure(nest.statements, stores[key])) if stores[key] else None
        for key in (False, True)
    )
    return independent, dependent


def _is_mixed(program: LoopProgram) -> bool:
    """Whether Inductor's own fusion takes both nests: that of rows, and float32 sums of the same tensors over
    the rows."""
    row, last = program.tile_axes
    rows, cols = program.hint(row.size), program.hint(last.size)
    first, second = program.nests
    read = {s.buffer for s in second.statements if isinstance(s, Load)}
    common = (s for s in first.statements if isinstance(s, Load) and s.buffer in read)
    sums = (s for s in second.statements if isinstance(s, Reduce))
    return (
        fuses_both_orders(rows, cols)
        and rows * cols >= 5 * 2**20
        and last.kind is AxisClass.COLUMN
        and program.axis(AxisClass.BATCH) is None
        and any({row.symbol, last.symbol} <= s.index.free_symbols for s in common)
        and all(s.kind.name == "sum" and s.dtype == torch.float32 for s in sums)
    )


def _mixed(program: LoopProgram, nests: tuple[Nest, Nest]) -> Kernel:
    row, last = program.tile_axes
    rows, cols = program.hint(row.size), program.hint(last.size)
    nest_accesses = [a for n in nests for a in accesses(program, n, n.statements, (1, cols))]
    work = total(program, _once(nest_accesses))
    for nest in nests:
        work += computing(program, nest, nest.statements)
    sums = sum(isinstance(s, Reduce) and row.symbol in s.axes for s in nests[1].statements)
    stored = (s for s in nests[1].statements if isinstance(s, Store))
    casts = sum(program.buffer(s.buffer).dtype.itemsize < 4 for s in stored)
    return Kernel(Kind.MIXED, _in_lanes(work, cols), rows, 1 + sums + casts, sums)
