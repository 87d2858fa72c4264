"""Quotients of float32 without branches, as PTX.

Of a divisor with at most 11 bits: `s` is a quarter of it, so that its reciprocal is no subnormal number. The
approximate reciprocal `r` is off by 2**-23 at most, and `q = c r` by less than three units in the last place.
The remainder `c - s q` is exact: it is less than 2**24 times its last bit. So `q + r (c - s q)` differs from
the quotient by 2**-20 units before it is rounded. A quotient by a number of 11 bits that is no middle between
two float32 is further from one: by 2**-12 units, as the difference is a fraction with that divisor. So the
rounding is right. For an infinite divisor `q` is 0, and the largest number in its place keeps the remainder
finite.

By the rounded reciprocal `r` of a divisor `s` (`transform.quotients`): `q = a r`, and `q - r (s q - a)`. The
order of signs keeps that of a zero. Where `q` or `s` is infinite or NaN, `q` is the quotient already, and the
remainder is not finite. The reciprocal itself is CUDA's, without the branch for those that are subnormal. For
a divisor that is zero, infinite or NaN the approximate one is right, and its remainder is NaN: the largest
number in its place changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..transform.few_bits import QUOTIENT
from ..transform.quotients import CORRECTED, INVERSE
from .assembly import Function

_QUOTIENT = " ".join(
    (
        ".reg .f32 s, r, q, m;",
        "mul.f32 s, $1, 0f3E800000;",
        "rcp.approx.ftz.f32 r, s;",
        "mul.f32 q, r, $2;",
        "min.f32 s, s, 0f7F7FFFFF;",
        "neg.f32 s, s;",
        "fma.rn.f32 m, s, q, $2;",
        "fma.rn.f32 q, m, r, q;",
        "mul.f32 $0, q, 0f3E800000;",
    )
)
_INVERSE = (
    ".reg .f32 r, s, m; rcp.approx.ftz.f32 r, $1; neg.f32 s, $1; fma.rn.f32 m, s, r, 0f3F800000; "
    "min.f32 m, m, 0f7F7FFFFF; fma.rn.f32 $0, m, r, r;"
)
_CORRECTION = " ".join(
    (
        ".reg .f32 q, t, m; .reg .pred p;",
        "mul.f32 q, $1, $3;",
        "neg.f32 m, $1;",
        "fma.rn.f32 m, q, $2, m;",
        "abs.f32 t, m;",
        "setp.lt.f32 p, t, 0f7F800000;",
        "neg.f32 t, $3;",
        "@p fma.rn.f32 q, m, t, q;",
        "mov.b32 $0, q;",
    )
)


def _corrected(value: Tensor, divisor: Tensor, inverse: Tensor) -> Tensor:
    product = value * inverse
    rest = _fused(product, divisor, -value)
    return torch.where(rest.isfinite(), _fused(rest, -inverse, product), product)


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """`a b + c` of float32, rounded once: a float64 has all bits of the product, and of the sum its last bit
    tells whether there are more."""
    product = a.double() * b
    whole = product + c
    part = whole - product
    rest = (product - (whole - part)) + (c - part)
    bits = whole.view(torch.int64)
    odd = torch.where((rest > 0) == (whole > 0), bits | 1, bits - 1 | 1)
    return torch.where((rest != 0) & (bits & 1 == 0), odd.view(torch.float64), whole).float()


FUNCTIONS = {
    QUOTIENT: Function(_QUOTIENT, lambda divisor, dividend: dividend / divisor),
    INVERSE: Function(_INVERSE, torch.reciprocal),
    CORRECTED: Function(_CORRECTION, _corrected),
}
