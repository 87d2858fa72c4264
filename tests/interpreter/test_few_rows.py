"""Programs that have few rows, whose sums are not compensated, also at sizes where others would do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from checked import check_case
from graphs import f32
from running import OFF, ON, compiled, gradients
from support.cases import CASES
from torch import nn

from mixorder.report import RegionRecord, collect
from mixorder.strategies.persistent import PERSISTENT
from mixorder.strategies.short_sums import SHORT_ROWS, SHORT_SUMS


@pytest.fixture
def few_rows(plan_with: Callable[..., None]) -> None:
    """Every program whose sums would be compensated has few rows instead."""
    plan_with(strategies=(SHORT_SUMS, PERSISTENT))


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("name", ["LayerNorm", "softmax with bias", "cat after", "fp32 residual stream"])
def test_the_family_by_short_sums(name: str) -> None:
    check_case(CASES[name], CASES[name].shapes.small, f32, "cpu", compiled(ON), compiled(OFF))


@pytest.mark.usefixtures("few_rows")
def test_short_sums_are_as_exact_as_compensated_ones_in_another_order() -> None:
    """2200 rows: more than a program for each multiprocessor, and a last one with fewer rows."""
    module, x = nn.LayerNorm(16), torch.randn(2200, 16)
    dy = torch.randn_like(x)
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    (record,) = records
    assert isinstance(record, RegionRecord) and record.strategy == SHORT_SUMS.name
    assert 2200 % record.schedule.splits and "error" not in record.kernels[0].text
    assert -(-2200 // record.schedule.splits) <= SHORT_ROWS
    exact = gradients(module.double(), x.double(), dy.double(), OFF)
    for mine, truth in zip(ours, exact, strict=True):
        assert float((mine.double() - truth).norm() / truth.norm()) < 1.2e-7
