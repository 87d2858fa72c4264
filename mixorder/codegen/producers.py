"""Programs of a tile's kernel that compute values of whole rows for the tiles that need them.

Programs come in groups: those for the values of some rows, a few rows each, and those for the tiles of rows
whose values the group `Produced.lag` groups before has. A tile's program waits where it needs the values.
A program takes its number from a counter when it starts, as nothing promises that a GPU starts programs in
the order of their own numbers. So all programs with smaller numbers are running or have ended, and those that
a tile waits for wait for nothing. A tile that has waited too long computes the values of its rows itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..schedule.producers import ProgramGroups
from ..transform.cooperative import EMPTY
from .assembly import inline, mark_of
from .exchange import POLLS

FUNCTION = "row_values"
_MARK = "awaited"
_LATE = "late"
_IN_ANY = ".reg .pred p; setp.eq.s32 p, $1, 0; bar.red.or.pred p, 0, p; selp.b32 $0, 1, 0, p;"
_RELOAD = f".reg .pred p; setp.eq.s32 p, $2, {EMPTY}; mov.b32 $0, $2; @p ld.relaxed.gpu.global.b32 $0, [$1];"


def roles(
    groups: ProgramGroups, lag: int, arguments: str, counter: str, row: str, column: str, wide: bool
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
    yield f"elif group >= {lag}:"
    yield f"    {row} = group - {lag}"
    yield f"    {column} = turn - {groups.values}"


def looked_at(pointers: str, mask: str) -> str:
    """Triton text: the words at some addresses, which may be empty yet; 0 where the mask, if there is one, is
    false."""
    return f"tl.load({pointers}{f', {mask}, other=0' * bool(mask)}, volatile=True)"


def awaited(places: Mapping[str, str]) -> Iterator[str]:
    """Lines that load words, each at its addresses, again until none is empty, but not for ever: all at once,
    as each would take the time of a load (H100, a norm in front of mixed-order MXFP8, 16384x4096: 178 us, so
    172). The loop is around the whole tensor: of one for each word, Triton makes a copy for each layout, up
    to seven.

    Several threads may have a copy of one word, of which the loop looks at one, and it may have been loaded
    later than the others: these are loaded once more behind the loop."""
    yield f"polls = tl.full([], {POLLS}, tl.int32)"
    for words, pointers in places.items():
        places_and_words = [f"({pointers}).to(tl.int64)", words]
        reload = f"{words} = {inline(_MARK, _RELOAD, '=&r,l,r', places_and_words, 'tl.int32', pure=False)}"
        yield f"while (tl.min(({words} != {EMPTY}).to(tl.int32)) == 0) & (polls > 0):"
        yield f"    {reload}"
        yield "    polls -= 1"
        yield reload


def branches(
    groups: ProgramGroups, arguments: str, row: str, wide: bool, before: Sequence[str], after: Sequence[str]
) -> Iterator[str]:
    """Lines behind the wait of a tile, of which `before` and `after` are those around the wait.

    If it gave up in a warp, the values of its rows, the tile number `row`, are computed here, and then the
    whole tile: what had been computed before would take registers, and nothing was stored that may not be
    stored again. So would offsets that both branches share (sm_90, LayerNorm and mixed-order MXFP8,
    16384x4096 with 96 registers: 128 bytes spilled, so 16): to the compiler, the number is another one."""
    yield f"if {inline(_LATE, _IN_ANY, '=r,r', ['polls'], 'tl.int32', pure=False)} == 0:"
    yield from (f"    {line}" for line in after)
    yield "else:"
    yield f"    first = {row} * {groups.values}"
    yield f"    for part in tl.range(first, tl.minimum(first + {groups.values}, {groups.needed})):"
    yield f"        {FUNCTION}({arguments}, part)"
    yield "    tl.debug_barrier()"
    number = inline("pass", "mov.b32 $0, $1;", "=r,r", [f"{row}.to(tl.int32)"], "tl.int32", pure=False)
    yield f"    {row} = {number}{'.to(tl.int64)' * wide}"
    yield from (f"    {line}" for line in (*before, *after))


def interpreted(text: str, args: list[Any]) -> list[Any] | None:
    """What the `asm` of this module gives for NumPy arguments; None if it is another one."""
    import ctypes

    import numpy

    if (mark := mark_of(text)) == _LATE:
        return [(args[0] == 0).astype(numpy.int32)]
    if mark != _MARK:
        return None
    addresses, words = numpy.broadcast_arrays(*args)
    values = [
        ctypes.c_int32.from_address(int(at)).value if word == EMPTY else word
        for at, word in zip(addresses.flat, words.flat, strict=True)
    ]
    return [numpy.array(values, numpy.int32).reshape(words.shape)]
