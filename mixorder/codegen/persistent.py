"""Write the main kernel of strategies whose programs share no row: persistent, blocks of columns.

A program keeps one row tile at a time, in one or several chunks of columns.
"""

from __future__ import annotations

from ..ir.hardware import ACCESS, WARP
from ..ir.program import SPLIT_SYMBOL, Axis, Load, LoopProgram, PartialAccumulate, Store
from ..schedule.plan import Plan
from .prefetch import Prefetch
from .source import KernelSource
from .writer import TileDim, Writer, of_rows


def persistent_kernel(program: LoopProgram, plan: Plan, label: str) -> KernelSource:
    """The kernel of the first nest of a merged program."""
    nest, (row, last) = program.nests[0], program.tile_axes
    rows = plan.tile_rows
    alignment = program.alignment if plan.period > 1 else None
    ragged = row.size % (rows * plan.period) != 0
    x = of_rows(row, ragged)
    columns = _columns(last, plan, alignment is not None)
    several = not row.size.is_number or int(row.size) > rows * plan.splits
    keeps = several and plan.order.keeps
    writer = Writer(program, nest, (x, *columns), plan.splits, spread_columns=several, keeps=keeps)
    writer.has_rows = _has_rows(writer, plan)
    writer.begin_main(plan)
    code = writer.code
    writer.programs(str(SPLIT_SYMBOL))
    first, tiles, step = str(SPLIT_SYMBOL), x.extent, plan.splits
    if alignment is None:
        for y in columns:
            start = f"{y.start} + " * (y.start > 0)
            writer.index(y, start + writer.to_index_width("tl.arange(0, R0_BLOCK)[None, :]", y.symbol))
    else:
        writer.shift(alignment)
        writer.shifted_columns("0", columns[0].extent)
        first, tiles = f"{SPLIT_SYMBOL} // {alignment.period}", f"tl.cdiv({x.extent}, {alignment.period})"
        step //= alignment.period
    for stmt in nest.preamble:
        writer.statement(stmt)
    accumulators = [s for s in nest.body if isinstance(s, PartialAccumulate)]
    for acc in accumulators:
        writer.empty(acc)
    prefetch = Prefetch(writer, x)
    prefetch.fetch(first)
    code.writeline(f"for tile in tl.range({first}, tl.cdiv({tiles}, XBLOCK), {step}, num_stages=NUM_STAGES):")
    with code.indent():
        if alignment is None:
            writer.index(x, writer.tile_rows("tile"))
        else:
            writer.shifted_rows("tile")
            if x.masked:
                code.writeline(f"{x.mask} = {x.symbol} < {x.extent}")
        prefetch.take()
        prefetch.fetch(f"(tile + {step})")
        for stmt in nest.body:
            if stmt not in prefetch.loads:
                writer.statement(stmt)
    if plan.launch.dependent and not nest.after:
        writer.release()
    for acc in () if nest.after else accumulators:
        writer.store_partial(acc)
    for stmt in nest.after:
        writer.statement(stmt)
    return writer.finish_main(label, plan)


def _has_rows(writer: Writer, plan: Plan) -> bool:
    """Whether each thread has all rows of a tile, since all threads lie along a row. Triton gives a thread
    `ACCESS` bytes of the narrowest tensor."""
    full = {dim.symbol for dim in writer.dims}
    accesses = (s for s in writer.nest.body if isinstance(s, Load | Store))
    moved = [s.buffer for s in accesses if full <= s.index.free_symbols]
    item = min((writer.program.buffer(name).dtype.itemsize for name in moved), default=1)
    threads = plan.launch.num_warps * WARP
    return plan.tile_rows > 1 and threads * ACCESS <= plan.chunk * item


def _columns(last: Axis, plan: Plan, shifted: bool) -> tuple[TileDim, ...]:
    """The chunks that hold a row; the last of them may have lanes beyond its end."""
    extent, chunk = str(last.size), plan.chunk
    if plan.chunks == 1:
        return (TileDim(last.symbol, extent, "R0_BLOCK", last.size != chunk or shifted),)
    return tuple(
        TileDim(last.symbol, extent, "R0_BLOCK", start + chunk > last.size, i, start)
        for i, start in enumerate(range(0, plan.lanes, chunk))
    )
