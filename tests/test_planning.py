"""What a plan's decision is told of its region."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mixorder.planning import _has_few_rows
from mixorder.schedule.device import H200
from mixorder.schedule.facts import Facts


@pytest.mark.parametrize(
    ("rows", "change", "blocked", "few"),
    [
        (64, {}, False, True),
        (H200.num_sm, {}, False, True),
        (H200.num_sm + 1, {}, False, False),
        (64, {"levels": 0}, False, False),  # sums alone
        (64, {"batch": 49}, False, False),
        (64, {}, True, False),  # casts by blocks
    ],
)
def test_norms_of_few_rows(rows: int, change: dict[str, int], blocked: bool, few: bool) -> None:
    facts = Facts(rows, 512, 4, 4, **change)
    plan: Any = SimpleNamespace(loops=SimpleNamespace(blocked=blocked), facts=facts, device=H200)
    assert _has_few_rows(plan) == few
