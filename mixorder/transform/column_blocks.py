"""Divide the columns of a merged program into blocks, as a batch axis: a program has one block.

Where no reduction runs along a row, as for a bias gradient, nothing ties its columns together. A row of any
length can be divided, and a block's width can be a power of two where the row's is none: no lane is idle.
"""

from __future__ import annotations

import dataclasses

import sympy

from ..errors import DeclineReason, GainsNothing
from ..ir.program import (
    Axis,
    AxisClass,
    Buffer,
    BufferRole,
    LoopProgram,
    Nest,
)
from ..ir.rewriting import reindexed

BLOCK = sympy.Symbol("k", integer=True, nonnegative=True)  # as the batch axis of a region is called


def check_divisible(program: LoopProgram) -> None:
    """Raise `Decline` unless each column of a merged program can be computed without the others."""
    col = program.axis(AxisClass.COLUMN)
    needs = {
        "columns": col is not None and col.size.is_number,
        "no reduction along a row": not any(col and col.symbol in nest.reduced for nest in program.nests),
        "no batch axis": program.axis(AxisClass.BATCH) is None,
        "rows that all start alike": program.alignment is None,
    }
    for needed, holds in needs.items():
        if not holds:
            raise GainsNothing(DeclineReason.ROW_TOO_WIDE, f"blocks of columns need {needed}")


def in_blocks(program: LoopProgram, width: int) -> LoopProgram:
    """The program with its column axis as (block, column of the block); `width` divides the columns."""
    col = program.axis(AxisClass.COLUMN)
    assert col is not None and col.size % width == 0
    batch = Axis(BLOCK, col.size // width, AxisClass.BATCH)
    within = dataclasses.replace(col, size=sympy.Integer(width))

    def index(index: sympy.Expr) -> sympy.Expr:
        """An index by block and column."""
        return index.xreplace({col.symbol: batch.symbol * within.size + col.symbol})

    def buffer(whole: Buffer) -> Buffer:
        """A workspace has the same layout, as (splits, blocks, columns of a block)."""
        if whole.role is not BufferRole.WORKSPACE:
            return whole
        shape, stride = (whole.shape[0], batch.size, within.size), (whole.stride[0], within.size, sympy.S.One)
        return dataclasses.replace(whole, shape=shape, stride=stride)

    def nest(whole: Nest) -> Nest:
        """Blocks are the outermost loop."""
        loops = (batch, *(within if axis == col else axis for axis in whole.loops))
        preamble, body = (
            tuple(reindexed(s, index) for s in statements) for statements in (whole.preamble, whole.body)
        )
        return dataclasses.replace(whole, loops=loops, preamble=preamble, body=body)

    buffers, nests = tuple(map(buffer, program.buffers)), tuple(map(nest, program.nests))
    return dataclasses.replace(program, buffers=buffers, nests=nests)
