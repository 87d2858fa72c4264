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
from mixorder.transform.reorder import reorder
from mixorder.transform.split import split_outer

FULL = ((512, 256), f32)


def merged(graph: torch.fx.Graph) -> LoopProgram:
    return reorder(split_outer(lower(only(graph))))


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


@pytest.mark.parametrize(("dtype", "count"), [(f32, 1), (f64, 1), (bf16, 0), (f16, 0)])
def test_only_where_the_result_is_stored_as_it_is_computed(dtype: torch.dtype, count: int) -> None:
    graph = traced(norm(lambda g, t, x: g - t), *(((512, 256), dtype),) * 2, ((256,), dtype))
    assert sum(" = fma(" in line for line in sums(contracted(graph))) == count


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
    assert after != before and facts_of(after).held.words < facts_of(before).held.words
