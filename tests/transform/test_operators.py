"""Products contracted with the sums and differences that take them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, lowered_tile
from support import quantised

from mixorder.ir.program import Compute, LoopProgram
from mixorder.ir.verify import Form, verify
from mixorder.transform.operators import contract

FULL = ((256, 512), f32)


def lowered(function: Any, count: int = 3) -> LoopProgram:
    return lowered_tile(lambda *x: quantised.mx_both(function(*x)), *[FULL] * count)


def computed(program: LoopProgram, *ops: str) -> list[Compute]:
    return [s for s in program.nests[0].body if isinstance(s, Compute) and s.op in ops]


@pytest.mark.parametrize(
    ("function", "minus"),
    [
        (lambda x, y, z: x * y + z, None),
        (lambda x, y, z: z + x * y, None),
        (lambda x, y, z: x * y - z, 2),  # of a * b - c, c is negated
        (lambda x, y, z: z - x * y, 0),
        (lambda x, y, z: x * 0.5 + z, None),
    ],
)
def test_a_product_and_a_sum_become_one(function: Any, minus: int | None) -> None:
    program = lowered(function)
    (total,) = [s for s in computed(program, "add", "sub") if s.dtype == f32]
    (product,) = [s for s in computed(program, "mul") if s.name in {a.name for a in total.args}]
    node = total.name.partition(".")[0], product.name.partition(".")[0]
    found = verify(contract(program, dict([node])), Form.TILE_LOCAL)
    (fma,) = computed(found, "fma")
    assert fma.name == total.name and product.name not in {s.name for s in computed(found, "mul")}
    negated = [s.name for s in computed(found, "neg")]
    assert [fma.args.index(a) for a in fma.args if a.name in negated] == ([] if minus is None else [minus])


def test_what_is_not_named_stays() -> None:
    program = lowered(lambda x, y, z: x * y + z)
    assert contract(program, {}) == program
    assert contract(program, {"add": "another"}) == program


def test_a_product_with_another_use_stays() -> None:
    program = lowered(lambda x, y, z: (x * y + z) * (x * y))
    assert not computed(contract(program, {"add": "mul"}), "fma")


def test_float64_stays() -> None:
    wide = [((256, 512), torch.float64)] * 2
    program = lowered_tile(lambda x, y: quantised.mx_both((x.double() * y + x).to(bf16)), *wide)
    assert not computed(contract(program, {"add": "mul"}), "fma")
