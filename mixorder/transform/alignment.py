"""Where the rows of a program start relative to the boundaries of wide memory accesses.

A GPU reads 16 bytes at once if they start at a boundary, a multiple of 16 bytes. Rows of an odd number of
elements do not all start at a boundary, but rows that are `period` apart start at the same distance from one.
A program that has only such rows shifts its columns by a constant, and every access is wide again.
"""

from __future__ import annotations

import sympy

from ..ir.hardware import ACCESS
from ..ir.program import AxisClass, Load, LoopProgram, RowAlignment


def row_alignment(program: LoopProgram) -> RowAlignment | None:
    """That of a merged program's rows; None if all start alike, or if no one shift aligns all full tiles."""
    row, last = program.tile_axes
    if program.axis(AxisClass.BATCH) is not None or not last.size.is_number:
        return None
    full = program.nests[0].accesses((row, last))
    strides = {sympy.expand(s.index - last.symbol).coeff(row.symbol) for s in full}
    if len(strides) != 1 or any(isinstance(s, Load) and s.predicate is not None for s in full):
        return None
    (stride,) = strides
    if not stride.is_Integer or any(
        sympy.expand(s.index - last.symbol - stride * row.symbol) != 0 for s in full
    ):
        return None
    buffers = [program.buffer(s.buffer) for s in full]
    # A wide access would reach beyond a tensor that does not start and end at a boundary.
    read = {program.buffer(s.buffer) for s in full if isinstance(s, Load)}
    edges = [(b, b.offset) for b in buffers] + [(b, b.max_offset + 1) for b in read]
    if any((edge * b.dtype.itemsize) % ACCESS != 0 for b, edge in edges):
        return None
    smallest = min(b.dtype.itemsize for b in buffers)
    alignment = RowAlignment(int(stride), ACCESS // smallest)
    return alignment if alignment.period > 1 else None
