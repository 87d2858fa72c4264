"""tanh, erf and sigmoid of float32 without branches, as PTX.

CUDA's math library computes tanh and erf in one way near zero and in another elsewhere, behind a branch. The
threads of a warp take both, one after the other, and the instructions of different elements are not mixed.
Here every element is computed in both ways, by the library's own instructions in their order, and one is
selected: all 2**32 float32 give the library's bits (H200, triton 3.6). MXFP8 casts behind a GELU (tanh),
16384x4096: 267 us with the branch, 198 us without.

The sigmoid is eager's, `1 / (1 + exp(-x))` with the library's exponential and a division that rounds to the
nearest; Triton's has another exponential and an approximate division. Below 2**-126 its last bit may be off.
"""

from __future__ import annotations

import torch

from ..transform.branches import PREFIX
from .assembly import Function

_SIGNED = (  # the sign of the operand, on the value in `b`
    "mov.b32 g, $1;",
    "and.b32 g, g, 0x80000000;",
    "mov.b32 k, b;",
    "or.b32 k, k, g;",
    "mov.b32 b, k;",
)


def _polynomial(x: str, coefficients: tuple[str, ...]) -> list[str]:
    """Horner's method in register `r`; the first coefficient is the highest."""
    first, second, *rest = coefficients
    steps = [f"fma.rn.ftz.f32 r, {first}, {x}, {second};"]
    return steps + [f"fma.rn.ftz.f32 r, r, {x}, {c};" for c in rest]


def _tanh() -> str:
    """1 - 2 / (exp(2 |x|) + 1); below 0.6 an odd polynomial. The library selects 1 from 9.01 on, which the
    formula gives there by itself. GELU's casts, 16384x4096: 165.9 us with that selection, 160.2 without."""
    return " ".join(
        (
            ".reg .f32 t, v, r, b; .reg .pred h; .reg .b32 g, k;",
            "abs.f32 t, $1;",
            "mul.f32 b, t, 0f4038AA3B;",
            "ex2.approx.ftz.f32 b, b;",
            "add.f32 b, b, 0f3F800000;",
            "rcp.approx.ftz.f32 b, b;",
            "fma.rn.ftz.f32 b, b, 0fC0000000, 0f3F800000;",
            *_SIGNED,
            "mul.f32 v, $1, $1;",
            *_polynomial("v", ("0f3C80F082", "0fBD563CAE", "0f3E085941", "0fBEAAA9ED", "0f00000000")),
            "fma.rn.ftz.f32 r, r, $1, $1;",
            "setp.ltu.f32 h, t, 0f3F19999A;",
            "selp.f32 $0, r, b, h;",
        )
    )


_ERF = (  # coefficients for |x| from 1.003 on, where the polynomial is an exponent of 2, and below
    ("0f3789CA3C", "0f38B1E96A"),
    ("0fB9F560B9", "0fBA574D20"),
    ("0f3BAC840B", "0f3BAAD5EA"),
    ("0fBD0C8162", "0fBCDC1BE7"),
    ("0f3E1CF906", "0f3DE718AF"),
    ("0f3F6A937E", "0fBEC093AC"),
    ("0f3F20D842", "0f3E0375D3"),
)


def _erf() -> str:
    names = tuple(f"c{i}" for i in range(len(_ERF)))
    chosen = (f"selp.f32 {n}, {far}, {near}, q;" for n, (far, near) in zip(names, _ERF, strict=True))
    return " ".join(
        (
            f".reg .f32 t, v, m, r, b, {', '.join(names)}; .reg .pred q; .reg .b32 g, k;",
            "abs.f32 t, $1;",
            "setp.ge.f32 q, t, 0f3F8060FE;",
            "mul.f32 v, $1, $1;",
            "selp.f32 v, t, v, q;",
            *chosen,
            *_polynomial("v", names),
            "neg.f32 m, v;",
            "selp.f32 m, m, $1, q;",
            "fma.rn.ftz.f32 r, r, m, m;",
            "ex2.approx.ftz.f32 b, r;",
            "sub.f32 b, 0f3F800000, b;",
            *_SIGNED,
            "selp.f32 $0, b, r, q;",
        )
    )


def _sigmoid() -> str:
    """The exponential is a power of 2, in `s`, times that of a fraction, in `p`. The reciprocal of a quarter
    of the sum is no subnormal number. One correction rounds it as IEEE 754 does (Markstein 1990); where the
    sum is infinite, the largest number in its place keeps the remainder finite."""
    return " ".join(
        (
            ".reg .f32 n, j, f, p, r, y, t, m; .reg .b32 i, s;",
            "neg.f32 n, $1;",
            "fma.rn.ftz.sat.f32 j, n, 0f3BBB989D, 0f3F000000;",
            "fma.rm.ftz.f32 f, j, 0f437C0000, 0f4B400001;",
            "mov.b32 i, f;",
            "shl.b32 s, i, 23;",
            "sub.f32 f, 0f4B40007F, f;",
            "fma.rn.ftz.f32 f, n, 0f3FB8AA3B, f;",
            "fma.rn.ftz.f32 f, n, 0f32A57060, f;",
            "ex2.approx.ftz.f32 p, f;",
            "mov.b32 y, s;",
            "fma.rn.f32 y, p, y, 0f3F800000;",
            "mul.f32 y, y, 0f3E800000;",
            "rcp.approx.ftz.f32 r, y;",
            "min.f32 t, y, 0f7F7FFFFF;",
            "neg.f32 t, t;",
            "fma.rn.f32 m, t, r, 0f3F800000;",
            "fma.rn.f32 r, m, r, r;",
            "mul.f32 $0, r, 0f3E800000;",
        )
    )


FUNCTIONS = {
    f"{PREFIX}tanh": Function(_tanh(), torch.tanh),
    f"{PREFIX}erf": Function(_erf(), torch.erf),
    f"{PREFIX}sigmoid": Function(_sigmoid(), torch.sigmoid),
}
