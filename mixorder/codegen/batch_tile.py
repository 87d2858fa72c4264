"""Write the main kernel of programs whose tile has several indices of the batch, and one row at a time.

Rows that are short and next to each other along the batch fill sectors of memory together. A program goes
through the rows of its split. It adds nothing up across its tile, since each index has sums of its own.
"""

from __future__ import annotations

import dataclasses

from ..inductor.printing import texpr
from ..ir.program import SPLIT_SYMBOL, AxisClass, LoopProgram, PartialAccumulate
from ..schedule.schedule import Schedule
from .programmatic_launch import released
from .source import KernelSource, LaunchConfig
from .writer import TileDim, Writer


def batch_tile_kernel(program: LoopProgram, schedule: Schedule, label: str) -> KernelSource:
    """The kernel of the first nest of a merged program with a batch axis."""
    nest, (row, last) = program.nests[0], program.tile_axes
    batch = program.axis(AxisClass.BATCH)
    assert batch is not None
    tile, extent = schedule.tile, int(batch.size)
    k = TileDim(batch.symbol, str(extent), "XBLOCK", extent % tile.xblock != 0)
    y = TileDim(last.symbol, str(last.size), "R0_BLOCK", last.size != schedule.r0_block)
    writer = Writer(program, nest, (k, y), schedule.num_splits)
    writer.begin(("XBLOCK", "NUM_STAGES"))
    code, split = writer.code, str(SPLIT_SYMBOL)
    wide = ".to(tl.int64)" * writer.wide
    groups = -(-extent // tile.xblock)
    code.writeline(f"R0_BLOCK: tl.constexpr = {schedule.r0_block}")
    if not row.size.is_number:
        code.writeline(f"rows = {texpr(row.size)}")
    code.writeline("program = tl.program_id(0)")
    code.writeline(f"{split} = program // {groups}")
    writer.index(k, f"((program % {groups}) * XBLOCK + tl.arange(0, XBLOCK)[:, None]){wide}")
    writer.index(y, "tl.arange(0, R0_BLOCK)[None, :]")
    for stmt in nest.preamble:
        writer.statement(stmt)
    accumulators = [s for s in nest.body if isinstance(s, PartialAccumulate)]
    for acc in accumulators:
        writer.empty(acc)
    rows = texpr(row.size) if row.size.is_number else "rows"
    each = f"tl.range({split}, {rows}, {schedule.num_splits}, num_stages=NUM_STAGES)"
    code.writeline(f"for tile in {each}:")
    with code.indent():
        code.writeline(f"{row.symbol} = tile{wide}")
        for stmt in nest.body:
            writer.statement(stmt)
    if schedule.overlap and not nest.after:
        code.writeline(f"{split} = {released(split)}")
    for acc in () if nest.after else accumulators:
        writer.store_partial(acc)
    for stmt in nest.after:
        writer.statement(stmt)
    constants = (("XBLOCK", tile.xblock), ("NUM_STAGES", tile.num_stages))
    config = LaunchConfig(constants, tile.num_warps, tile.num_stages)
    source = writer.finish(f"triton_mixorder_{label}", groups * schedule.num_splits, config)
    return dataclasses.replace(source, registers=schedule.max_registers)
