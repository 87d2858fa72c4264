"""The text table: its words are explained, and what a step saves, and why bytes rise, is said."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import mixorder
from mixorder.inspection import table
from mixorder.inspection.explanation import Report
from mixorder.inspection.legend import terms

ANY_SIZE = {"mixorder_min_numel": 0, "mixorder_strict": True}


class Heads(nn.Module):
    """A norm with a weight per head: a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.weight = nn.Linear(256, 256), nn.Parameter(torch.ones(4, 64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(x).view(-1, 4, 64)
        return nn.functional.rms_norm(y, (64,)) * self.weight


@pytest.fixture(scope="module")
def report() -> Report:
    model = nn.Sequential(Heads(), nn.Flatten(), nn.LayerNorm(256))
    return mixorder.explain(model, options=ANY_SIZE)(torch.randn(300, 256, requires_grad=True))


@pytest.fixture(scope="module")
def shared() -> Report:
    """Rows that several programs share."""
    with torch.device("meta"):
        return mixorder.explain(nn.RMSNorm(65536))(torch.randn(64, 65536, requires_grad=True))


def test_every_column_is_explained_and_every_term_that_occurs(report: Report, shared: Report) -> None:
    listed = dict(terms(report.regions))
    explained = {word for term in listed for word in term.split(", ")}
    assert set(table.HEADER) <= explained
    for region in (*report.regions, *shared.regions):
        said = dict(terms([region]))["strategy"]
        assert f" {region.strategy.partition(', ')[0]}: " in said
    assert shared.regions[0].strategy.startswith("cooperative, ") and "programs to 2 rows" in said
    assert any("batch 4" in region.space for region in report.regions), [r.space for r in report.regions]
    assert "batch: none reduces it" in listed["rows x cols"] and "common" not in listed["rows x cols"]
    assert all(len(line) <= table.WIDTH for line in str(report).split("  region   ")[-1].splitlines())


def test_totals_say_what_a_step_saves(report: Report) -> None:
    saved = sum(r.expected.apart_us - r.expected.fused_us for r in report.regions)
    assert report.totals.saved_us == pytest.approx(saved)
    assert saved > table.SHOWN_US and f"{table.step_of(saved)} `python -m mixorder" in str(report)


@pytest.mark.parametrize(
    ("saved_us", "said"),
    [
        (354.6, "a step takes 0.355 ms less."),
        (3.54, "a step takes 3.5 us less."),
        (0.04, "a step takes as long as without mixorder."),
        (-0.04, "a step takes as long as without mixorder."),
        (-1.0, "a step takes 1.0 us more. mixorder_min_numel is 0, so regions are fused all the same."),
    ],
)
def test_no_saving_is_printed_as_zero_or_less(saved_us: float, said: str) -> None:
    assert table.step_of(saved_us) == f"Predicted: {said}"


def test_a_region_that_moves_more_bytes_says_why(report: Report) -> None:
    region = report.regions[0]
    assert table.rises([region]) == [] or region.traffic.saved < 0
    little = dataclasses.replace(region.traffic, apart=region.traffic.total - int(table.SHOWN_BYTES) + 1)
    assert little.saved < 0 and table.rises([dataclasses.replace(region, traffic=little)]) == []
    more = dataclasses.replace(
        region.traffic, workspace=3_000_000, copied=2_000_000, copies=1, apart=region.traffic.read
    )
    (said,) = table.rises([dataclasses.replace(region, traffic=more)])
    assert f"Region 0 moves {-more.saved / 1e6:.1f} MB more than without mixorder: 6.0 MB for" in said
    assert "4.0 MB to copy 1 of its tensors into another layout" in said
    slow = dataclasses.replace(region.expected, fused_us=9.0, apart_us=5.0)
    (said,) = table.rises([dataclasses.replace(region, traffic=more, expected=slow)])
    assert said.endswith("It is fused because mixorder_min_numel is 0.")
