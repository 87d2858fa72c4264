"""Which results are seeds of a region without reductions, what joins them, and what is left to Inductor."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f32, in_turn, node, path_through_outside, snapshot, traced, traced_rows
from support import quantised
from support.quantised import F8
from torch.fx import Graph

from mixorder import pipeline
from mixorder.errors import Decline
from mixorder.inductor.graphs import takes_stated_strides
from mixorder.options import Options
from mixorder.region.factors import Factor
from mixorder.region.find import find_regions
from mixorder.region.orders import Orders
from mixorder.region.region import Region
from mixorder.region.turned import innermost
from mixorder.report import collect

X, ROWS, COLUMNS = ((256, 512), bf16), ((256, 1), f32), ((1, 512), f32)
Function = Callable[..., Any]


def cast(x: Any, factor: Any) -> Any:
    return (x.float() * factor).clamp(-448, 448).to(F8)


def regions(graph: Graph) -> list[Region]:
    """The regions without reductions; a decline is an error here."""
    found = list(find_regions(graph))
    assert not any(isinstance(one, Decline) for one in found), found
    return [one for one in found if isinstance(one, Region) and not one.outer]


def of(function: Function, *specs: Any) -> Region:
    (region,) = regions(traced(lambda *x: function(*x), *specs))
    assert region.named_after == region.outputs and not region.inner
    return region


def none(function: Function, *specs: Any) -> None:
    assert not regions(traced(lambda *x: function(*x), *specs))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: cast(x, s).t().contiguous(),
        lambda x, s: cast(x.t().contiguous(), s.t()),
        lambda x, s: cast(x, s).permute(1, 0).clone(memory_format=torch.contiguous_format),
        lambda x, s: cast(x, s).permute(1, 0).reshape(-1),
        lambda x, s: cast(x, s).t().contiguous().view(torch.uint8),
        lambda x, s: cast(x, s).t().contiguous().t(),
    ],
    ids=["t", "before the cast", "clone", "reshape", "bytes", "seen as it was"],
)
def test_spellings_of_the_same(function: Function) -> None:
    region = of(function, X, COLUMNS)
    assert str(region.space) == "256x512"
    assert [n.op for n in region.inputs] == ["placeholder"] * 2 and len(region.outputs) == 1


def test_the_second_pass_of_the_recipe_rowwise() -> None:
    """It is found when the first is fused, reads x and the scales, and is launched right behind them."""
    graph = traced(lambda x: quantised.rowwise_both(x), X)
    first, second = in_turn(graph)
    assert first.outer and not second.outer
    launches = [n for n in graph.nodes if "triton" in n.name]
    assert len(launches) == 3
    assert {n.name for n in second.inputs} == {"x_1", "getitem_3"}
    between = [n.target for n in _between(launches[1], launches[2])]
    assert len(between) == 2 and torch.ops.aten.empty_strided.default in between  # and the scales


def _between(first: Any, last: Any) -> Any:
    while (first := first.next) is not last:
        yield first


def test_both_orders_and_other_results_of_the_same_tensors() -> None:
    def function(x: Any, z: Any, rows: Any, columns: Any) -> Any:
        product = x * z
        return (
            cast(product, columns).t().contiguous(),
            cast(product, rows),
            product,
            (x > rows),
            x.float().exp(),
        )

    region = of(function, X, X, ROWS, COLUMNS)
    assert (len(region.inputs), len(region.outputs)) == (4, 5)


def test_what_reads_more_tensors_is_left_to_a_kernel_of_its_own() -> None:
    region = of(lambda x, z, s: (cast(x, s).t().contiguous(), (x * z).to(F8)), X, X, COLUMNS)
    assert len(region.inputs) == 2 and len(region.outputs) == 1


def test_a_scaled_product_takes_the_stated_order_and_a_product_any() -> None:
    def scaled(x: Any, s: Any, w: Any, one: Any) -> Any:
        return torch._scaled_mm(cast(x, s).t().contiguous(), w.t(), one, one, out_dtype=bf16)

    specs = (X, COLUMNS, ((64, 256), F8), ((), f32))
    assert "_scaled_mm" in {u.name for n in of(scaled, *specs).outputs for u in n.users}
    none(
        lambda x, s, w: torch._int_mm((x * s).to(torch.int8).t().contiguous(), w),
        X,
        COLUMNS,
        ((256, 64), torch.int8),
    )
    assert takes_stated_strides(torch.ops.aten._scaled_mm.default)
    assert not takes_stated_strides(torch.ops.aten.mm.default) and not takes_stated_strides("output")


NOT_TURNED: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "as eager lays it out": (lambda x, s: cast(x, s).t(), (X, COLUMNS)),
    "for a loop": (lambda x, s: (cast(x, s).t().contiguous().float() * 2).sum(), (X, COLUMNS)),
    "two bytes": (lambda x, s: (x * s).to(bf16).t().contiguous(), (X, COLUMNS)),
    "a copy of two bytes": (lambda x: x.t().contiguous(), (X,)),
    "a sum of two bytes": (lambda x, z: (x + z).t().contiguous(), (X, X)),
    "a copy of bytes": (lambda x: x.t().contiguous(), (((256, 512), F8),)),
    "heads": (lambda x: x.to(F8).permute(0, 2, 1, 3).contiguous(), (((2, 64, 8, 32), bf16),)),
    "rows of few elements": (lambda x: x.to(F8).t().contiguous(), (((16384, 8), bf16),)),
    "few rows": (lambda x: x.to(F8).t().contiguous(), (((8, 16384), bf16),)),
    "in place": (lambda x, s: (cast(x, s), x.amax(0)), (X, COLUMNS)),
    "scales of rows": (lambda x: quantised.whole(x, -1)[0].t().contiguous(), (X,)),
    "a norm": (lambda x: torch.nn.functional.layer_norm(x, (512,)).to(F8).t().contiguous(), (X,)),
    "blocks of another length": (lambda x: quantised.mx_rows(x.t().contiguous(), 8)[1], (X,)),
    "pieces": (lambda x, s: cast(torch.cat([x, x]), s).t().contiguous(), (X, COLUMNS)),
    "a sum that a kernel ends with": (lambda x: x.sum(0).to(F8).t().contiguous(), (((4, 256, 512), bf16),)),
}


@pytest.mark.parametrize("name", NOT_TURNED)
def test_what_is_left_to_inductor(name: str) -> None:
    """What it may lay out as it likes, what it turns well, and what it has in a kernel with a reduction."""
    function, specs = NOT_TURNED[name]
    found = list(find_regions(traced(lambda *x: function(*x), *specs)))
    assert not [one for one in found if not isinstance(one, Decline) and not one.outer]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: quantised.whole(x, 0)[0].t().contiguous(),
        lambda x: cast(x, 448 / x.abs().amax().float()).t().contiguous(),
        lambda x: quantised.whole(x.t(), -1)[0].contiguous(),
    ],
    ids=["columns", "the whole tensor", "columns, seen as rows"],
)
def test_scales_that_need_all_rows_are_read(function: Function) -> None:
    region = of(function, X)
    assert [n.name[:4] for n in region.inputs if n.op != "placeholder"] == ["amax"]


def test_a_row_wise_cast_stays_with_its_reduction() -> None:
    """Its scale is along rows: Inductor's kernel for the reduction has the cast."""

    def function(x: Any, s: Any) -> Any:
        return cast(x, s).t().contiguous(), *quantised.whole(x, -1)

    assert len(of(function, X, COLUMNS).outputs) == 1


def test_what_a_product_comes_between_is_not_beside_it() -> None:
    """A cast from which a product gives the scale: with both in one kernel, it would wait for itself."""

    def function(x: Any, w: Any, s: Any) -> Any:
        first = cast(x, s)
        scale = torch._scaled_mm(first, w.t(), torch.ones(()), torch.ones(()), out_dtype=bf16).float()[:, :1]
        return cast(x, scale).t().contiguous()

    region = of(function, X, ((64, 512), F8), COLUMNS)
    assert len(region.outputs) == 1 and path_through_outside(region) is None


def test_the_elements_that_lie_next_to_each_other() -> None:
    graph = traced(lambda x, y: (x.t(), y.sin(), x.t().contiguous()), X, X, transposed=[1])
    x, y = graph.find_nodes(op="placeholder")
    for tensor, found in ((x, Factor(1, 256 * 512)), (y, Factor(512, 256))):
        assert innermost(tensor, Orders(tensor)[tensor]) == found
    orders = Orders(x)
    for n in graph.nodes:
        if n.op == "call_function" and x in n.all_input_nodes:
            orders.find(n)
    clone = node(graph, "clone")
    orders.find(clone)
    assert innermost(clone, orders[clone]) == Factor(512, 256)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: cast(x, s).t().contiguous(),
        lambda x, s: (cast(x, s), cast(x.t().contiguous(), s[:, None])),
    ],
)
def test_symbolic_sizes_give_a_reason(function: Function) -> None:
    (decline,) = find_regions(traced_rows(lambda *x: function(*x), X, ((512,), f32)))
    assert isinstance(decline, Decline) and decline.reason.value == "dynamic-shape"
    found = re.fullmatch(
        r"a transposed result of 512 x s\d+, of which every size must be known", decline.detail
    )
    assert found is not None


@pytest.mark.parametrize("name", ["as eager lays it out", "two bytes", "heads", "a copy of bytes"])
def test_what_is_not_turned_gives_no_reason(name: str) -> None:
    function, specs = NOT_TURNED[name]
    assert not list(find_regions(traced_rows(lambda *x: function(*x), *specs)))


def test_what_is_predicted_to_save_nothing_is_left_as_it_is() -> None:
    """At this size, a launch takes longer than moving the bytes."""
    graph = traced(lambda x, s: cast(x, s).t().contiguous(), X, COLUMNS)
    before = snapshot(graph)
    with collect() as records:
        pipeline.run(graph, Options(enabled=True, strict=True, interpret=True))
    (decline,) = records
    assert isinstance(decline, Decline) and decline.reason.value == "slower" and snapshot(graph) == before
