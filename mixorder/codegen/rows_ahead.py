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
_AGAIN = f".reg .pred p; setp.eq.s32 p, $2, {EMPTY}; mov.b32 $0, $2; @p ld.relaxed.gpu.global.b32 $0, [$1];"


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


def looked_at(pointers: str, mask: str) -> str:
    """Triton text: the words at some addresses, which may be empty yet; 0 where the mask, if there is one, is
    false."""
    return f"tl.load({pointers}{f', {mask}, other=0' * bool(mask)}, volatile=True)"


def awaited(words: str, pointers: str) -> Iterator[str]:
    """Lines that load words again until none is empty: all at once, as each would take the time of a load
    (H100, a norm in front of MXFP8 both ways, 16384x4096: 178 us, so 172). The loop is around the whole
    tensor: of one for each word, Triton makes a copy for each layout, up to seven."""
    addresses = f"({pointers}).to(tl.int64)"
    again = inline(_MARK, _AGAIN, "=&r,l,r", [addresses, words], "tl.int32", pure=False)
    yield f"while tl.min(({words} != {EMPTY}).to(tl.int32)) == 0:"
    yield f"    {words} = {again}"


def interpreted(text: str, args: list[Any]) -> list[Any] | None:
    """None if the `asm` is another one. Raises RuntimeError where a word is awaited: the interpreter runs one
    program after the other."""
    if mark_of(text) != _MARK:
        return None
    raise RuntimeError("a tile came before the values of its rows")
