"""Which values are numbers in half precision, and what partial results are stored in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f16, f32, only, traced

from mixorder.ir.dtypes import short_dtype
from mixorder.ir.program import BufferRole, LoopProgram
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.transform.cooperative import cut_into_phases
from mixorder.transform.half_precision import with_float32_partials
from mixorder.transform.reorder import merge, reorder
from mixorder.transform.split import split_outer

ROWS, COLS = 512, 256


def split(largest: Callable[..., Any], *dtypes: torch.dtype) -> LoopProgram:
    """A maximum over rows beside the same over columns, with its partial results."""

    def function(*tensors: Any) -> Any:
        value = largest(*tensors)
        return value.amax(1), value.amax(0)

    program = lower(only(traced(function, *(((ROWS, COLS), dtype) for dtype in dtypes))))
    return verify(split_outer(program), Form.SPLIT)


def partials(program: LoopProgram) -> list[str]:
    return [short_dtype(b.dtype) for b in program.role(BufferRole.WORKSPACE)]


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.dtype, ...], str]] = {
    "magnitudes": (lambda x: x.abs(), (bf16,), "bf16"),
    "magnitudes of float16": (lambda x: x.abs(), (f16,), "f16"),
    "a product, which is not rounded": (lambda x: x * 1.5, (bf16,), "f32"),
    "the larger of two": (lambda x, y: torch.maximum(x, -y), (bf16, bf16), "bf16"),
    "one of two": (lambda x, y: torch.where(x > 0, x, y), (bf16, bf16), "bf16"),
    "a sum": (lambda x: x.float() + 1, (bf16,), "f32"),
    "of two kinds": (lambda x, y: torch.maximum(x.float(), y.float()), (bf16, f16), "f32"),
    "float32": (lambda x: x.abs(), (f32,), "f32"),
}


@pytest.mark.parametrize("case", CASES)
def test_partial_maxima(case: str) -> None:
    largest, dtypes, expected = CASES[case]
    assert partials(split(largest, *dtypes)) == [expected]


def test_partial_sums_are_in_float32() -> None:
    program = lower(only(traced(lambda x: (x.sum(1), x.sum(0)), ((ROWS, COLS), bf16))))
    assert partials(split_outer(program)) == ["f32"]


def test_few_partials_are_in_float32() -> None:
    program = split(lambda x: x.abs(), bf16)
    assert partials(with_float32_partials(program)) == ["f32"]
    merged = merge(reorder(program))
    assert partials(merged) == ["bf16"] and partials(cut_into_phases(merged)) == ["f32"]
