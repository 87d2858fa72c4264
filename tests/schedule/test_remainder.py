"""The time of the remainder, which a smaller region leaves to Inductor: of a table, and of a large tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32, traced

from mixorder.errors import DeclineReason
from mixorder.options import Options
from mixorder.region.grow import grow
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.facts import PRICES
from mixorder.schedule.kernel_time import TIMES
from mixorder.schedule.remainder import remainder_us


def rotated(dy: Any, sin: Any, cos: Any) -> Any:
    """The gradient of a rotary embedding of a quarter of a head."""
    rotary, plain = dy[..., :24].float(), dy[..., 24:]
    spread = (rotary * sin).to(bf16)
    swapped = torch.cat([spread[..., 12:], -spread[..., :12]], -1)
    return torch.cat([swapped + (rotary * cos).to(bf16), plain], -1)


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
    decline = graphs.declined(graph, min_numel=Options.min_numel)
    assert decline.reason is DeclineReason.SLOWER
    assert "what they need to be written" in decline.detail
    assert graphs.snapshot(graph) == before


def left_us(reader: Callable[[Any], Any]) -> float:
    """Of the sines that a pair reads and `reader` reads as well, (8, 2048, 2048) in float32."""

    def function(x: Any, dy: Any, position: Any, step: Any) -> Any:
        sines = (position[:, None] * step).sin()
        return *graphs.pair(x + sines, dy), reader(sines)

    full = ((16384, 2048), bf16)
    graph = traced(function, full, full, ((16384,), f32), ((2048,), f32))
    (region,) = graphs.find(graph)
    (sines,) = (n for n in region.nodes if n.target is torch.ops.aten.sin.default)
    subregion = grow(region.seed.less({sines}), region.name)
    assert sines in subregion.inputs
    return remainder_us(region, subregion, H200)


def test_loops_of_the_remainder_compute_what_they_write() -> None:
    elements = 16384 * 2048
    computing = elements * PRICES["sin"] / (TIMES.instructions_sm_us * H200.num_sm)
    writing = 4 * elements / 1e6 / (TIMES.memory_mb_us * TIMES.share["pointwise"])
    by_hand = TIMES.launch_us + TIMES.kernel_us + TIMES.joined([computing, writing])
    assert left_us(lambda sines: sines.sum()) == pytest.approx(by_hand, rel=0.1)  # L2 and positions are less


def test_what_is_in_memory_for_another_operator_is_written_anyway() -> None:
    assert left_us(lambda sines: sines @ sines.new_ones(2048, 8)) == 0
    assert left_us(lambda sines: sines * 2) == left_us(lambda sines: sines.exp()) > 0
