"""Rounding of float32 to bfloat16 and conversion back, two elements at a time, as PTX.

Triton casts to bfloat16 one element at a time, by an instruction that a multiprocessor runs at an eighth of
the rate of others. Where a value is rounded and computed with further, the instruction for two elements has
both in a register, of which a shift and a mask give the two float32. H100, dGELU with MXFP8 both ways,
16384x4096: 183.6 us, so 179.1. What was loaded is converted by a shift and a mask as well, and the second
time by other instructions: a compiler would make one conversion of two that are alike, and hold its results.
"""

from __future__ import annotations

from typing import Any

from ..transform.held_packed import UNPACKED, UNPACKED_AGAIN
from ..transform.rounding import ROUNDED
from .assembly import inline, mark_of

_MARK, _UNPACKED = "rounded", "unpacked"
_HALVES = "shl.b32 $0, {0}, 16; and.b32 $1, {0}, 0xffff0000;"  # low, high
_AGAIN = "prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244;"
_BODIES = {UNPACKED: _HALVES.format("$2"), UNPACKED_AGAIN: _AGAIN}
_BODY = f".reg .b32 p; cvt.rn.bf16x2.f32 p, $3, $2; {_HALVES.format('p')}"


def called(op: str, value: str) -> str | None:
    """Triton text of an op of `transform.rounding` or `transform.held_packed`; None for any other."""
    if op in _BODIES:
        return inline(_UNPACKED, _BODIES[op], "=f,=f,r", [value], "tl.float32", pack=2)
    if op != ROUNDED:
        return None
    return inline(_MARK, _BODY, "=f,=f,f,f", [value], "tl.float32", pack=2)


def interpreted(text: str, args: list[Any]) -> list[Any] | None:
    """The results of a call in the interpreter, on NumPy arrays; None if `text` is no call."""
    import torch

    if mark_of(text) == _UNPACKED:
        return [(args[0].view("uint16").astype("uint32") << 16).view("float32")]
    if mark_of(text) != _MARK:
        return None
    return [torch.from_numpy(args[0].copy()).bfloat16().float().numpy()]
