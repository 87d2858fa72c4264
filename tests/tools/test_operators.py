"""The benchmark of operators: its kernels' texts, and which prices it writes."""

from __future__ import annotations

import ast

import pytest
from lab import operators
from lab.operators import VALUES

from mixorder.schedule.facts import PRICES, UNMEASURED

ENTRIES = {entry.key: entry for entry in operators.entries()}


@pytest.mark.parametrize("key", ENTRIES)
def test_a_kernel_computes_an_operator_of_all_values_or_of_half(key: str) -> None:
    every, half = (operators.text(ENTRIES[key], count) for count in (VALUES, VALUES // 2))
    assert ast.parse(every) and ast.parse(half)
    assert every.count(" = ") - half.count(" = ") >= VALUES // 2 and every.count("total +=") == VALUES


def test_every_price_is_one_that_is_measured() -> None:
    assert PRICES.keys() - UNMEASURED.keys() <= ENTRIES.keys()


def test_a_price_stays_where_it_is_near_enough_and_a_few_instructions_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operators, "PRICES", {"exp": 12, "sin": 40, "pow": 80, "sqrt": 12})
    found = {"exp": 13.1, "sin": 36.5, "pow": 107.4, "sqrt": 4.6, "maximum": 4.2, "rsqrt": 7.6}
    assert operators.kept(found) == {"exp": 12, "pow": 107, "rsqrt": 8, "sin": 40, "sqrt": 5}
