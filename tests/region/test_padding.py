"""Which outputs are written with gaps between their rows, and what is then said of their views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from graphs import bf16, f32, find, outcomes, traced

from mixorder.inductor.tensors import padded_strides
from mixorder.region.padding import fills_gaps, has_gaps, is_filled
from mixorder.region.peak_memory import Timeline

ROWS, COLS = 48, 1100  # of two bytes: a multiple of 128 bytes is 64 elements
X = ((ROWS, COLS), bf16)
THREE = ((6, 8, COLS), bf16)
W = ((COLS, 16), bf16)


def gradient(x: Any, dy: Any) -> Any:
    return torch.tanh(x) * dy


def head(x: Any, dy: Any, w: Any) -> Any:
    """A linear's bias, input and weight gradients."""
    g = gradient(x, dy)
    return g.sum(0), g @ w, g.t() @ x


def viewed(x: Any, dy: Any, w: Any) -> Any:
    g = gradient(x, dy)
    return g.sum((0, 1)), g.view(ROWS, COLS) @ w, g.view(ROWS, COLS).t() @ x.view(ROWS, COLS)


def padded_product(x: Any, dy: Any, w: Any) -> Any:
    """As Inductor pads the dim that a product sums over."""
    g = gradient(x, dy)
    zeros = torch.nn.functional.pad
    return g.sum(0), zeros(g, (0, 4, 0, 0)) @ zeros(w, (0, 0, 0, 4)), g.cos()


def returned(x: Any, dy: Any, w: Any) -> Any:
    g = gradient(x, dy)
    return g.sum(0), g @ w, g


def convolved(x: Any, dy: Any, w: Any) -> Any:
    g = gradient(x, dy)
    return g.sum(0), g @ w, torch.nn.functional.conv1d(g[:, None], w[None, None, :3, 0])


def flattened(x: Any, dy: Any, w: Any) -> Any:
    """No strides give one index over rows with gaps."""
    g = gradient(x, dy)
    return g.sum(0), g @ w, g.view(-1).view(1, -1) @ x.view(-1, 1)


def gaps_elsewhere(x: Any, dy: Any, w: Any) -> Any:
    """Windows of 7 x 7 x 12 numbers: Inductor would put a gap behind each pair of them."""
    x, dy = (t[:, :1176].reshape(48, 1, 2, 7, 7, 12) for t in (x, dy))
    g = gradient(x, dy)
    return g.sum((0, 1, 2, 3, 4)), g.view(-1, 12) @ w[:12]


def loops_only(x: Any, dy: Any, w: Any) -> Any:
    g = gradient(x, dy)
    return g.sum(0), g.cumsum(1) @ w


WIDE = ((ROWS, 1200), bf16)


def gaps(function: Callable[..., Any], x: Any = X) -> list[str]:
    (region,) = find(traced(function, x, x, W))
    return [n.name for n in region.output_strides]


@pytest.mark.parametrize(("function", "x"), [(head, X), (viewed, THREE), (padded_product, X)])
def test_what_products_read_has_gaps(function: Callable[..., Any], x: Any) -> None:
    assert len(gaps(function, x)) == 1


@pytest.mark.parametrize("function", [returned, convolved, flattened, gaps_elsewhere, loops_only])
def test_what_others_read_has_none(function: Callable[..., Any]) -> None:
    assert gaps(function, WIDE if function is gaps_elsewhere else X) == []


@pytest.mark.parametrize(
    ("reader", "gaps"),
    [
        (lambda g: torch.var_mean(g, -1), True),
        (lambda g: g.max(-1)[0], True),
        (lambda g: g.aminmax(dim=-1), True),
        (lambda g: g.max(-1), True),
        (lambda g: g.topk(2), False),
        (lambda g: g.split(100, -1)[0].cos(), False),
    ],
    ids=["moments", "maximum", "two extrema", "maximum and index", "topk", "split"],
)
def test_readers_of_gaps_that_give_several_tensors(reader: Callable[..., Any], gaps: bool) -> None:
    def function(x: Any, dy: Any, w: Any) -> Any:
        g = gradient(x, dy)
        return g @ w, reader(g)

    graph = traced(function, X, X, W)
    (g,) = graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
    assert has_gaps(g) == gaps


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((ROWS, 1024), bf16), ((ROWS, 700), bf16), ((ROWS, 1088), f32), ((1, COLS), bf16)],
    ids=["even rows", "short rows", "even rows of four bytes", "one row"],
)
def test_rows_that_need_none(shape: tuple[int, int], dtype: torch.dtype) -> None:
    assert padded_strides(torch.empty(shape, dtype=dtype, device="meta")) is None


@pytest.mark.parametrize(
    ("shape", "dtype", "stride"),
    [
        ((4, 1100), bf16, (1152, 1)),
        ((2, 4, 1100), f32, (4 * 1120, 1120, 1)),
        ((3, 5, 700), bf16, (3520, 700, 1)),
    ],
)
def test_strides_are_those_of_inductor(
    shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...]
) -> None:
    from torch._inductor.ir import FlexibleLayout, Layout

    val = torch.empty(shape, dtype=dtype, device="meta")
    theirs = Layout._pad_strides(FlexibleLayout.contiguous_strides(list(shape)), list(shape), dtype)
    assert padded_strides(val) == tuple(map(int, theirs)) == stride


def test_none_where_inductor_pads_nothing() -> None:
    with inductor_config.patch(comprehensive_padding=False):
        assert gaps(head) == []


def test_views_have_the_strides_that_follow() -> None:
    graph = traced(viewed, THREE, THREE, W)
    outcomes(graph)
    found = {
        (n.name.partition("_")[0], tuple(n.meta["val"].stride()))
        for product in graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
        for n in product.all_input_nodes
        if COLS in n.meta["val"].shape and n.op == "call_function"
    }
    assert ("view", (1152, 1)) in found and ("permute", (1, 1152)) in found


def test_memory_with_gaps_is_not_that_of_an_operand_without() -> None:
    """Stock writes the gradient where the product lay, but where only one of them has gaps."""

    def function(x: Any, dy: Any, w: Any) -> Any:
        g = gradient(x @ w.t(), dy)
        return g.sum(0), g @ w

    specs = ((4096, 16), bf16), ((4096, 1), bf16), W
    with_gaps = Timeline(traced(function, *specs)).stock
    with inductor_config.patch(comprehensive_padding=False):
        assert with_gaps > 1.9 * Timeline(traced(function, *specs)).stock


def pads(function: Callable[..., Any]) -> list[bool]:
    """Whether each pad of a graph fills gaps."""
    graph = traced(function, X, X, W)
    return [fills_gaps(n) for n in graph.nodes if n.target is torch.ops.aten.constant_pad_nd.default]


def test_which_gaps_are_filled_where_they_are() -> None:
    zeros = torch.nn.functional.pad

    def one(x: Any, dy: Any, w: Any) -> Any:
        return zeros(gradient(x, dy), (0, 4, 0, 0)) @ zeros(w, (0, 0, 0, 4))

    def too_many(x: Any, dy: Any, w: Any) -> Any:
        return zeros(gradient(x, dy), (0, 100, 0, 0)) @ zeros(w, (0, 0, 0, 100))

    def two_readers(x: Any, dy: Any, w: Any) -> Any:
        g, w = zeros(gradient(x, dy), (0, 4, 0, 0)), zeros(w, (0, 0, 0, 4))
        return g @ w, g @ w.cos()

    def of_an_input(x: Any, dy: Any, w: Any) -> Any:
        return zeros(x, (0, 4, 0, 0)) @ zeros(w, (0, 0, 0, 4))

    assert pads(one) == [True, False]
    assert not any(map(any, map(pads, (too_many, two_readers, of_an_input))))


def test_a_result_whose_gaps_are_filled_has_memory_of_its_own() -> None:
    graph = traced(padded_product, X, X, W)
    (region,) = find(graph)
    assert [is_filled(n) for n in region.outputs if n in region.output_strides] == [True]
    (region,) = find(traced(head, X, X, W))
    assert [is_filled(n) for n in region.outputs if n in region.output_strides] == [False]
