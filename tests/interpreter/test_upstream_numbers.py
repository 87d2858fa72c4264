"""Upstream's open issues about wrong numbers and crashes, by number: what mixorder computes in their
place. `tests/upstream.py` says what goes wrong there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import f32, snapshot, traced
from running import ON, compiled, run_fused
from support.case import Example, found_in, relative_errors
from support.compilers import multiprocessors
from table import run
from tables.symbolic import any_rows
from torch._dynamo.utils import counters
from torch._inductor import config
from upstream import LEFT, WOUNDS, WithToken, masked, sums

from mixorder import pipeline
from mixorder.report import RegionRecord, collect


def check(name: str, **options: Any) -> list[RegionRecord]:
    """The reproduction at its small size, against float64. The records of its regions."""
    wound = (WOUNDS | LEFT)[name]
    shape = wound.case.shapes.small
    example = Example(wound.case, shape, wound.dtype)
    with config.patch(options), collect() as records:
        results = example.step(compiled(ON, fullgraph=True))()
    assert name not in WOUNDS or name in OTHERS or found_in(records) == wound.case.expected(shape, 0, "cpu")
    errors = relative_errors(results, example.exact(lambda function: function))
    assert max(errors) < wound.most, errors
    return [record for record in records if isinstance(record, RegionRecord)]


@pytest.mark.parametrize("name", ["195845", "195845 amax"])
def test_195845_padded_lanes_are_not_added(name: str) -> None:
    """A tile has one row of 129 columns, which are padded to 256."""
    (record,) = check(name)
    assert record.schedule.lanes > record.space.cols


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


def test_193061_gradients_of_all_chunks_are_written(poisoned: list[int]) -> None:
    """What upstream never writes starts as NaN here."""
    assert check("193061") and poisoned


def test_190796_the_bias_gradient_of_a_convolution(poisoned: list[int]) -> None:
    assert check("190796 bias apart") and poisoned


def test_186241_every_tile_is_read_once() -> None:
    """Programs have several tiles, and load by pointers whatever is set."""
    (record,) = check("186241", **WOUNDS["186241"].options)
    assert record.schedule.splits * record.schedule.tile_rows < int(record.space.rows)
    assert not any("descriptor" in kernel.text for kernel in record.kernels)


def test_186426_rows_that_are_a_sum_of_symbols() -> None:
    """A learnable token before the others: s * a + s rows. One compile serves every size."""
    run(any_rows(lambda: WithToken(16), 3, shapes=((3, 5, 16),), dims=((0, 1),), more=(0, 2, 7)))


def test_186370_rows_and_columns_of_a_square() -> None:
    """Axes are told apart by what they are, not by their lengths: the sums are not exchanged. Two sums along
    the same axis are no pair, also where one reads a transposed tensor."""
    check("186370")
    x = torch.randn(33, 33) + torch.arange(33)[:, None]
    for mine, right in zip(run_fused(sums, (x,)), sums(x), strict=True):
        torch.testing.assert_close(mine, right, atol=1e-4, rtol=1e-5)
    counters["mixorder"].clear()
    graph = traced(lambda x, y: (x.sum(1), (x * y.t()).sum(1)), ((33, 33), f32), ((33, 33), f32))
    before = snapshot(graph)
    pipeline.run(graph, ON)
    assert snapshot(graph) == before and not counters["mixorder"]


OTHERS = ("185814", "185534", "196581", "179423", "175250")
FUSED = [name for name in LEFT if name not in ("195845 product", "integers")]


@pytest.mark.parametrize("name", [*OTHERS, *FUSED])
def test_the_others_are_right(name: str) -> None:
    """Upstream these are slow, do not compile (tests/test_upstream.py), or are wrong for sizes that an
    interpreter does not run (tests/inductor/test_mix_order.py)."""
    assert check(name)
