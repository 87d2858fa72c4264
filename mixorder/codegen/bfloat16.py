"""Rounding of float32 to bfloat16 and conversion back, two elements at a time, as PTX.

Triton casts to bfloat16 one element at a time, by an instruction that a multiprocessor runs at an eighth of
the rate of others. Where a value is rounded and computed with further, the instruction for two elements has
both in a register, of which a shift and a mask give the two float32.
"""

from __future__ import annotations

from ..transform.rounding import ROUNDED
from .assembly import Function

_BODY = ".reg .b32 p; cvt.rn.bf16x2.f32 p, $3, $2; shl.b32 $0, p, 16; and.b32 $1, p, 0xffff0000;"  # low, high
FUNCTIONS = {ROUNDED: Function(_BODY, lambda x: x.bfloat16().float(), pack=2)}
