"""Conversion of bfloat16 to float32, two elements at a time, as PTX.

What was loaded is converted by a shift and a mask, and the second time by other instructions: a compiler
would make one conversion of two that are alike, and hold its results.
"""

from __future__ import annotations

from typing import Any

from ..transform.held_packed import UNPACKED, UNPACKED_AGAIN
from .assembly import inline, mark_of

_MARK = "unpacked"
_BODIES = {
    UNPACKED: "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;",
    UNPACKED_AGAIN: "prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244;",
}


def called(op: str, value: str) -> str | None:
    """Triton text of an op of `transform.held_packed`; None for any other."""
    if op not in _BODIES:
        return None
    return inline(_MARK, _BODIES[op], "=f,=f,r", [value], "tl.float32", pack=2)


def interpreted(text: str, args: list[Any]) -> list[Any] | None:
    """The results of a call in the interpreter, on NumPy arrays; None if `text` is no call."""
    if mark_of(text) != _MARK:
        return None
    return [(args[0].view("uint16").astype("uint32") << 16).view("float32")]
