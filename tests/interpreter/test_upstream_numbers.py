"""Upstream's open issues about wrong numbers and crashes, by number: what mixorder computes in their
place."""

from __future__ import annotations

import pytest
import torch
from graphs import f32, snapshot, traced
from running import ON, Counting, close_to_exact, compiled, run_fused
from support.case import Example, found_in, relative_errors
from support.compilers import multiprocessors
from torch._dynamo.utils import counters
from torch._inductor import config
from upstream import LEFT, WOUNDS, WithToken, masked, sums

from mixorder import pipeline
from mixorder.report import RegionRecord, collect


def check(name: str) -> list[RegionRecord]:
    """The reproduction at its small size: fused as it should be, and right against float64. The records."""
    wound = WOUNDS[name]
    shape = wound.case.shapes.small
    example = Example(wound.case, shape, wound.dtype)
    with collect() as records:
        results = example.step(compiled(ON, fullgraph=True))()
    assert found_in(records) == wound.case.expected(shape, 0, "cpu")
    errors = relative_errors(results, example.exact(lambda function: function))
    assert max(errors) < wound.most, errors
    return [record for record in records if isinstance(record, RegionRecord)]


@pytest.mark.parametrize("name", ["195845", "195845 amax"])
def test_195845_padded_lanes_are_not_added(name: str) -> None:
    """Upstream: column sums are off by 0.75. Rows that are not there are loaded as 0, the prologue `x * 2
    + 0.25` makes 0.25 of each, and the sum over rows takes them in. Here the exact issue, with the values of
    `max`, is fused, as with `amax`. A tile has one row of 129 columns, which are padded to 256."""
    (record,) = check(name)
    assert record.schedule.lanes > record.space.cols


@pytest.mark.parametrize("cols", [120, 129])
@pytest.mark.parametrize("rows", [1, 2, 3, 33, 37])
def test_195845_at_every_distance_from_a_full_tile(rows: int, cols: int) -> None:
    """As above, in float32: a single lane too many would be seen. Tiles of 120 columns have several rows."""
    x = torch.randn(rows, cols)
    with multiprocessors(1), collect() as records:
        _, column = run_fused(masked(lambda y: y.amax(-1)), (x,))
    torch.testing.assert_close(column.double(), (x.double() * 2 + 0.25).sum(0), atol=1e-4, rtol=1e-5)
    (record,) = [record for record in records if isinstance(record, RegionRecord)]
    if cols == 120 and rows in (33, 37):
        assert record.schedule.tile_rows > 1 and rows % record.schedule.tile_rows


def test_193061_gradients_of_all_chunks_are_written(poisoned: list[int]) -> None:
    """Upstream: of two norms whose scales and shifts are chunks of one parameter, the second one's
    gradients are never written: the buffer has what lay there before. Here every buffer starts as NaN."""
    check("193061")
    assert poisoned


def test_190796_the_bias_gradient_of_a_convolution(poisoned: list[int]) -> None:
    """Upstream: the gradient of a convolution's bias is garbage, often NaN, where the output also gets a
    value per image and channel: the sum over images and pixels reads a workspace that is not written. Here
    it is a common axis, in one kernel with the sum over pixels, and the workspace starts as NaN."""
    check("190796 bias apart")
    assert poisoned


def test_186241_every_tile_is_read_once() -> None:
    """Upstream: with tensor descriptors the offset of a tile is not advanced in the loop: a program reads
    and writes its first tile over and over. Here programs have several tiles, each row is right, and
    kernels load by pointers whatever is set."""
    with config.patch(WOUNDS["186241"].options):
        (record,) = check("186241")
    assert record.schedule.splits * record.schedule.tile_rows < int(record.space.rows)
    assert not any("descriptor" in kernel.text for kernel in record.kernels)


def test_186426_rows_that_are_a_sum_of_symbols() -> None:
    """Upstream: with symbolic sizes the compile ends in `CantSplit`: s * a + s rows are not seen to be a
    multiple of s. Reconstructed: a vision transformer's token. Here one compile serves every size."""
    module, counting, first = WithToken(16), Counting(), 0
    torch._dynamo.reset()
    function = torch.compile(module, backend=counting, dynamic=True)
    with collect() as records:
        for batch, tokens in ((3, 5), (4, 9), (2, 40)):
            close_to_exact(function, module, (torch.randn(batch, tokens, 16),))
            first = first or counting.compiles
    assert counting.compiles == first
    assert records and all(isinstance(r, RegionRecord) and str(r.space.rows).count("s") >= 2 for r in records)


def test_186370_rows_and_columns_of_a_square() -> None:
    """Upstream: a pair over a square is not fused, since its two sums have equal sizes. Here axes are told
    apart by what they are, not by their lengths: the sums are not exchanged."""
    check("186370")
    x = torch.randn(33, 33) + torch.arange(33)[:, None]
    for mine, right in zip(run_fused(sums, (x,)), sums(x), strict=True):
        torch.testing.assert_close(mine, right, atol=1e-4, rtol=1e-5)


def test_186370_two_sums_along_the_same_axis_of_a_square() -> None:
    """What upstream's first fix took for a pair: both sums run along rows, one also reads a transposed
    tensor."""
    square = ((33, 33), f32)
    graph = traced(lambda x, y: (x.sum(1), (x * y.t()).sum(1)), square, square)
    before = snapshot(graph)
    pipeline.run(graph, ON)
    assert snapshot(graph) == before and not counters["mixorder"]


OTHERS = {name: WOUNDS[name] for name in ("185814", "185534", "196581", "179423", "175250")}
FUSED = {name: wound for name, wound in LEFT.items() if name not in ("195845 product", "integers")}


@pytest.mark.parametrize("name", [*OTHERS, *FUSED])
def test_the_others_are_right(name: str) -> None:
    """Upstream these are slow, do not compile (tests/test_upstream.py), or are wrong for sizes that an
    interpreter does not run (tests/inductor/test_mix_order.py): the numbers of the same functions."""
    wound = (OTHERS | FUSED)[name]
    example = Example(wound.case, wound.case.shapes.small, wound.dtype)
    with collect() as records:
        results = example.step(compiled(ON, fullgraph=True))()
    assert any(isinstance(record, RegionRecord) for record in records)
    assert max(relative_errors(results, example.exact(lambda function: function))) < wound.most
