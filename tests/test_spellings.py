"""The same mathematics is the same plan: programs of thirty bases, each operation in one of its spellings.

A spelling is drawn operation by operation; the first of each list is the base's own. hypothesis shrinks a
program that gets another plan to the one spelling that matters. `MIXORDER_SPELLINGS=400` draws so many, fresh
ones; the test command draws a few that are always the same.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from support.spellings import NAMES, PAIRS, SPELLINGS, TRAINED, spelled

import mixorder

COUNT = int(os.environ.get("MIXORDER_SPELLINGS", "0"))
SAME_TIME = 0.07
ONE_SUM = {"dynamic_tanh", "layer_scale"}  # beside loops: Inductor's kernels are as fast
ROUNDING = {"by root", "over", "silu", "gelu", "softmax"}  # some spellings round elements otherwise


def planned(name: str, chosen: Mapping[str, int]) -> tuple[list[tuple[int, str]], float]:
    """Rows and strategy of each region, and what the regions take, in us."""
    torch._dynamo.reset()
    model, inputs = spelled(name, chosen)
    with torch.set_grad_enabled(name in TRAINED):
        report = mixorder.explain(model, options={"mixorder_strict": True})(**inputs)
    found = sorted((r.space.rows * r.space.cols, r.strategy) for r in report.regions)
    return found, report.totals.fused_us


@functools.cache
def first(name: str) -> tuple[list[tuple[int, str]], float]:
    return planned(name, {})


@pytest.mark.parametrize("name", sorted((TRAINED | PAIRS).keys() - ONE_SUM))
def test_a_base_is_fused(name: str) -> None:
    regions, _ = first(name)
    assert regions


@settings(max_examples=COUNT or 12, derandomize=not COUNT, deadline=None)
@given(
    st.sampled_from(sorted(TRAINED | PAIRS)),
    st.fixed_dictionaries({n: st.integers(0, SPELLINGS - 1) for n in NAMES if n not in ROUNDING}),
)
def test_another_spelling_has_the_plan_of_its_base(name: str, chosen: dict[str, int]) -> None:
    """An operation has one spelling in a program, so that a failure names it."""
    regions, us = planned(name, chosen)
    expected, expected_us = first(name)
    note(f"{regions} {us:.1f} us; base: {expected} {expected_us:.1f} us")
    assert [size for size, _ in regions] == [size for size, _ in expected]
    assert us == pytest.approx(expected_us, rel=SAME_TIME)
