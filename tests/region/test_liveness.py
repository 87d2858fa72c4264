"""Which inputs of a region nobody reads afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f32, find, in_turn, only, pair, traced
from torch.fx import Node

from mixorder.region.liveness import _Reader, dead_after, read_after
from mixorder.region.nodes import is_view
from mixorder.region.region import Region

FULL, SQUARE = ((512, 256), f32), ((256, 256), f32)


def reasons(region: Region) -> dict[str, str | None]:
    """Of each input that is a full tensor, by the op that makes it."""
    reader = _Reader(region)

    def name(node: Node) -> str:
        return str(node.target).split(".")[1] if "." in str(node.target) else node.op

    return {name(n): reader.why_not(n) for n in region.inputs}


def last_use(x: Any, g: Any, w: Any) -> Any:
    return pair(x, g @ w)


def viewed(x: Any, g: Any, w: Any) -> Any:
    """The region reads the product, or views of it."""
    dx, dw = pair(x.view(4, 128, 256).sin().view(512, 256), (g @ w).view(4, 128, 256).view(512, 256))
    return dx.view(4, 128, 256), dw


def used_later(x: Any, g: Any, w: Any) -> Any:
    dy = g @ w
    return *pair(x, dy), dy @ w


def view_used_later(x: Any, g: Any, w: Any) -> Any:
    dy = g @ w
    return *pair(x, dy), dy.t() @ x


def used_by_a_member_that_stays(x: Any, g: Any, w: Any) -> Any:
    """The cast is cheap: it stays for the product, and is recomputed in the kernel."""
    wide = (g.to(bf16) @ w.to(bf16)).to(f32)
    return *pair(x, wide), wide * g.cumsum(0)


def behind_a_sum(x: Any, dy: Any) -> tuple[Any, ...]:
    """Sums of the rows, and of all rows but for one dim's, which another kernel has to add up before."""
    x, dy = x.view(4, 128, 256), dy.view(4, 128, 256)
    first = torch.tanh((dy * x).sum(1))
    dx = dy + x * first.cumsum(1).unsqueeze(1)
    return dx.view(512, 256), dx.sum((0, 1)), (dx * x).sum((0, 1))


def reduced_before(x: Any, g: Any, w: Any) -> Any:
    return behind_a_sum(x, g @ w)


def multiplied_before(x: Any, g: Any, w: Any) -> Any:
    dy = g @ w
    return pair(x * (dy.t() @ x).amax(), dy)


def reduced_anywhere(x: Any, g: Any, w: Any) -> Any:
    dy = g @ w
    return *pair(x, dy), (dy * torch.sin(dy)).view(4, 128, 256).sum(1)


def computed_before_and_after(x: Any, g: Any, w: Any) -> Any:
    """Inductor computes the tangent in the loops of the sum, and again in those of the result."""
    dy = g @ w
    tangent = torch.tanh(dy)
    dx, *sums = behind_a_sum(x * tangent.view(4, 128, 256).sum(1).amax(), dy)
    return *sums, (dx @ w) * tangent


def returned(x: Any, g: Any, w: Any) -> Any:
    dy = g @ w
    return *pair(x, dy), dy


def summed(x: Any, g: Any) -> Any:
    return pair(x, torch.cumsum(g, 0))


CASES: dict[str, tuple[Callable[..., Any], str | None]] = {
    "last use": (last_use, None),
    "viewed": (viewed, None),
    "used later": (used_later, "another node reads it"),
    "view used later": (view_used_later, "another node reads it"),
    "member that stays": (used_by_a_member_that_stays, "another node reads it"),
    "reduced before": (reduced_before, None),
    "multiplied before": (multiplied_before, None),
    "reduced anywhere": (reduced_anywhere, "another node reads it"),
    "computed before and after": (computed_before_and_after, "another node reads it"),
    "returned": (returned, "another node reads it"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_product_dies_with_its_last_reader(name: str) -> None:
    function, reason = CASES[name]
    region = only(traced(function, FULL, FULL, SQUARE))
    found = reasons(region)
    assert found.pop("mm", found.pop("reshape", "absent")) == reason
    assert set(found.values()) <= {"its memory may be shared"}
    products = [b for b, n in region.input_buffers.items() if "mm" in str(n.target) or is_view(n)]
    assert dead_after(region) == (() if reason else tuple(products))


def test_a_product_of_float8_numbers_dies_too() -> None:
    def function(x: Any, g: Any, w: Any, one: Any) -> Any:
        return pair(x, torch._scaled_mm(g, w.t(), one, one, out_dtype=bf16))

    f8 = torch.float8_e4m3fn
    region = only(traced(function, ((512, 256), bf16), ((512, 256), f8), ((256, 256), f8), ((), f32)))
    assert reasons(region)["_scaled_mm"] is None


def test_what_others_made_is_left_alone() -> None:
    region = only(traced(summed, FULL, FULL))
    assert set(reasons(region).values()) == {"its memory may be shared"}


def test_a_result_of_an_earlier_region_dies() -> None:
    def function(x: Any, g: Any, z: Any) -> Any:
        dx, dw = pair(x, g)
        return dw, *pair(torch.cumsum(z, 1), dx.view(1024, 128))

    regions = in_turn(traced(function, FULL, FULL, ((1024, 128), f32)))
    found = [(dead_after(region), reasons(region)) for region in regions]
    assert [len(names) for names, _ in found] == [0, 1]
    assert found[1][1] == {"cumsum": "its memory may be shared", "call_function": None}


def test_a_copy_is_dead() -> None:
    """Only the region reads it, whatever reads the tensor itself."""
    region = only(traced(used_later, FULL, FULL, SQUARE))
    assert not dead_after(region)
    copied = dataclasses.replace(region, made_contiguous=frozenset(region.inputs))
    assert dead_after(copied) == tuple(copied.input_buffers)


def test_two_names_for_one_tensor_and_a_part_of_one() -> None:
    def two_names(x: Any, g: Any, w: Any) -> Any:
        dy = g @ w
        other = torch.as_strided(dy, (512, 256), (256, 1), 0)
        return pair(x * other, dy)

    def part_of_one(x: Any, g: Any, w: Any) -> Any:
        return pair(x, torch.as_strided(g @ w, (256, 256), (256, 1), 0))

    (region,) = find(traced(two_names, FULL, FULL, SQUARE))
    assert {"the region reads it by two names"} <= set(reasons(region).values())
    (region,) = find(traced(part_of_one, SQUARE, FULL, SQUARE))
    assert "it is a part of a tensor" in reasons(region).values()


def test_what_the_forward_kept_for_this_graph_alone_dies() -> None:
    """Unless a result of its size leaves the graph, or another node reads it."""

    def function(x: Any, dy: Any, w: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx @ w, dw

    for returned, kept in ((False, None), (True, "autograd may hold it when the result has left the graph")):
        traces = pair if returned else function
        region = only(traced(traces, *(FULL, FULL, SQUARE)[: 2 if returned else 3]))
        inputs = region.inputs
        assert dead_after(region) == ()
        assert {_Reader(region, inputs).why_not(n) for n in inputs} == {kept}
        assert len(dead_after(region, inputs)) == (0 if returned else 2)


def read_later(x: Any, y: Any, w: Any) -> Any:
    dx, dw = pair(x, y)
    return dx, dw, y @ w, x @ w


def computed_later(x: Any, y: Any, w: Any) -> Any:
    """A cast before the region, which the loop behind it computes."""
    wide = x.double()
    dx, dw = pair(x, y)
    return dx, dw, (wide * dw.double()).sum(1)


@pytest.mark.parametrize(
    ("function", "found"), [(lambda x, y, w: pair(x, y), 0), (read_later, 2), (computed_later, 1)]
)
def test_what_is_read_after_the_launch(function: Callable[..., Any], found: int) -> None:
    """Kernels do not evict it first."""
    region = only(traced(function, FULL, FULL, SQUARE))
    index = {node: i for i, node in enumerate(region.nodes[0].graph.nodes)}
    place = max(index[n] for n in region.nodes)
    stored = [n for n in index if n.op == "placeholder"]
    still_read = read_after(region, place, index, stored)
    assert len(still_read) == found and still_read <= set(region.input_buffers)
