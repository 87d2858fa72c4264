"""The kernels of a region: the main one, as its strategy writes it, and the finalisation.

Both come from the same writer: a nest's axes are laid out over a two-dimensional tile, (row, column) for the
main kernel and (split, column) for the finalisation. What a statement becomes follows from the axes that it
depends on; nothing here is specific to a norm.

Equal inputs give equal text, without device access, timing, or names of graph nodes, so that equal regions
share one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sympy

from ..inductor.printing import printing_triton
from ..ir.program import SPLIT_SYMBOL, AxisClass, LoopProgram, Nest, Statement, Store, Value, operands
from ..schedule.plan import Plan
from ..transform.finished import finished
from .programmatic_launch import PROGRAM, awaited
from .source import KernelSource, LaunchConfig
from .staged import placing_kernel
from .writer import TileDim, Writer

MainKernel = Callable[[LoopProgram, Plan, str], KernelSource]


def generate(
    main_kernel: MainKernel, program: LoopProgram, plan: Plan, label: str
) -> tuple[KernelSource, ...]:
    """The main kernel and the second stage, which a program may lack or not need; or the second stage in one
    kernel with what puts staged results in place. `label` goes into their names, with a hash of the text."""
    program = finished(program) if plan.finishes else program
    _, *later_nests = program.nests
    final = [nest for nest in later_nests if nest.over_splits]
    copies = [nest for nest in later_nests if not nest.over_splits]
    with printing_triton():
        main = main_kernel(program, plan, label)
        names = [f"sums{i}" if copies else "KERNEL" for i in range(len(final))]
        stages = zip(final, names, strict=True)
        behind = tuple(_final_kernel(program, nest, plan, label, name) for nest, name in stages)
        if copies:
            behind = (placing_kernel(program, copies, behind, plan, label),)
        return (main, *behind)


def _final_kernel(program: LoopProgram, nest: Nest, plan: Plan, label: str, name: str) -> KernelSource:
    """The finalisation, or as a part of a kernel a function of this name, whose last parameter is its
    program's number."""
    col, standalone = nest.axis(AxisClass.COLUMN), name == "KERNEL"
    cols = 1 if col is None else int(col.size)
    s_block = 1 << (plan.splits - 1).bit_length()
    block = min(plan.second.block, 1 << (cols - 1).bit_length())
    s = TileDim(SPLIT_SYMBOL, str(plan.splits), "SBLOCK", s_block != plan.splits)
    y = TileDim(col.symbol if col else sympy.Symbol("y"), str(cols), "YBLOCK", bool(cols % block))
    writer = Writer(program, nest, (s, y), plan.splits)
    writer.begin_kernel(writer.wide, *([] if standalone else ["program"]), name=name)
    writer.code.writeline(f"SBLOCK: tl.constexpr = {s_block}")
    writer.code.writeline(f"YBLOCK: tl.constexpr = {block}")
    program_id = awaited(PROGRAM) if plan.launch.dependent else PROGRAM
    writer.programs("block", program_id if standalone else "program")
    writer.index(s, writer.to_index_width("tl.arange(0, SBLOCK)[:, None]", s.symbol))
    writer.index(y, f"{writer.to_index_width('block', y.symbol)} * YBLOCK + tl.arange(0, YBLOCK)[None, :]")
    for stmt in _with_stores_first(nest):
        writer.statement(stmt)
    config = LaunchConfig((), plan.second.warps, 1)
    grid, waits = writer.batch * -(-cols // block), plan.launch.dependent
    return writer.source(f"triton_mixorder_{label}_final", grid, config, waits=waits)


def _with_stores_first(nest: Nest) -> Iterator[Statement]:
    """The statements, with the stores of a value before what else is computed from it. Triton 3.6 may convert
    the layout of a value once, for a store, and use the result in front of it: it compiles no kernel for the
    sum and the mean of a column that are stored in bf16, fp16 and fp32."""
    used = {name for stmt in nest.statements if not isinstance(stmt, Store) for name in operands(stmt)}
    early = [s for s in nest.statements if isinstance(s, Store) and s.value.name in used]
    for stmt in nest.statements:
        if stmt not in early:
            yield stmt
        if isinstance(stmt, Value):
            yield from (store for store in early if store.value.name == stmt.name)
