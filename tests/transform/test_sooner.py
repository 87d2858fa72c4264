"""Which of a tile's statements come before its first reduction."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import bf16, lowered_tile
from support import quantised
from support.quantised import RECIPES

from mixorder.ir.program import LoopProgram, Reduce, Statement
from mixorder.ir.verify import Form, verify
from mixorder.transform.same_bits import same_bits_sooner
from mixorder.transform.sooner import compute_sooner

ROUNDED = "rounded_to_bfloat16"


def program_of(function: Any, count: int = 3) -> LoopProgram:
    return same_bits_sooner(lowered_tile(function, *[((256, 512), bf16)] * count), True, True)


def before_the_first_reduction(program: LoopProgram) -> tuple[Statement, ...]:
    body = program.nests[0].body
    return body[: next(i for i, stmt in enumerate(body) if isinstance(stmt, Reduce))]


def rounded(statements: tuple[Statement, ...]) -> int:
    return sum(getattr(stmt, "op", "") == ROUNDED for stmt in statements)


def test_both_results_are_computed_before_either_is_reduced() -> None:
    program = program_of(RECIPES["swiglu_backward"].function)
    assert rounded(before_the_first_reduction(program)) == 1
    sooner = verify(compute_sooner(program), Form.BLOCKED)
    assert rounded(before_the_first_reduction(sooner)) == 2
    assert sorted(map(str, sooner.nests[0].body)) == sorted(map(str, program.nests[0].body))


@pytest.mark.parametrize(
    ("function", "count"),
    [(quantised.mx_both, 1), (quantised.gelu_backward, 2)],
)
def test_the_order_stays_where_nothing_is_gained(function: Any, count: int) -> None:
    program = program_of(function, count)
    assert compute_sooner(program) == program
