"""The time of what a smaller region leaves to Inductor: by hand, for a table and for a large tensor."""

from __future__ import annotations

from typing import Any

import graphs
import torch
from graphs import bf16, f32, traced

from mixorder import pipeline
from mixorder.errors import Decline, DeclineReason
from mixorder.options import Options
from mixorder.report import collect


def rotated(dy: Any, sin: Any, cos: Any) -> Any:
    """The gradient of a rotary embedding of a quarter of a head."""
    turned, plain = dy[..., :24].float(), dy[..., 24:]
    spread = (turned * sin).to(bf16)
    swapped = torch.cat([spread[..., 12:], -spread[..., :12]], -1)
    return torch.cat([swapped + (turned * cos).to(bf16), plain], -1)


def test_pieces_that_only_a_region_would_have_written() -> None:
    """The bias gradient of queries, keys and values behind a rotary embedding: Inductor computes the
    embedding where it puts the three together. H200, torch 2.11, GPT-NeoX: 492 us, 524 us with a region."""

    def function(q: Any, k: Any, v: Any, angle: Any) -> Any:
        sin, cos = angle.sin(), angle.cos()
        parts = torch.cat([rotated(q, sin, cos), rotated(k, sin, cos), v], 3)
        joined = parts.permute(0, 2, 1, 3).reshape(16384, 18432)
        return joined, joined.sum(0)

    head = ((8, 64, 2048, 96), bf16)
    graph = traced(function, head, head, head, ((2048, 24), f32))
    before = graphs.snapshot(graph)
    with collect() as records:
        pipeline.run(graph, Options(enabled=True, strict=True, interpret=True))
    (decline,) = records
    assert isinstance(decline, Decline) and decline.reason is DeclineReason.SLOWER
    assert "what they need to be written" in decline.detail
    assert graphs.snapshot(graph) == before
