"""Programs of a tile's kernel that compute values of whole rows ahead of the tiles that need them.

Programs come in groups: those for the values of some rows, a few rows each, and those for the tiles of rows
whose values the group `Schedule.ahead` groups before has. A GPU starts programs in the order of their
numbers, so that a tile's values are there, or are being computed, when it starts. Nothing promises that
order: a tile that has waited for too long computes the values itself. They are the same bits, and go to the
same place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..schedule.rows_ahead import Groups
from ..transform.cooperative import EMPTY
from .assembly import inline, mark_of
from .exchange import POLLS

FUNCTION = "row_values"
_MARK = "late"
_WAIT = (
    f".reg .pred p, q; .reg .b32 v, n; mov.b32 n, {POLLS}; "
    f"again: ld.relaxed.gpu.global.b32 v, [$1]; setp.eq.s32 p, v, {EMPTY}; sub.u32 n, n, 1; "
    "setp.ne.u32 q, n, 0; and.pred q, q, p; @q bra again; selp.b32 $0, 1, 0, p;"
)


def roles(groups: Groups, ahead: int, arguments: str, number: str, row: str, column: str) -> Iterator[str]:
    """Lines of a kernel up to where a tile's program goes on, inside an `elif`: the number of the program is
    `number`, and `row` and `column` are those of its tile."""
    yield f"group = {number} // {groups.programs}"
    yield f"turn = {number} % {groups.programs}"
    yield f"if turn < {groups.values}:"
    yield f"    if group * {groups.values} + turn < {groups.needed}:"
    yield f"        {FUNCTION}({arguments}, group * {groups.values} + turn)"
    yield f"elif group >= {ahead}:"
    yield f"    {row} = group - {ahead}"
    yield f"    {column} = turn - {groups.values}"


def waiting(groups: Groups, rows: int, count: int, arguments: str, pointer: str, row: str) -> Iterator[str]:
    """Lines of a tile's program that wait for `count` values of each of its rows, of `rows` in all."""
    of = f"{row} * {groups.rows} + tl.arange(0, {groups.rows})"
    of = of if rows % groups.rows == 0 else f"tl.minimum({of}, {rows - 1})"
    yield f"awaited = {pointer} + {of}"
    found = [_late("awaited" + f" + {i * rows}" * bool(i)) for i in range(count)]
    yield f"if tl.max({' | '.join(found)}, 0) > 0:"
    yield f"    for part in range({groups.values}):"
    yield f"        if {row} * {groups.values} + part < {groups.needed}:"
    yield f"            {FUNCTION}({arguments}, {row} * {groups.values} + part)"
    yield "    tl.debug_barrier()"


def _late(pointers: str) -> str:
    """Whether each slot is still empty, as an integer, after `POLLS` reads at most."""
    return inline(_MARK, _WAIT, "=r,l", [f"({pointers}).to(tl.int64)"], "tl.int32")


def interpreted(text: str, args: list[Any]) -> list[Any] | None:
    """What the `asm` gives for NumPy arguments; None if it is another one."""
    import ctypes

    import numpy

    if mark_of(text) != _MARK:
        return None
    slots = (ctypes.c_int32.from_address(int(address)).value for address in args[0].flat)
    found = numpy.fromiter(slots, numpy.int32, args[0].size).reshape(args[0].shape)
    return [(found == EMPTY).astype(numpy.int32)]
