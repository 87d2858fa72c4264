"""The time of what a smaller region leaves to Inductor: by hand, for a table and for a large tensor."""

from __future__ import annotations

from typing import Any

import graphs
import torch
from graphs import bf16, f32, only, traced
from torch.fx import Graph

from mixorder import pipeline
from mixorder.errors import Decline, DeclineReason
from mixorder.options import Options
from mixorder.region.find import find_regions
from mixorder.region.partition import lighter
from mixorder.region.region import Region
from mixorder.report import collect
from mixorder.schedule.device import H200
from mixorder.schedule.kernel_time import TIMES, Kind
from mixorder.schedule.outside import outside_us
from mixorder.schedule.work import Work

TABLE, SPACE = (64, 256), (32, 64, 256)


def spread(used: bool) -> Graph:
    """A pair that computes cosines of a table; `used`: they are also a result."""

    def function(x: Any, dy: Any, angle: Any) -> Any:
        cos = angle.cos()
        found = graphs.pair(x.view(-1, 256), (dy * cos).view(-1, 256))
        return (*found, cos.cumsum(0)) if used else found

    return traced(function, (SPACE, f32), (SPACE, f32), (TABLE, f32))


def one_kernel(elements: int) -> float:
    """Microseconds of a kernel of Inductor's that moves so many elements of fp32."""
    return TIMES.launch_us + TIMES.us(Kind.POINTWISE, Work(4 * elements, 4 * elements), H200)


def left(graph: Graph) -> float:
    whole = next(find_regions(graph))  # the search stands still: a part is grown before it goes on
    assert isinstance(whole, Region)
    (part,) = lighter(whole, {"cos"})
    assert {n.target for n in whole.nodes} - {n.target for n in part.nodes} == {torch.ops.aten.cos.default}
    return outside_us(whole, part, H200)


def test_a_table_is_read_and_written_once() -> None:
    assert left(spread(used=False)) == one_kernel(2 * 64 * 256)


def test_each_tensor_computes_what_it_is_made_of() -> None:
    """Inductor keeps no table for them: the sine of `x`'s row is computed for each element of both."""

    def function(x: Any, dy: Any, angle: Any) -> Any:
        sin = angle.sin()
        return graphs.pair(torch.cat([x * sin, x + sin]).view(-1, 256), dy.view(-1, 256))

    graph = traced(function, ((16, 64, 256), f32), (SPACE, f32), (TABLE, f32))
    whole = next(find_regions(graph))
    assert isinstance(whole, Region)
    table, pieces, _ = lighter(whole, {"sin"})
    assert outside_us(whole, pieces, H200) == one_kernel(64 * 256 * (16 + 16 + 16 + 1))
    assert outside_us(whole, pieces, H200) > outside_us(whole, table, H200)


def test_what_other_nodes_need_takes_no_time() -> None:
    assert left(spread(used=True)) == 0


def test_nothing_is_left_of_the_same_region() -> None:
    region = only(spread(used=False))
    assert outside_us(region, region, H200) == 0


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
