"""Programs of a tile's kernel that compute values of whole rows ahead of the tiles that need them.

Programs come in groups: those for the values of some rows, a few rows each, and those for the tiles of rows
whose values the group `Schedule.ahead` groups before has. A tile's program waits where it needs the values. A
program takes its number from a counter when it starts, as nothing promises that a GPU starts programs in the
order of their own numbers. So all programs with smaller numbers are running or have ended, and those that a
tile waits for wait for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..schedule.rows_ahead import Groups
from ..transform.cooperative import EMPTY
from .assembly import inline, mark_of

FUNCTION = "row_values"
_MARK = "awaited"
_WAIT = f".reg .pred p; again: ld.relaxed.gpu.global.b32 $0, [$1]; setp.eq.s32 p, $0, {EMPTY}; @p bra again;"


def roles(
    groups: Groups, ahead: int, arguments: str, counter: str, row: str, column: str, wide: bool
) -> Iterator[str]:
    """Lines of a kernel up to where a tile is computed. `counter` is the address of one that is `EMPTY` at
    first; `row` and `column` are the numbers of the tile; `wide`: these need 64 bits."""
    number = f'tl.atomic_add({counter}, 1, sem="relaxed") + {-EMPTY}'
    yield f"number = ({number}).to(tl.int64)" if wide else f"number = {number}"
    yield f"group = number // {groups.programs}"
    yield f"turn = number % {groups.programs}"
    yield f"if turn < {groups.values}:"
    yield f"    if group * {groups.values} + turn < {groups.needed}:"
    yield f"        {FUNCTION}({arguments}, group * {groups.values} + turn)"
    yield f"elif group >= {ahead}:"
    yield f"    {row} = group - {ahead}"
    yield f"    {column} = turn - {groups.values}"


def awaited(pointers: str, mask: str, first: str) -> str:
    """Triton text: the words at some addresses, once they are not empty. Where the mask, if there is one, is
    false: the word at `first`."""
    addresses = f"({pointers}).to(tl.int64)"
    if mask:
        addresses = f"tl.where({mask}, {addresses}, {first}.to(tl.int64))"
    return inline(_MARK, _WAIT, "=&r,l", [addresses], "tl.int32")


def interpreted(text: str, args: list[Any]) -> list[Any] | None:
    """What the `asm` gives for NumPy arguments; None if it is another one. Raises RuntimeError for an empty
    word: the interpreter runs one program after the other."""
    import ctypes

    import numpy

    if mark_of(text) != _MARK:
        return None
    words = (ctypes.c_int32.from_address(int(address)).value for address in args[0].flat)
    found = numpy.fromiter(words, numpy.int32, args[0].size).reshape(args[0].shape)
    if (found == EMPTY).any():
        raise RuntimeError("a tile came before the values of its rows")
    return [found]
