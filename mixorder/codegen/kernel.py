"""Write one nest of a merged program as a persistent Triton kernel.

Both kernels come from the same code: a nest's axes are laid out over a two-dimensional tile, (row, column)
for the main kernel and (split, column) for the finalisation. What a statement becomes follows from the axes
that it depends on; nothing here knows a norm.

Same inputs, same text: no device access, no timing, no names of graph nodes in the text, so that equal
regions share one kernel.
"""

from __future__ import annotations

import dataclasses

import sympy

from ..inductor.printing import printing_triton, texpr
from ..ir.alignment_phase import skew_of
from ..ir.program import SPLIT_SYMBOL, Axis, AxisClass, Load, LoopProgram, Nest, PartialAccumulate
from ..schedule.schedule import Schedule
from .cooperative import shared_kernel
from .prefetch import Ahead
from .programmatic_launch import PROGRAM, awaited, released
from .source import KernelSource, LaunchConfig
from .writer import TileDim, Writer


def generate(program: LoopProgram, schedule: Schedule, label: str) -> tuple[KernelSource, KernelSource]:
    """The main kernel and the finalisation. `label` goes into their names, with a hash of the text."""
    main, *rest = program.nests
    if len(rest) != 1:
        raise ValueError(f"one nest over rows and one finalisation expected, got {len(program.nests)} nests")
    if schedule.overlap and not _follows_the_program(program, rest[0]):
        schedule = dataclasses.replace(schedule, overlap=False)
    with printing_triton():
        return (
            shared_kernel(program, schedule, label)
            if schedule.parts > 1
            else _main_kernel(program, main, schedule, label),
            _final_kernel(program, rest[0], schedule, label),
        )


def _main_kernel(program: LoopProgram, nest: Nest, schedule: Schedule, label: str) -> KernelSource:
    row, last = program.tile_axes
    tile = schedule.tile
    skew = skew_of(program) if schedule.period > 1 else None
    ragged = row.size % (tile.xblock * schedule.period) != 0
    x = TileDim(row.symbol, texpr(row.size) if row.size.is_number else "rows", "XBLOCK", ragged)
    columns = _columns(last, schedule, skew is not None)
    writer = Writer(program, nest, (x, *columns), schedule.num_splits)
    writer.begin(("XBLOCK", "NUM_STAGES"))
    code = writer.code
    code.writeline(f"R0_BLOCK: tl.constexpr = {schedule.chunk}")
    if not row.size.is_number:
        code.writeline(f"rows = {texpr(row.size)}")
    writer.programs(str(SPLIT_SYMBOL))
    first, tiles, step = str(SPLIT_SYMBOL), x.extent, schedule.num_splits
    if skew is None:
        for y in columns:
            start = f"{y.start} + " * (y.start > 0)
            writer.index(y, f"{start}tl.arange(0, R0_BLOCK)[None, :]")
    else:
        writer.shift(skew)
        writer.shifted_columns("0", columns[0].extent)
        first, tiles = f"{SPLIT_SYMBOL} // {skew.period}", f"tl.cdiv({x.extent}, {skew.period})"
        step //= skew.period
    for stmt in nest.preamble:
        writer.statement(stmt)
    accumulators = [s for s in nest.body if isinstance(s, PartialAccumulate)]
    for acc in accumulators:
        writer.empty(acc)
    ahead = Ahead(writer, x)
    ahead.fetch(first)
    code.writeline(f"for tile in tl.range({first}, tl.cdiv({tiles}, XBLOCK), {step}, num_stages=NUM_STAGES):")
    with code.indent():
        if skew is None:
            writer.index(x, writer.tile_rows("tile"))
        else:
            writer.shifted_rows("tile")
            if x.masked:
                code.writeline(f"{x.mask} = {x.symbol} < {x.extent}")
        ahead.take()
        ahead.fetch(f"(tile + {step})")
        for stmt in nest.body:
            if stmt not in ahead.loads:
                writer.statement(stmt)
    if schedule.overlap:
        code.writeline(f"{SPLIT_SYMBOL} = {released(str(SPLIT_SYMBOL))}")
    for acc in accumulators:
        writer.store_partial(acc)
    constants = (("XBLOCK", tile.xblock), ("NUM_STAGES", tile.num_stages))
    config = LaunchConfig(constants, tile.num_warps, tile.num_stages)
    return writer.finish(f"triton_mixorder_{label}", writer.kept * schedule.num_splits, config)


def _columns(last: Axis, schedule: Schedule, skewed: bool) -> tuple[TileDim, ...]:
    """The chunks that hold a row; the last of them may have lanes beyond its end."""
    extent, chunk = str(last.size), schedule.chunk
    if schedule.chunks == 1:
        return (TileDim(last.symbol, extent, "R0_BLOCK", last.size != chunk or skewed),)
    return tuple(
        TileDim(last.symbol, extent, "R0_BLOCK", start + chunk > last.size, i, start)
        for i, start in enumerate(range(0, schedule.r0_block, chunk))
    )


def _final_kernel(program: LoopProgram, nest: Nest, schedule: Schedule, label: str) -> KernelSource:
    col = program.axis(AxisClass.COLUMN)
    cols = 1 if col is None else int(col.size)
    s_block = 1 << (schedule.num_splits - 1).bit_length()
    block = min(schedule.final_block, 1 << (cols - 1).bit_length())
    s = TileDim(SPLIT_SYMBOL, str(schedule.num_splits), "SBLOCK", s_block != schedule.num_splits)
    y = TileDim(col.symbol if col else sympy.Symbol("y"), str(cols), "YBLOCK", bool(cols % block))
    writer = Writer(program, nest, (s, y), schedule.num_splits)
    writer.begin(())
    writer.code.writeline(f"SBLOCK: tl.constexpr = {s_block}")
    writer.code.writeline(f"YBLOCK: tl.constexpr = {block}")
    writer.programs("block", awaited(PROGRAM) if schedule.overlap else PROGRAM)
    writer.index(s, "tl.arange(0, SBLOCK)[:, None]")
    writer.place_columns("block * YBLOCK + tl.arange(0, YBLOCK)[None, :]")
    for stmt in nest.statements:
        writer.statement(stmt)
    config = LaunchConfig((), schedule.final_warps, 1)
    source = writer.finish(f"triton_mixorder_{label}_final", writer.kept * -(-cols // block), config)
    return dataclasses.replace(source, waits=schedule.overlap)


def _follows_the_program(program: LoopProgram, nest: Nest) -> bool:
    """Whether each load's address comes from the program's number, and so after what gives that."""
    axes = (program.axis(AxisClass.COLUMN), program.axis(AxisClass.KEPT))
    numbered = {axis.symbol for axis in axes if axis is not None}
    return all(numbered & s.index.free_symbols for s in nest.statements if isinstance(s, Load))
