"""Products that something else needs are rounded for that alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f16, f32, f64, only, traced

from mixorder.ir.program import Compute, LoopProgram
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.schedule.facts import facts_of
from mixorder.transform.fma import form_fma
from mixorder.transform.reorder import merge, reorder
from mixorder.transform.split import split_outer

FULL = ((512, 256), f32)
WEIGHT = ((256,), f32)


def merged(graph: torch.fx.Graph) -> LoopProgram:
    return merge(reorder(split_outer(lower(only(graph)))))


def contracted(graph: torch.fx.Graph) -> LoopProgram:
    return verify(form_fma(merged(graph)), Form.MERGED)


def sums(program: LoopProgram) -> list[str]:
    """What the main loop adds and subtracts, above what it stores."""
    body = program.nests[0].body
    return [str(s) for s in body if isinstance(s, Compute) and s.op in ("add", "sub", "fma", "neg")]


def norm(combine: Any) -> Any:
    """A product `g` that the row's sum needs as well."""

    def function(x: Any, dy: Any, w: Any) -> Any:
        g = dy * w
        return combine(g, x * (g * x).sum(1, keepdim=True), x), (dy * x).sum(0)

    return function


@pytest.mark.parametrize(
    ("name", "combine", "expected"),
    [
        ("sum", lambda g, t, x: g + t, ["fma(%dy_1, %w_1, %mul_2)"]),
        ("first", lambda g, t, x: g - t, ["neg(%mul_2)", "fma(%dy_1, %w_1, %sub.minus)"]),
        ("second", lambda g, t, x: torch.exp(t) - g, ["neg(%dy_1)", "fma(%sub.minus, %w_1, %exp)"]),
        ("second of two products", lambda g, t, x: t - g, ["sub(%mul_2, %mul)"]),
        ("behind others", lambda g, t, x: torch.exp((g + t) * x), ["fma(%dy_1, %w_1, %mul_2)"]),
        ("scaled", lambda g, t, x: torch.sub(g, t, alpha=1), ["neg(%mul_2)", "fma(%dy_1, %w_1, %sub.minus)"]),
        ("nobody's but its own", lambda g, t, x: torch.exp(g) - t, ["sub(%exp, %mul_2)"]),
    ],
)
def test_which_product(name: str, combine: Any, expected: list[str]) -> None:
    """Of two the first, as a compiler has it where nothing else needs either."""
    graph = traced(norm(combine), FULL, FULL, WEIGHT)
    assert [line.split(" = ")[1] for line in sums(contracted(graph))] == expected


@pytest.mark.parametrize(("dtype", "count"), [(f32, 1), (f64, 1), (bf16, 0), (f16, 0)])
def test_only_where_the_result_is_stored_as_it_is_computed(dtype: torch.dtype, count: int) -> None:
    graph = traced(norm(lambda g, t, x: g - t), *(((512, 256), dtype),) * 2, ((256,), dtype))
    assert sum(" = fma(" in line for line in sums(contracted(graph))) == count


def test_what_is_added_up_is_left() -> None:
    """A reduction averages roundings; the compiler contracts its products with the additions."""

    def function(x: Any, dy: Any, w: Any) -> Any:
        g = dy * w
        return x * ((g - x) * g).sum(1, keepdim=True), (g + x).sum(0)

    program = contracted(traced(function, FULL, FULL, WEIGHT))
    assert not any("fma" in line for line in sums(program))


def test_not_where_more_would_be_held_for_it() -> None:
    """Both factors over the reduction, for one product."""

    def function(a: Any, b: Any) -> Any:
        g = torch.sin(a) * torch.cos(b)
        return g - (g * g).sum(1, keepdim=True), g.sum(0)

    graph = traced(function, FULL, FULL)
    before, after = merged(graph), contracted(graph)
    assert after == before

    def held_anyway(a: Any, b: Any) -> Any:
        g = a * b
        total = (g * g).sum(1, keepdim=True)
        return g - total, a * total + b, g.sum(0)

    graph = traced(held_anyway, FULL, FULL)
    before, after = merged(graph), contracted(graph)
    assert after != before and facts_of(after).held_words < facts_of(before).held_words


def test_a_product_that_nothing_needs_any_more_is_gone() -> None:
    def function(x: Any, dy: Any, w: Any) -> Any:
        product = x * dy
        g, total = dy * w, torch.exp(product.sum(1, keepdim=True))
        return g + total, g - total, dy / total, product.sum(0)

    program = contracted(traced(function, FULL, FULL, WEIGHT))
    ops = [s.op for s in program.nests[0].body if isinstance(s, Compute)]
    assert ops.count("fma") == 2 and ops.count("mul") == 1
