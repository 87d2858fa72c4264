"""Tensors of rows of which a few are computed apart from the others, such as that of the class token."""

from __future__ import annotations

from typing import Any

import torch
from graphs import bf16, f32, traced

from mixorder import pipeline
from mixorder.options import Options
from mixorder.report import RegionRecord
from mixorder.schedule.device import MEASURED as H200

BATCH, TOKENS, COLS = 64, 577, 1024
FULL, ONE, WEIGHT = ((BATCH, TOKENS, COLS), bf16), ((BATCH, 1, COLS), bf16), ((COLS,), f32)


def fused(function: Any, *specs: Any) -> list[RegionRecord]:
    graph = traced(lambda *tensors: function(*tensors), *specs)
    return pipeline.run(graph, Options(interpret=True, strict=True), pipeline.Setting(H200))


def test_a_sum_over_all_tokens_is_one_sum() -> None:
    """The gradient of the mean over all tokens but one, added to a norm's: its pieces along the rows are not
    summed apart, as their sums would be more kernels."""

    def function(dx: Any, dy: Any, x: Any, w: Any, mean: Any) -> Any:
        mean = (mean[:, None] / (TOKENS - 1)).expand(BATCH, TOKENS - 1, COLS)
        upstream = dx.slice_scatter(mean.to(bf16), 1, 1)
        scaled = dy.float() * w
        product = scaled * x
        total = upstream + (scaled - x * product.sum(-1, keepdim=True)).to(bf16)
        return total, (dy.float() * x).sum((0, 1)), total.sum((0, 1))

    pooled = ((BATCH, COLS), f32)
    (record,) = fused(function, FULL, FULL, ((BATCH, TOKENS, COLS), f32), WEIGHT, pooled)
    assert (len(record.inner), len(record.outer)) == (1, 2)


def test_a_sum_and_the_tensor_that_it_is_of_are_one_region() -> None:
    """A bias gradient behind three tensors that are put together: to leave these to Inductor is not for
    nothing, as it would write what the region then reads."""

    def function(q: Any, k: Any, v: Any) -> Any:
        joined = torch.cat([q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)], 2)
        return joined, joined.reshape(-1, 576).sum(0)

    head = ((1024, 2, 64, 96), bf16)
    (record,) = fused(function, head, head, head)
    read, written = 3 * 1024 * 2 * 64 * 96 * 2, 1024 * 64 * 576 * 2
    assert record.traffic.read == read and record.traffic.written >= written


def heavy(g: Any, x: Any, w: Any) -> Any:
    """A gradient of one token, of much more than memory."""
    for _ in range(4):
        g = (g.float() * w - x.float() * 0.25).to(bf16)
    return g


def test_a_small_piece_is_computed_outside() -> None:
    """It is read instead of computed for each element of all rows, of which it is in one of 577."""

    def function(g: Any, x: Any, w: Any, patches: Any) -> Any:
        first = heavy(g[:, :1], x[:, :1], w)
        joined = torch.cat([first, patches], 1)
        return joined, joined.sum((0, 1))

    patches = ((BATCH, TOKENS - 1, COLS), bf16)
    (record,) = fused(function, FULL, FULL, WEIGHT, patches)
    elements = BATCH * TOKENS * COLS
    assert record.traffic.read == 2 * elements  # the piece and the patches, and nothing of g and x
    assert record.expected.ours_us < 1.25 * record.expected.limit_us
