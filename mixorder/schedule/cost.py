"""Whether a region is worth a kernel of its own. Numbers and indices in, `Decline` out."""

from __future__ import annotations

import sympy

from ..errors import Decline, DeclineReason
from ..loops.ir import AxisClass, Load, LoopProgram, Store


def gate(numel: int, min_numel: int) -> None:
    """Raise `Decline` for a space of fewer than `min_numel` elements: there, launches decide, not bytes."""
    if numel < min_numel:
        raise Decline(DeclineReason.TOO_SMALL, f"{numel} elements, fewer than {min_numel}")


def check_coalesced(program: LoopProgram) -> None:
    """Raise `Decline` if a full tile is read or written across memory: 32 times the traffic at worst.

    Stride 0 is a broadcast. An index with divisions runs along memory for some of its length and passes.
    """
    row = program.axis(AxisClass.ROW)
    last = program.axis(AxisClass.COLUMN) or program.axis(AxisClass.COMMON)
    assert row is not None and last is not None
    if last.size == 1:
        return
    for stmt in program.nests[0].body:
        if isinstance(stmt, Load | Store) and {row.symbol, last.symbol} <= stmt.index.free_symbols:
            stride = sympy.expand(stmt.index).coeff(last.symbol)
            if stride.is_number and stride not in (0, 1):
                buffer = program.buffer(stmt.buffer)
                detail = f"{buffer.name} of shape {buffer.shape} has strides {buffer.stride}"
                raise Decline(DeclineReason.LAYOUT, detail)
