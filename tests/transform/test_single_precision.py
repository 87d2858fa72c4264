"""Divisions in float32 in place of those in float64 whose quotients are rounded to float32."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from evaluate import computed
from graphs import bf16, f32, lowered_tile, mixed_order

from mixorder.ir.program import Compute, LoopProgram, Reduce, operands
from mixorder.ir.rewriting import rewritten
from mixorder.ir.verify import Form, verify
from mixorder.transform.single_precision import divide_in_float32

f64 = torch.float64


def transformed(factor: Callable[[Any], Any], dtype: torch.dtype = bf16) -> LoopProgram:
    """Mixed-order blocks of 32, each multiplied by a factor of its maximum."""

    function = mixed_order(lambda blocks, dim: blocks * factor(blocks.abs().amax(dim, keepdim=True)))
    program = lowered_tile(function, ((256, 512), dtype))
    return verify(rewritten(program, divide_in_float32), Form.TILE_LOCAL)


def wide(program: LoopProgram) -> list[Compute]:
    return [s for s in program.nests[0].body if isinstance(s, Compute) and s.dtype == f64]


FACTORS = [
    lambda x: (448 / x.double()).float(),
    lambda x: (448 / x.double().clamp(min=1e-12)).float(),
    lambda x: (57344 / x.double().clamp_min(0.25)).float(),
    lambda x: torch.div(torch.full((), 448.0, dtype=f64), x.double().clamp(min=2.0**-126)).float(),
    lambda x: (448 / x.double().clamp(min=1e-300)).float(),
    lambda x: (2.0**100 / x.double().clamp(min=1e-30)).float(),
]
OTHERS = [
    lambda x: (448.1 / x.double()).float(),  # no float32
    lambda x: (3 / x.double()).float(),  # may be subnormal
    lambda x: (448 / (x.double() + 1)).float(),
    lambda x: (448 / x.double().clamp(max=2.0)).float(),
    lambda x: (448 / x.double().clamp(min=-1.0)).float(),
    lambda x: (-448 / x.double()).float(),
    lambda x: (x.double() / 448).float(),
]


@pytest.mark.parametrize("factor", FACTORS)
def test_quotients_that_are_taken(factor: Callable[[Any], Any]) -> None:
    assert not wide(transformed(factor))


@pytest.mark.parametrize("factor", OTHERS)
def test_quotients_that_stay(factor: Callable[[Any], Any]) -> None:
    assert wide(transformed(factor))


def test_a_quotient_that_is_also_stored_in_float64_stays() -> None:
    def function(x: Any) -> Any:
        rows, cols = x.view(256, 16, 32), x.view(8, 32, 512)
        factor = 448 / rows.abs().amax(2, keepdim=True).double()
        return rows * factor.float(), factor, cols * cols.abs().amax(1, keepdim=True)

    program = lowered_tile(function, ((256, 512), bf16))
    assert wide(verify(rewritten(program, divide_in_float32), Form.TILE_LOCAL))


def divisors() -> torch.Tensor:
    """Of every exponent: the numbers next to powers of two, random ones, and what bounds are near."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.arange(0, 255, dtype=torch.int32)[:, None] << 23
    mantissas = torch.cat(
        [
            torch.tensor([0, 1, 2, 2**22, 2**23 - 1], dtype=torch.int32),
            torch.randint(2**23, (4000,), generator=generator, dtype=torch.int32),
        ]
    )
    special = torch.tensor([float("inf"), float("nan"), 1e-12, 0.25, 1e-30], dtype=f32)
    near = torch.cat([special.view(torch.int32) + i for i in range(-2, 3)])
    every = torch.cat([(exponents + mantissas).ravel(), near]).view(f32)
    return torch.cat([every, -every])


@pytest.mark.parametrize("factor", FACTORS)
def test_the_same_bits(factor: Callable[[Any], Any]) -> None:
    """What the statements compute, run with PyTorch, is what eager's float64 gives, bit by bit."""
    body = transformed(factor, f32).nests[0].body
    (first, *_) = (s for s in body if isinstance(s, Reduce))
    values: dict[str, Any] = {first.name: divisors()}
    for stmt in body[body.index(first) + 1 :]:
        if isinstance(stmt, Compute) and values.keys() >= set(operands(stmt)):
            values[stmt.name] = computed(stmt, values)
            if values[stmt.name].ndim and stmt.op != "mul":
                result = values[stmt.name]
    expected = factor(divisors())
    same = (result.view(torch.int32) == expected.view(torch.int32)) | (result.isnan() & expected.isnan())
    assert same.all(), (divisors()[~same][:3], result[~same][:3], expected[~same][:3])


def test_bounds_are_rounded_up() -> None:
    from mixorder.transform.single_precision import _from

    for bound in (1e-12, 0.1, 1 / 3, 2.0**-126, 0.25, 3.4e38):
        found = _from(bound)
        (bits,) = struct.unpack("I", struct.pack("f", found))
        (before,) = struct.unpack("f", struct.pack("I", bits - 1))
        assert before < bound <= found
