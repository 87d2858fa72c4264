"""Which results are seeds of a region without reductions, what joins them, and what is left to Inductor."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from expecttest import TestCase
from graphs import bf16, declined, f32, node, snapshot, told, traced, traced_rows
from support import quantised
from support.quantised import F8

from mixorder.errors import Decline
from mixorder.inductor.graphs import takes_stated_strides
from mixorder.options import Options
from mixorder.region.factors import Factor
from mixorder.region.find import find_regions
from mixorder.region.orders import Orders
from mixorder.region.transposed import innermost

X, ROWS, COLUMNS = ((256, 512), bf16), ((256, 1), f32), ((1, 512), f32)
Function = Callable[..., Any]


def cast(x: Any, factor: Any) -> Any:
    return (x.float() * factor).clamp(-448, 448).to(F8)


def both_orders(x: Any, z: Any, rows: Any, columns: Any) -> Any:
    product = x * z
    own = cast(product, rows), product, x > rows, x.float().exp()
    return cast(product, columns).t().contiguous(), *own


def for_a_product(x: Any, s: Any, w: Any, one: Any) -> Any:
    """It takes the stated order."""
    return torch._scaled_mm(cast(x, s).t().contiguous(), w.t(), one, one, out_dtype=bf16)


def with_rows(x: Any, s: Any) -> Any:
    """A scale is along rows: Inductor's kernel for the reduction has the cast."""
    return cast(x, s).t().contiguous(), *quantised.whole(x, -1)


def around_a_product(x: Any, w: Any, s: Any) -> Any:
    """A cast from which a product gives the scale: with both in one kernel, it would wait for itself."""
    first = cast(x, s)
    scale = torch._scaled_mm(first, w.t(), torch.ones(()), torch.ones(()), out_dtype=bf16).float()[:, :1]
    return cast(x, scale).t().contiguous()


TRANSPOSED: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "t": (lambda x, s: cast(x, s).t().contiguous(), (X, COLUMNS)),
    "before the cast": (lambda x, s: cast(x.t().contiguous(), s.t()), (X, COLUMNS)),
    "clone": (
        lambda x, s: cast(x, s).permute(1, 0).clone(memory_format=torch.contiguous_format),
        (X, COLUMNS),
    ),
    "reshape": (lambda x, s: cast(x, s).permute(1, 0).reshape(-1), (X, COLUMNS)),
    "bytes": (lambda x, s: cast(x, s).t().contiguous().view(torch.uint8), (X, COLUMNS)),
    "seen as it was": (lambda x, s: cast(x, s).t().contiguous().t(), (X, COLUMNS)),
    "both orders": (both_orders, (X, X, ROWS, COLUMNS)),
    "beside more tensors": (
        lambda x, z, s: (cast(x, s).t().contiguous(), (x * z).to(F8)),
        (X, X, COLUMNS),
    ),
    "for a product": (for_a_product, (X, COLUMNS, ((64, 256), F8), ((), f32))),
    "scales of columns": (lambda x: quantised.whole(x, 0)[0].t().contiguous(), (X,)),
    "scales in half precision": (lambda x, s: cast(x, s.float()).t().contiguous(), (X, ((1, 512), bf16))),
    "a scale of all": (lambda x: cast(x, 448 / x.abs().amax().float()).t().contiguous(), (X,)),
    "columns, seen as rows": (lambda x: quantised.whole(x.t(), -1)[0].contiguous(), (X,)),
    "beside rows": (with_rows, (X, COLUMNS)),
    "around a product": (around_a_product, (X, ((64, 512), F8), COLUMNS)),
}
NOT_TRANSPOSED: dict[str, tuple[Function, tuple[Any, ...]]] = {
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
    "for a product that takes any": (
        lambda x, s, w: torch._int_mm((x * s).to(torch.int8).t().contiguous(), w),
        (X, COLUMNS, ((256, 64), torch.int8)),
    ),
    "a sum that a kernel ends with": (lambda x: x.sum(0).to(F8).t().contiguous(), (((4, 256, 512), bf16),)),
}


class Regions(TestCase):
    def test_what_is_transposed(self) -> None:
        self.assertExpectedInline(
            told_of(TRANSPOSED),
            """\
t. 256x512: - | -, arg0_1 arg1_1 -> clone
before the cast. 256x512: - | -, arg0_1 arg1_1 -> convert_element_type_1
clone. 256x512: - | -, arg0_1 arg1_1 -> clone
reshape. 256x512: - | -, arg0_1 arg1_1 -> clone
bytes. 256x512: - | -, arg0_1 arg1_1 -> view
seen as it was. 256x512: - | -, arg0_1 arg1_1 -> clone
both orders. 256x512: - | -, arg0_1 arg1_1 arg2_1 arg3_1 -> mul convert_element_type_1 gt exp clone
beside more tensors. 256x512: - | -, arg0_1 arg2_1 -> clone
for a product. 256x512: - | -, arg0_1 arg1_1 -> clone
scales of columns. 256x512: - | -, arg0_1 exp2 -> clone
scales in half precision. 256x512: - | -, arg1_1 arg0_1 -> clone
a scale of all. 256x512: - | -, amax arg0_1 -> clone
columns, seen as rows. 256x512: - | -, arg0_1 exp2 -> clone
beside rows. 256x512: - | -, arg0_1 arg1_1 -> clone
around a product. 256x512: - | -, arg0_1 slice_1 -> clone""",
        )

    def test_what_is_left_to_inductor(self) -> None:
        """What it may lay out as it likes, transposes well, or has in a kernel with a reduction."""
        self.assertExpectedInline(
            told_of(NOT_TRANSPOSED),
            """\
as eager lays it out. nothing
for a loop. nothing
two bytes. nothing
a copy of two bytes. nothing
a sum of two bytes. nothing
a copy of bytes. nothing
heads. nothing
rows of few elements. nothing
few rows. nothing
in place. 256x512: - | amax, arg0_1 arg1_1 -> convert_element_type_1 amax
scales of rows. nothing
a norm. nothing
blocks of another length. axis-class
pieces. nothing
for a product that takes any. nothing
a sum that a kernel ends with. nothing""",
        )


def told_of(cases: dict[str, tuple[Function, tuple[Any, ...]]]) -> str:
    graphs = {name: traced(lambda *x, of=of: of(*x), *specs) for name, (of, specs) in cases.items()}
    return "\n".join(f"{name}. {told(graph)}" for name, graph in graphs.items())


def test_which_operators_take_the_stated_order() -> None:
    assert takes_stated_strides(torch.ops.aten._scaled_mm.default)
    assert not takes_stated_strides(torch.ops.aten.mm.default) and not takes_stated_strides("output")


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
def test_what_is_not_transposed_gives_no_reason(name: str) -> None:
    function, specs = NOT_TRANSPOSED[name]
    assert not list(find_regions(traced_rows(lambda *x: function(*x), *specs)))


def test_what_is_predicted_to_save_nothing_is_left_as_it_is() -> None:
    """At this size, a launch takes longer than moving the bytes."""
    graph = traced(lambda x, s: cast(x, s).t().contiguous(), X, COLUMNS)
    before = snapshot(graph)
    assert declined(graph, min_numel=Options.min_numel).reason.value == "slower" and snapshot(graph) == before
