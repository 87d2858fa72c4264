"""Divide the columns of a merged program into blocks, as a batch axis: a program has one block.

Where no reduction runs along a row, as for a bias gradient, nothing ties its columns together. A row of any
length can be divided, and a block's width can be a power of two where the row's is none: no lane is idle.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import sympy

from ..errors import DeclineReason, GainsNothing
from ..ir.program import (
    Axis,
    AxisClass,
    Buffer,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Statement,
    Store,
)

BLOCK = sympy.Symbol("k", integer=True, nonnegative=True)  # as the batch axis of a region is called


def check_divisible(program: LoopProgram) -> None:
    """Raise `Decline` unless each column of a merged program can be computed without the others."""
    col = program.axis(AxisClass.COLUMN)
    reduced = {s for nest in program.nests for r in nest.body if isinstance(r, Reduce) for s in r.axes}
    missing = {
        "columns": col is not None and col.size.is_number,
        "no reduction along a row": col is None or col.symbol not in reduced,
        "no batch axis": program.axis(AxisClass.BATCH) is None,
        "rows that all start alike": program.phase is None,
    }
    if not all(missing.values()):
        needed = next(name for name, found in missing.items() if not found)
        raise GainsNothing(DeclineReason.ROW_TOO_WIDE, f"blocks of columns need {needed}")


def in_blocks(program: LoopProgram, width: int) -> LoopProgram:
    """The program with its column axis as (block, column of the block); `width` divides the columns."""
    col = program.axis(AxisClass.COLUMN)
    assert col is not None and col.size % width == 0
    batch = Axis(BLOCK, col.size // width, AxisClass.BATCH)
    within = dataclasses.replace(col, size=sympy.Integer(width))
    divide = _Divider(col, batch, within)
    return dataclasses.replace(
        program,
        buffers=tuple(map(divide.buffer, program.buffers)),
        nests=tuple(map(divide.nest, program.nests)),
    )


@dataclasses.dataclass(frozen=True)
class _Divider:
    """The rewrite of one column axis `col` as `batch` x `within`."""

    col: Axis
    batch: Axis
    within: Axis

    def buffer(self, buffer: Buffer) -> Buffer:
        """A workspace has the same layout, as (splits, blocks, columns of a block)."""
        if buffer.role is not BufferRole.WORKSPACE:
            return buffer
        splits, _ = buffer.shape
        shape = (splits, self.batch.size, self.within.size)
        return dataclasses.replace(
            buffer, shape=shape, stride=(buffer.stride[0], self.within.size, sympy.S.One)
        )

    def nest(self, nest: Nest) -> Nest:
        """Blocks are the outermost loop."""
        rest = (self.within if axis == self.col else axis for axis in nest.loops)
        return dataclasses.replace(
            nest,
            loops=(self.batch, *rest),
            preamble=tuple(map(self.statement, nest.preamble)),
            body=tuple(map(self.statement, nest.body)),
        )

    def statement(self, stmt: Statement) -> Statement:
        if isinstance(stmt, Load | Store | PartialAccumulate):
            return dataclasses.replace(stmt, index=self.index(stmt.index))
        if isinstance(stmt, Compute):
            args = tuple(map(self.argument, stmt.args))
            kwargs = tuple((name, self.argument(value)) for name, value in stmt.kwargs)
            return dataclasses.replace(stmt, args=args, kwargs=kwargs)
        return stmt

    def argument(self, value: Any) -> Any:
        return self.index(value) if isinstance(value, sympy.Expr) else value

    def index(self, index: sympy.Expr) -> sympy.Expr:
        """An index by block and column."""
        col = self.col.symbol
        return index.xreplace({col: self.batch.symbol * self.within.size + col})
