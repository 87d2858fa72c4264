"""The interpreter's casts between FP8 or bfloat16 and wider floats, for every bit pattern."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from mixorder.plugin import prepare_interpreter

NARROW = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
WIDE = [torch.float16, torch.float32, torch.float64]


@triton.jit
def copy(x, y, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(y + at, tl.load(x + at).to(y.dtype.element_ty))


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    prepare_interpreter()
    y = torch.zeros_like(x, dtype=dtype)
    copy[(1,)](x, y, x.numel())
    return y


def every(dtype: torch.dtype) -> torch.Tensor:
    """Each value of a dtype."""
    bits = 8 * dtype.itemsize
    return torch.arange(2**bits, dtype=torch.int32).to(getattr(torch, f"uint{bits}")).view(dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """In value and in the sign of zeros; any NaN for NaN."""
    one, other = one.double(), other.double()
    return torch.equal(one.nan_to_num(7e300), other.nan_to_num(7e300)) and torch.equal(
        one.signbit()[~one.isnan()], other.signbit()[~other.isnan()]
    )


@pytest.mark.parametrize("wide", WIDE, ids=str)
@pytest.mark.parametrize("narrow", NARROW, ids=str)
def test_every_value_is_read_as_torch_reads_it(narrow: torch.dtype, wide: torch.dtype) -> None:
    assert same(cast(every(narrow), wide), every(narrow).to(wide))


@pytest.mark.parametrize("wide", WIDE, ids=str)
@pytest.mark.parametrize("narrow", NARROW, ids=str)
def test_every_value_is_rounded_as_torch_rounds_it(narrow: torch.dtype, wide: torch.dtype) -> None:
    """And what lies between two values: what is beyond FP8 becomes its largest number."""
    values = every(torch.float16).to(wide)
    expected = values
    if narrow.itemsize == 1:
        expected = values.clamp(torch.finfo(narrow).min, torch.finfo(narrow).max)
    assert same(cast(values, narrow), expected.to(narrow))
