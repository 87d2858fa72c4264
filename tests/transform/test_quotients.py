"""Products and corrections in place of quotients by a block's value: which ones, and what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from graphs import bf16, f16, f32, lowered_tile, mixed_order, ops
from support.quantised import F8

from mixorder.codegen.quotients import FUNCTIONS
from mixorder.ir.program import LoopProgram
from mixorder.ir.rewriting import rewritten
from mixorder.ir.verify import Form, verify
from mixorder.schedule.facts import instructions
from mixorder.transform.quotients import CORRECTED, INVERSE, divide_by_blocks

Array = Any


def transformed(function: Callable[..., Any], dtype: torch.dtype = bf16) -> LoopProgram:
    program = lowered_tile(function, ((256, 512), dtype))
    return verify(rewritten(program, divide_by_blocks), Form.TILE_LOCAL)


def by(scale: Callable[[Any], Any], cast: Callable[[Any], Any] = lambda y: y.to(F8)) -> Callable[..., Any]:
    """Mixed-order blocks of 32, each divided by a scale of its maximum."""

    return mixed_order(lambda blocks, dim: cast(blocks / scale(blocks.abs().amax(dim, keepdim=True))))


CLAMPED = lambda m: m.clamp(min=1e-12) / 448  # noqa: E731


SCALED = {
    "a scale may be as small as a number": (by(lambda m: m / 448), f32),
    "or large": (by(lambda m: m.clamp(min=1e-12)), f32),
    "the floor is too low": (by(lambda m: m.clamp(min=1e-30) / 448), f32),
    "a scale may be negative": (by(lambda m: m.clamp(min=-1.0) / 448 - 1), f32),
    "a number is added": (by(lambda m: (m + 1e-12) / 448), f32),
    "zero is replaced": (by(lambda m: torch.where(m > 0, m / 448, 1.0)), f32),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_divisor_of_any_range_is_scaled(name: str) -> None:
    program = transformed(*SCALED[name])
    found = ops(program)
    assert found.count(CORRECTED) == found.count(INVERSE) == 2 and not {"truediv", "div_rn"} & set(found)
    assert instructions(program) - instructions(transformed(by(CLAMPED), f32)) == 2


def code(y: Any) -> Any:
    """How many of some numbers are below, by comparisons."""
    return sum((y > number).to(torch.uint8) for number in (-0.6, -0.09, 0.08, 0.9))


ROUNDED = {
    "rounded": lambda y: torch.round(y).to(torch.int8),
    "and clamped": lambda y: torch.round(y).clamp(-127, 127).to(torch.int8),
    "clamped first": lambda y: y.clamp(-127, 127).round().to(torch.int8),
    "half is added": lambda y: (y + 0.5).floor().to(torch.int8),
    "a number is added": lambda y: (torch.round(y) + 8).clamp(0, 15).to(torch.uint8),
    "compared": code,
    "NaN is told": lambda y: torch.where(y.isnan(), 0, y.abs()).to(torch.int32),
    "by way of float16": lambda y: y.to(f16).float().round().to(torch.int8),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_near_zero_is_not_told_from_it(name: str) -> None:
    found = ops(transformed(by(CLAMPED, ROUNDED[name]), f32))
    assert found.count(CORRECTED) == found.count(INVERSE) == 2 and not {"truediv", "div_rn"} & set(found)


ZEROS = {
    "rounded": (lambda z: z.round(), 4),
    "an integer": (lambda z: z.to(torch.uint8), 4),
    "rounded down": (lambda z: z.floor().clamp(0, 255), 2),  # what is near zero is told from it
    "any number": (lambda z: z, 2),
    "clamped to any number": (lambda z: z.round().clamp(min=0.1), 2),
}


@pytest.mark.parametrize("name", ZEROS)
def test_zero_points(name: str) -> None:
    """Elements are corrected beside whole numbers. A zero point is a quotient of its block by the divisor of
    the elements, and has their reciprocal."""
    whole, corrected = ZEROS[name]

    def one(blocks: Any, dim: int) -> Any:
        scale = blocks.abs().amax(dim, keepdim=True).clamp(min=1e-6)
        zero = whole(-blocks.amin(dim, keepdim=True) / scale)
        return (torch.round(blocks / scale) + zero).to(torch.int8)

    found = ops(transformed(mixed_order(one), f32))
    assert (found.count(CORRECTED), found.count("div_rn")) == (corrected, 4 - corrected)


def test_bfloat16_of_a_scale_of_any_range_needs_no_correction() -> None:
    found = ops(transformed(by(lambda m: m / 127, ROUNDED["rounded"])))
    assert found.count(INVERSE) == 2 and not {CORRECTED, "truediv", "div_rn"} & set(found)


OTHERS = {
    "a result has all bits": lambda y: y,
    "or the range of float32": lambda y: y.to(bf16),
    "or many": lambda y: y.to(f16),
    "a result is used elsewhere": lambda y: (y.to(F8), y),
    "a number is computed from it": lambda y: (448 * y).to(F8),
    "infinity is told": lambda y: torch.where(y == float("inf"), 1.0, y).to(F8),
    "its truth": lambda y: y.to(torch.bool),
    "its sign": lambda y: (y > 0).to(torch.int8),
    "a small number is added": lambda y: (y + 1e-6).floor().to(torch.int8),
    "a number is added in float64": lambda y: (y.double() - 1).floor().to(torch.int8),
    "zero is added": lambda y: (y + 0.0).floor().to(torch.int8),
    "the next whole number below": lambda y: y.floor().to(torch.int8),
    "a huge number is told": lambda y: (y > 1e38).to(torch.int8),
    "a rounded number is stored": lambda y: y.round(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_quotients_are_divided(name: str) -> None:
    found = ops(transformed(by(CLAMPED, OTHERS[name]), f32))
    assert found.count("div_rn") == 2 and not {"truediv", INVERSE, CORRECTED} & set(found)


def corrected(a: Array, s: Array) -> Array:
    """What the kernel has, with a reciprocal that is rounded to the nearest."""
    divisor = torch.from_numpy(s)
    found = FUNCTIONS[CORRECTED].meaning(torch.from_numpy(a), divisor, FUNCTIONS[INVERSE].meaning(divisor))
    assert found.dtype == torch.float32
    return found.numpy()


def quotient(a: Array, s: Array) -> Array:
    with np.errstate(all="ignore"):
        return a / s


def halves(dtype: torch.dtype) -> Array:
    """All numbers of a half precision, infinities, NaN and both zeros."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).float().numpy()


def float8(values: Array) -> Array:
    """As a GPU casts, and the interpreter: what is out of range becomes the largest number."""
    cast = torch.from_numpy(np.array(values)).clamp(-448, 448).to(F8).view(torch.uint8).numpy()
    return np.where(np.isnan(values), 127, cast)  # one NaN is as good as another


def divisors(count: int, least: int, most: int) -> Array:
    """Random float32 from 2**least to 2**most, and numbers at the ends of their mantissas."""
    generator = np.random.default_rng(0)
    mantissas = generator.integers(0, 2**23, count)
    mantissas[:8] = [0, 1, 2, 2**22, 2**22 + 1, 2**23 - 1, 2**23 - 2, 3]
    exponents = generator.integers(least, most, count)
    return ((1 + mantissas / 2**23) * 2.0**exponents).astype("float32")


SPECIAL = np.array([np.inf, np.nan], dtype="float32")


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_all_numbers_of_half_precision_by_many_divisors(dtype: torch.dtype) -> None:
    a = halves(dtype)
    for s in np.append(divisors(60, -60, 126), SPECIAL):
        s = np.full(1, s)
        ours, eager = corrected(a, s), quotient(a, s)
        assert (float8(ours) == float8(eager)).all(), s
        normal = (np.abs(a) >= 2.0**-102) & np.isfinite(eager) & (np.abs(eager) >= 2.0**-126)
        assert (ours == eager)[normal].all() and (not np.isfinite(s) or normal.sum() > 1000), s


def test_a_scale_of_zero_in_half_precision() -> None:
    """As a division has it: infinite, or NaN for zero."""
    a, zero = halves(f16), np.zeros(1, dtype="float32")
    assert np.array_equal(corrected(a, zero), quotient(a, zero), equal_nan=True)


def near_middles(s: int) -> Array:
    """The dividends of 24 bits whose quotient by `s`, of 24 bits, is next to the middle of two float32."""
    found = []
    for shift in (24, 25):
        for off in (off for off in range(-4, 5) if off):
            twos = (s & -s).bit_length() - 1
            if off % (1 << twos):
                continue
            modulus = 1 << (shift - twos)
            first = -(off >> twos) * pow(s >> twos, -1, modulus) % modulus
            for middle in range(first, 1 << 25, modulus):
                a = (s * middle + off) >> shift
                if middle >= 1 << 24 and middle % 2 and 1 << 23 <= a < 1 << 24:
                    found.append(a)
    return np.array(found, dtype="float32")


def test_quotients_next_to_a_middle_are_rounded_as_a_division_is() -> None:
    generator = np.random.default_rng(1)
    mantissas = [
        *generator.integers(2**23, 2**24, 500),
        *range(2**24 - 99, 2**24),
        *range(2**23, 2**23 + 99),
    ]
    tried = 0
    for mantissa in map(int, mantissas):
        a, s = near_middles(mantissa), np.full(1, mantissa, dtype="float32")
        tried += len(a)
        assert (corrected(a, s) == quotient(a, s)).all(), mantissa
    assert tried > 1000
