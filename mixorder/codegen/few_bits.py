"""A quotient of float32 whose divisor has at most 11 bits, without branches, as PTX.

`s` is a quarter of the divisor, so that its reciprocal is no subnormal number. The approximate reciprocal `r`
is off by 2**-23 at most, and `q = c r` by less than three units in the last place. The remainder `c - s q`
is exact: it is less than 2**24 times its last bit. So `q + r (c - s q)` differs from the quotient by 2**-20
units before it is rounded. A quotient by a number of 11 bits that is no middle between two float32 is further
from one: by 2**-12 units, as the difference is a fraction with that divisor. So the rounding is right.
For an infinite divisor `q` is 0, and the largest number in its place keeps the remainder finite.

H200, 1x128 and 128x1, 16384x4096, where a thread has 24 of them: 2216 instructions, and 1840 with this.
"""

from __future__ import annotations

import struct
from typing import Any

from ..transform.few_bits import QUOTIENT
from .assembly import inline, mark_of

_MARK = "quotient_"  # and the bits of the dividend


def called(op: str, args: tuple[Any, ...]) -> str | None:
    """Triton text of an op that `transform.few_bits` put in; None for any other."""
    if op != QUOTIENT:
        return None
    divisor, dividend = args
    (bits,) = struct.unpack("I", struct.pack("f", dividend))
    body = " ".join(
        (
            ".reg .f32 s, r, q, m;",
            "mul.f32 s, $1, 0f3E800000;",
            "rcp.approx.ftz.f32 r, s;",
            f"mul.f32 q, r, 0f{bits:08X};",
            "min.f32 s, s, 0f7F7FFFFF;",
            "neg.f32 s, s;",
            f"fma.rn.f32 m, s, q, 0f{bits:08X};",
            "fma.rn.f32 q, m, r, q;",
            "mul.f32 $0, q, 0f3E800000;",
        )
    )
    return inline(f"{_MARK}{bits:08X}", body, "=f,f", [str(divisor)], "tl.float32")


def interpreted(text: str, args: list[Any]) -> list[Any] | None:
    """The results of a call in the interpreter, on NumPy arrays; None if `text` is no call."""
    import numpy

    mark = mark_of(text)
    if mark is None or not mark.startswith(_MARK):
        return None
    (dividend,) = struct.unpack("f", struct.pack("I", int(mark.removeprefix(_MARK), 16)))
    with numpy.errstate(all="ignore"):
        return [numpy.float32(dividend) / args[0]]
