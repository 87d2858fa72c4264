"""Upstream's open issues about wrong numbers and crashes, by number: what mixorder computes in their
place. `tests/upstream.py` says what goes wrong there."""

from __future__ import annotations

import pytest
import torch
from graphs import f32, snapshot, traced
from running import ON, compiled, run_fused
from support.case import Example, found_in, relative_errors
from support.compilers import multiprocessors
from torch._dynamo.utils import counters
from torch._inductor import config
from upstream import LEFT, WOUNDS, masked, sums

from mixorder import pipeline
from mixorder.report import RegionRecord, collect

# Two are wrong for sizes that no interpreter runs (tests/inductor/test_mix_order.py), and the bias of a
# convolution is a sum on a GPU alone.
NOT_HERE = ("195845 product", "integers", "190796")
ALL = {name: wound for name, wound in (WOUNDS | LEFT).items() if name not in NOT_HERE}
CHECKED = ("195845", "195845 amax", "193061", "190796 bias apart", "186241", "186370")


@pytest.mark.parametrize("name", ALL)
def test_the_reproduction_is_right(name: str, poisoned: list[int]) -> None:
    """At its small size, against float64. What upstream never writes starts as NaN here."""
    wound = ALL[name]
    shape = wound.case.shapes.small
    example = Example(wound.case, shape, wound.dtype)
    with config.patch(wound.options), collect() as records:
        results = example.step(compiled(ON, fullgraph=True))()
    if name in CHECKED:
        assert found_in(records) == wound.case.expected(shape, 0, "cpu")
    fused = [record for record in records if isinstance(record, RegionRecord)]
    assert fused and poisoned
    errors = relative_errors(results, example.exact(lambda function: function))
    assert max(errors) < wound.most, errors
    if name == "195845":  # a tile has one row of 129 columns, which are padded to 256
        assert fused[0].schedule.lanes > fused[0].space.cols
    if name == "186241":  # programs have several tiles, and load by pointers whatever is set
        assert fused[0].schedule.splits * fused[0].schedule.tile_rows < int(fused[0].space.rows)
        assert not any("descriptor" in kernel.text for kernel in fused[0].kernels)


@pytest.mark.parametrize(("rows", "cols"), [(1, 129), (2, 120), (3, 129), (33, 120), (37, 120)])
def test_195845_at_every_distance_from_a_full_tile(rows: int, cols: int) -> None:
    """In float32: a single lane too many would be seen. Tiles of 120 columns have several rows."""
    x = torch.randn(rows, cols)
    with multiprocessors(1), collect() as records:
        _, column = run_fused(masked(lambda y: y.amax(-1)), (x,))
    torch.testing.assert_close(column.double(), (x.double() * 2 + 0.25).sum(0), atol=1e-4, rtol=1e-5)
    (record,) = [record for record in records if isinstance(record, RegionRecord)]
    if rows in (33, 37):
        assert record.schedule.tile_rows > 1 and rows % record.schedule.tile_rows


def test_186370_rows_and_columns_of_a_square() -> None:
    """Axes are told apart by what they are, not by their lengths: the sums are not exchanged. Two sums along
    the same axis are no pair, also where one reads a transposed tensor."""
    x = torch.randn(33, 33) + torch.arange(33)[:, None]
    for mine, right in zip(run_fused(sums, (x,)), sums(x), strict=True):
        torch.testing.assert_close(mine, right, atol=1e-4, rtol=1e-5)
    counters["mixorder"].clear()
    graph = traced(lambda x, y: (x.sum(1), (x * y.t()).sum(1)), ((33, 33), f32), ((33, 33), f32))
    before = snapshot(graph)
    pipeline.run(graph, ON)
    assert snapshot(graph) == before and not counters["mixorder"]
