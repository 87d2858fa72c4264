"""The order in which a workspace has its columns, so that threads store partials as they hold them.

A thread loads 8 elements of 16 bits at once, and so holds partials of 8 columns in a row, 32 bytes in fp32.
It stores 16 at once: two stores, and each of them with gaps unless the threads exchange partials first,
through shared memory, two barriers for every 8 columns of a thread. Where the first 4 of every 8 columns lie
in the first half of the workspace's row and the others in its second half, both stores are without gaps
(H200, LayerNorm 2048x8192 bf16: 77.7 -> 78.2 to 81.0% of the limit; docs/tuning.md, section 24).
"""

from __future__ import annotations

import dataclasses

import sympy

from ..inductor.symbols import FloorDiv, ModularIndexing
from ..ir.program import Buffer, Load, LoopProgram, Nest, PartialAccumulate, Statement

GROUP = 8  # columns: one access of 16 bits each
STORED = 4  # columns: one access of 32 bits each
WORD = 4  # bytes of a partial


class InHalves(sympy.Function):
    """`InHalves(column, columns)`: where a row of so many columns in halves has one of them."""

    nargs = 2
    is_integer = True
    is_nonnegative = True


def spelled(index: sympy.Expr) -> sympy.Expr:
    """An index with that written out, as code has it."""

    def at(column: sympy.Expr, columns: sympy.Integer) -> sympy.Expr:
        second = ModularIndexing(column, STORED, GROUP // STORED)
        return FloorDiv(column, GROUP) * STORED + ModularIndexing(column, 1, STORED) + second * (columns // 2)

    return index.replace(InHalves, at)


def in_order(program: LoopProgram) -> LoopProgram:
    """The same with its workspaces' columns in their own order, for kernels that have no register to spare
    (H200, LayerNorm 8192x32768 bf16, rows shared: 87.2% of the limit, in halves 81.0%)."""

    def plain(stmt: Statement) -> Statement:
        if not isinstance(stmt, Load | PartialAccumulate):
            return stmt
        return dataclasses.replace(stmt, index=stmt.index.replace(InHalves, lambda column, _: column))

    nests = (dataclasses.replace(n, body=tuple(map(plain, n.body))) for n in program.nests)
    return dataclasses.replace(program, nests=tuple(nests))


def beside(index: sympy.Expr) -> sympy.Expr | None:
    """What an index into a workspace has besides a column's place in halves; None if it has none."""
    places = index.atoms(InHalves)
    return index.xreplace(dict.fromkeys(places, sympy.S.Zero)) if places else None


def column_at(place: sympy.Symbol, columns: int) -> sympy.Expr:
    """The column that is at a place of a row in halves."""
    half = columns // 2
    at = ModularIndexing(place, 1, half)
    return FloorDiv(at, STORED) * GROUP + FloorDiv(place, half) * STORED + ModularIndexing(at, 1, STORED)


def suits(program: LoopProgram, nest: Nest, workspace: Buffer, axes: set[sympy.Symbol]) -> bool:
    """Whether to have a workspace in halves: if a thread holds 8 columns of the tiles over `axes`."""
    columns = workspace.shape[-1]
    if workspace.dtype.itemsize != WORD or not columns.is_number or columns % GROUP != 0:
        return False
    tiles = [s for s in nest.body if isinstance(s, Load) and axes <= s.index.free_symbols]
    narrowest = min((program.buffer(s.buffer).dtype.itemsize for s in tiles), default=WORD)
    return narrowest * GROUP == WORD * STORED
