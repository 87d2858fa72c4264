"""Which reductions end within a tile, what joins them, and what is left to Inductor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graphs
import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, f32, in_turn, traced
from support import quantised
from torch.fx import Graph

from mixorder.errors import Decline
from mixorder.region.find import find_regions
from mixorder.region.region import Region
from mixorder.region.tile import is_within_tile

SIZE = (256, 512)


def regions(graph: Graph) -> list[Region]:
    found = [r for r in find_regions(graph) if isinstance(r, Region)]
    return [r for r in found if r.orders is not None]


def of(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = bf16) -> Region:
    (region,) = regions(traced(lambda *x: function(*x), *((shape, dtype) for shape in shapes or (SIZE,))))
    return region


def test_sums_of_all_rows_and_what_follows() -> None:
    """A bias gradient in fp32 and its cast; what needs the sum of all rows for each element stays outside."""

    def function(x: Any) -> Any:
        total = x.float().sum(0)
        return *quantised.mx_in_place(x), total.to(bf16), x - total, x.amax(1)

    graph = traced(function, (SIZE, bf16))
    (region,) = regions(graph)
    assert [n.name for n in region.outer] == ["sum_1", "amax"]
    full = {n.name for n in region.nodes if n.meta["val"].numel() == SIZE[0] * SIZE[1]}
    assert not {n for n in full if n.startswith("sub")} and len(region.outputs) == 6
    assert "amax_2" not in {n.name for n in region.nodes}  # over whole rows


@pytest.mark.parametrize(
    "total",
    [
        lambda x: x.sum((0, 1)),
        lambda x: x.var(0),
        lambda x: x.t().sum(0),
    ],
    ids=["of all elements", "a variance", "of rows"],
)
def test_other_sums_stay_outside(total: Callable[[Any], Any]) -> None:
    region = of(lambda x: (*quantised.mx_in_place(x), total(x.float())))
    assert len(region.outer) == 1


def test_what_comes_between_two_products_is_read() -> None:
    """The second cast is of what a matrix product of the first has given: two regions."""

    def both(x: Any) -> Any:
        rows, columns = x.view(256, 16, 32), x.view(8, 32, 512)
        return (rows / rows.amax(2, keepdim=True)).view(SIZE), columns / columns.amax(1, keepdim=True)

    def function(x: Any, w: Any) -> Any:
        first, other = both(x)
        return other, *both(first @ w)

    graph = traced(function, (SIZE, bf16), ((512, 512), bf16))
    found = []
    for region in in_turn(graph):
        found.append((len(region.inputs), len(region.inner), len(region.outer)))
    assert found == [(1, 1, 1), (1, 1, 1)]


def tokens(x: Any) -> Any:
    """A row of a permuted tensor that is made of whole dims is a pair's."""
    rows = x.view(64, 512, 64).permute(1, 0, 2).reshape(512, 4096)
    return rows / rows.abs().amax(1, keepdim=True), rows / rows.abs().amax(0, keepdim=True)


LEFT: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "along rows alone": (lambda x: quantised.mx_rows(x), SIZE),
    "along rows, two lengths": (lambda x: (*quantised.mx_rows(x), *quantised.mx_rows(x, 64)), SIZE),
    "no cast": (lambda x: x.view(8, 32, 512).abs().amax(1), SIZE),
    "sums that nothing of full size uses": (
        lambda x: (x.view(8, 32, 512).sum(1), x.view(256, 16, 32).sum(2)),
        SIZE,
    ),
    "blocks of 8": (lambda x: quantised.mx_in_place(x, 8), SIZE),
    "one block of all rows": (lambda x: quantised.mx_in_place(x, 256), SIZE),
    "whole rows and columns": (lambda x: (quantised.whole(x, 0), quantised.whole(x, 1)), SIZE),
    "whole rows and columns of a small tensor": (
        lambda x: (x / x.sum(0), x / x.sum(1, keepdim=True)),
        (64, 128),
    ),
    "all heads of a token": (tokens, (64, 512 * 64)),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_inductor_or_to_a_pair(name: str) -> None:
    function, shape = LEFT[name]
    assert not regions(traced(lambda x: function(x), (shape, bf16)))


def reasons(graph: Graph) -> list[tuple[str, str]]:
    """The reasons of what is found, and the spaces of regions."""
    found = list(find_regions(graph))
    return [(one.reason.value, one.detail) for one in found if isinstance(one, Decline)] + [
        ("region", str(one.space)) for one in found if isinstance(one, Region)
    ]


@pytest.mark.parametrize(
    ("function", "blocks"),
    [
        (lambda x: quantised.mx_transposed(x, 48), "48"),
        (lambda x: (*quantised.mx_rows(x, 48), *quantised.mx_transposed(x, 48)), "48"),
        (lambda x: quantised.blocks_both(x, 256), "256"),
        (lambda x: quantised.mx_transposed(x, 8), "8"),
        (lambda x: quantised.squares(x, 48), "48 x 48"),
        (lambda x: quantised.squares(x, 256), "256 x 256"),
    ],
)
def test_blocks_of_other_lengths_give_a_reason(function: Any, blocks: str) -> None:
    detail = f"blocks of {blocks} elements; 16, 32, 64 and 128 are supported"
    assert reasons(traced(function, ((1536, 768), bf16))) == [("axis-class", detail)]


def test_each_tensor_s_blocks_give_a_reason_of_their_own() -> None:
    def function(x: Any, y: Any) -> Any:
        return *quantised.mx_transposed(x, 48), *quantised.mx_transposed(y, 256)

    found = reasons(traced(function, ((480, 480), bf16), ((512, 512), bf16)))
    assert [detail.split()[2] for _, detail in found] == ["48", "256"]


def test_blocks_of_other_lengths_in_place_are_a_pair() -> None:
    (region,) = find_regions(traced(lambda x: quantised.mx_in_place(x, 48), ((480, 480), bf16)))
    assert isinstance(region, Region) and region.orders is None
    assert str(region.space) == "batch 10 x row 48 x batch 10 x column 48"


def in_place(x: Any) -> Any:
    """Blocks along rows and columns, with as many rows as there are."""
    rows, columns = x.view(-1, 16, 32), x.view(-1, 32, 512)
    return rows / rows.amax(2, keepdim=True), columns / columns.amax(1, keepdim=True)


@pytest.mark.parametrize("function", [in_place, quantised.mx_both, lambda x: quantised.mx_transposed(x)])
def test_symbolic_sizes_give_a_reason(function: Any) -> None:
    ((reason, detail),) = reasons(graphs.traced_rows(lambda x: function(x), (SIZE, f32)))
    assert reason == "dynamic-shape" and detail.endswith("x 512, of which every size must be known")


def test_a_source_that_lies_column_by_column_gives_a_reason() -> None:
    ((reason, detail),) = reasons(traced(lambda x: quantised.mx_both(x), (SIZE, bf16), transposed=[0]))
    assert reason == "layout" and detail == "blocks of a tensor of 256 x 512, which is not row-major"


def test_complex_numbers_give_a_reason() -> None:
    def function(x: Any) -> Any:
        rows, columns = x.view(256, 16, 32), x.view(8, 32, 512)
        return rows / rows.sum(2, keepdim=True), columns / columns.sum(1, keepdim=True)

    found = reasons(traced(function, (SIZE, torch.complex64)))
    assert {reason for reason, _ in found} == {"unsupported-dtype"}


def patches(x: Any) -> Any:
    """14 x 14 points of an image beside each other, normalised."""
    patches = x.view(16, 16, 14, 16, 14).permute(0, 1, 3, 2, 4).reshape(16, 256, 196)
    return F.layer_norm(patches, (196,))


NO_BLOCKS: dict[str, Callable[[Any], Any]] = {
    "a norm of rows": lambda x: F.layer_norm(x.view(1792, 448), (448,)),
    "a mean of a dim": lambda x: x.view(448, 16, 7, 16) / x.view(448, 16, 7, 16).mean(2, keepdim=True),
    "a mean of two rows": lambda x: x.view(896, 2, 448) - x.view(896, 2, 448).mean(1, keepdim=True),
    "pooling": lambda x: F.avg_pool2d(x.view(4, 4, 224, 224), 14),
    "groups of channels": lambda x: F.group_norm(x.view(4, 256, 14, 56), 8),
    "a softmax of heads": lambda x: x.view(4, 448, 8, 56).transpose(1, 2).softmax(-1),
    "a softmax over a dim": lambda x: x.view(28, 64, 448).softmax(1),
    "a largest element of rows": lambda x: x.view(1792, 448).amax(1),
    "scales alone": lambda x: x.view(28, 64, 448).amax(1),
    "sums over a part of the rows": lambda x: x.view(14, 128, 448).sum(1),
    "blocks of 56 along rows": lambda x: quantised.mx_rows(x, 56),
    "a norm of patches": patches,
}


@pytest.mark.parametrize("name", NO_BLOCKS)
def test_what_has_no_blocks_gives_no_reason(name: str) -> None:
    assert not reasons(traced(lambda x: NO_BLOCKS[name](x), ((1792, 448), f32)))


def test_squares_may_be_rows_of_a_permuted_tensor() -> None:
    def squares(x: Any) -> Any:
        rows = x.reshape(2, 128, 4, 128).permute(0, 2, 1, 3).reshape(-1, 128 * 128)
        return rows / rows.abs().amax(1, keepdim=True)

    assert str(of(squares).space) == "batch 2 x row 128 x batch 4 x row 128"


@pytest.mark.parametrize(
    ("shape", "dims", "within"),
    [
        ((8, 32, 512), (1,), True),
        ((8, 4, 8, 512), (1, 2), True),
        ((8, 32, 16, 32), (1, 3), True),
        ((32, 512), (0,), True),
        ((8, 512), (1,), False),
        ((8, 24, 512), (1,), False),
        ((32, 32), (0, 1), False),
        ((8, 1, 512), (1,), False),
        ((8, 8, 512), (1,), False),
    ],
)
def test_is_within_tile(shape: tuple[int, ...], dims: tuple[int, ...], within: bool) -> None:
    graph = traced(lambda x: x.amax(dims), (shape, f32))
    (node,) = (n for n in graph.nodes if n.target is torch.ops.aten.amax.default)
    assert is_within_tile(node) == within


def test_what_loops_recompute_from_small_results_is_not_written() -> None:
    """A norm over channels that lie across memory: its normalised input, which the norm's backward needs
    again, would be float32."""

    def function(x: Any, w: Any) -> Any:
        y = x.permute(0, 2, 1).float()
        variance, mean = torch.var_mean(y, 2, keepdim=True, correction=0)
        normed = (y - mean) * torch.rsqrt(variance + 1e-5)
        product = torch.bmm(normed.to(bf16), w)
        return (product.float() * normed).to(bf16)

    graph = traced(lambda *x: function(*x), ((8, 128, 1024), bf16), ((8, 128, 128), bf16))
    (region,) = regions(graph)
    assert region.orders is not None
    shapes = sorted((str(n.meta["val"].dtype), tuple(n.meta["val"].shape)) for n in region.outputs)
    assert [s for s in shapes if s[1] == (8, 1024, 128)] == [("torch.bfloat16", (8, 1024, 128))]
    assert all(shape == (8, 1024, 1) for _, shape in shapes[1:]) and len(shapes) > 1
