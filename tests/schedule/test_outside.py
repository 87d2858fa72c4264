"""The time of what a smaller region leaves to Inductor: by hand, for a table and for a large tensor."""

from __future__ import annotations

import dataclasses
from typing import Any

import graphs
import torch
from graphs import bf16, f32, only, traced
from torch.fx import Graph

from mixorder import pipeline
from mixorder.errors import Decline, DeclineReason
from mixorder.inductor.config import realize_threshold
from mixorder.options import Options
from mixorder.region.find import find_regions
from mixorder.region.partition import lighter
from mixorder.region.region import Region
from mixorder.report import collect
from mixorder.schedule.apart import Kernel, microseconds
from mixorder.schedule.device import H200
from mixorder.schedule.facts import cost_of
from mixorder.schedule.kernel_time import TIMES, Kind
from mixorder.schedule.outside import SLOWER, apart_us, outside
from mixorder.schedule.work import Access, Work

TABLE, SPACE = (64, 256), (32, 64, 256)


def spread(used: bool) -> Graph:
    """A pair that computes cosines of a table; `used`: they are also a result."""

    def function(x: Any, dy: Any, angle: Any) -> Any:
        cos = angle.cos()
        found = graphs.pair(x.view(-1, 256), (dy * cos).view(-1, 256))
        return (*found, cos.cumsum(0)) if used else found

    return traced(function, (SPACE, f32), (SPACE, f32), (TABLE, f32))


def one_kernel(elements: int, instructions: int) -> float:
    """Microseconds of a kernel of Inductor's that moves so many elements of fp32."""
    work = Work(4 * elements, 4 * elements, instructions)
    return TIMES.launch_us + SLOWER * TIMES.us(Kind.POINTWISE, work, H200)


def left(graph: Graph) -> float:
    whole = next(find_regions(graph))  # the search stands still: a part is grown before it goes on
    assert isinstance(whole, Region)
    (part,) = lighter(whole, {"cos"})
    assert {n.target for n in whole.nodes} - {n.target for n in part.nodes} == {torch.ops.aten.cos.default}
    return outside(whole, part).us(H200)


def test_a_table_is_read_and_written_once() -> None:
    assert left(spread(used=False)) == one_kernel(2 * 64 * 256, 64 * 256 * cost_of("cos"))


def test_each_tensor_computes_what_it_is_made_of() -> None:
    """Inductor keeps no table for them: the sine of `x`'s row is computed for each element of both."""

    def function(x: Any, dy: Any, angle: Any) -> Any:
        sin = angle.sin()
        return graphs.pair(torch.cat([x * sin, x + sin]).view(-1, 256), dy.view(-1, 256))

    graph = traced(function, ((16, 64, 256), f32), (SPACE, f32), (TABLE, f32))
    whole = next(find_regions(graph))
    assert isinstance(whole, Region)
    table, pieces, _ = lighter(whole, {"sin"})
    elements, computing = 64 * 256 * (16 + 16 + 16 + 1), 2 * 16 * 64 * 256 * (cost_of("sin") + 1)
    assert outside(whole, pieces).us(H200) == one_kernel(elements, computing)
    assert outside(whole, pieces).us(H200) > outside(whole, table).us(H200)


def test_what_other_nodes_need_takes_no_time() -> None:
    assert left(spread(used=True)) == 0


def test_nothing_is_left_of_the_same_region() -> None:
    region = only(spread(used=False))
    assert outside(region, region).us(H200) == 0


def test_inductor_computes_the_same_inside_the_loops_that_read_it() -> None:
    """They read what it is computed from instead of the results, and write nothing more."""

    def function(x: Any, dy: Any, angle: Any) -> Any:
        sin = angle.sin()
        return graphs.pair(torch.cat([x * sin, x + sin]).view(-1, 256), dy.view(-1, 256))

    whole = next(find_regions(traced(function, ((16, 64, 256), f32), (SPACE, f32), (TABLE, f32))))
    assert isinstance(whole, Region)
    _, pieces, _ = lighter(whole, {"sin"})
    left = outside(whole, pieces)
    read, results = 64 * 256 * (16 + 1), 64 * 256 * 32
    assert left.work.dram == 4 * (read + results)
    # Both pieces are computed for all elements that they are put together to.
    assert left.inside == Work(4 * (read - results), 4 * (read - results), 2 * left.work.light)
    rows = Access("in0", 2e9, 4e9, 4e9)  # half of each sector
    kernels = [
        Kernel(Kind.POINTWISE, Work(4e9, 4e9), 1000, 1, (rows,)),
        Kernel(Kind.COLUMNS, Work(1e9, 1e9), 9, 1, ()),
    ]
    inside = dataclasses.replace(left.inside, dram=2 * left.inside.dram)
    more = Kernel(Kind.POINTWISE, Work(4e9, 4e9) + inside, 1000, 1, (rows,))
    assert apart_us(kernels, left, H200) == microseconds([more, kernels[1]], H200, TIMES)


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


def test_a_table_is_computed_for_each_element_of_what_inductor_stores() -> None:
    """Where a value that takes the table is stored, for the elements of that value; else for all elements."""

    def function(x: Any, dy: Any, angle: Any) -> Any:
        half = x * angle.cos()
        for _ in range(realize_threshold("opcount")):
            half = half * 1.5 + 0.5
        wide = torch.cat([half, dy])
        return graphs.pair(wide.view(-1, 256), wide.view(-1, 256))

    def short(x: Any, dy: Any, angle: Any) -> Any:
        wide = torch.cat([x * angle.cos(), dy])
        return graphs.pair(wide.view(-1, 256), wide.view(-1, 256))

    def times(function: Any) -> float:
        halves = ((16, 64, 256), f32)
        whole = next(find_regions(traced(function, halves, halves, (TABLE, f32))))
        assert isinstance(whole, Region)
        table, *_ = lighter(whole, {"cos"})
        left = outside(whole, table)
        return left.inside.light / left.work.light

    assert times(function) == 16
    assert times(short) == 32
