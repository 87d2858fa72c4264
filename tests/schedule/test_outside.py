"""The time of what a smaller region leaves to Inductor: by hand, for a table and for a large tensor."""

from __future__ import annotations

from typing import Any

import graphs
import torch
from graphs import f32, only, traced
from torch.fx import Graph

from mixorder.region.find import find_regions
from mixorder.region.partition import lighter
from mixorder.region.region import Region
from mixorder.schedule.device import H200
from mixorder.schedule.facts import cost_of
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


def one_kernel(elements: int, instructions: int) -> float:
    """Microseconds of a kernel of Inductor's that moves so many elements of fp32."""
    work = Work(4 * elements, 4 * elements, instructions)
    return TIMES.launch_us + TIMES.us(Kind.POINTWISE, work, H200)


def left(graph: Graph) -> float:
    whole = next(find_regions(graph))  # the search stands still: a part is grown before it goes on
    assert isinstance(whole, Region)
    (part,) = lighter(whole, {"cos"})
    assert {n.target for n in whole.nodes} - {n.target for n in part.nodes} == {torch.ops.aten.cos.default}
    return outside_us(whole, part, H200)


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
    assert outside_us(whole, pieces, H200) == one_kernel(elements, computing)
    assert outside_us(whole, pieces, H200) > outside_us(whole, table, H200)


def test_what_other_nodes_need_takes_no_time() -> None:
    assert left(spread(used=True)) == 0


def test_nothing_is_left_of_the_same_region() -> None:
    region = only(spread(used=False))
    assert outside_us(region, region, H200) == 0
