"""Results that are parts of one tensor, as the FX graph runs them: a kernel writes rows that lie apart."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, f32
from grids import crossed
from joining import JOINS, ORDERS, PARTS, SHAPES, program
from running import OFF, ON, check, compiled, of_several
from torch import nn
from torch.nn.functional import pad

from mixorder.plugin import compile_for_interpreter
from mixorder.report import RegionRecord, collect


@pytest.mark.parametrize(("part", "join", "order"), crossed(PARTS, JOINS, ORDERS)[::2])
def test_joined_results(part: str, join: str, order: str) -> None:
    function = program(part, join, order)
    given = [torch.randn(shape) for shape in SHAPES]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=compile_for_interpreter(ON), dynamic=False)
    with torch.no_grad(), collect() as records:
        ours, exact = compiled(*given), function(*(t.double() for t in given))
    assert [type(r) for r in records] == [RegionRecord] * 2
    copied = [r.traffic.joined > 0 for r in records if isinstance(r, RegionRecord)]
    assert copied == [join == "cat of permuted"] * 2
    for result, truth in zip(ours, exact, strict=True):
        torch.testing.assert_close(result.double(), truth, atol=1e-4, rtol=1e-4)


def test_a_part_that_is_read_where_it_was_put() -> None:
    """The second slice is computed by the region, and the first one, of rows with gaps, is read by it."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part = pad(x.sin(), (1, 1), value=0.5)[..., 1:][..., : x.shape[-1]] * y
        scaled = part * (x * y).sum(-1, keepdim=True)
        return part, (scaled * part).sum(0), (scaled * scaled).sum(-1)

    given = [torch.randn(21, 768) for _ in range(2)]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=compile_for_interpreter(ON), dynamic=False)
    with torch.no_grad(), collect() as records:
        ours, exact = compiled(*given), function(*(t.double() for t in given))
    assert [type(r) for r in records] == [RegionRecord]
    for result, truth in zip(ours, exact, strict=True):
        torch.testing.assert_close(result.double(), truth, atol=1e-3, rtol=1e-4)


class Piecewise(nn.Module):
    """A function of itself and a tensor; it has vectors of so many elements."""

    def __init__(self, function: Callable[..., Any], sizes: Sequence[int]) -> None:
        super().__init__()
        self.function = function
        self.vectors = nn.ParameterList(torch.randn(n) for n in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *[self.vectors[i] for i in range(len(self.vectors))])  # for torch 2.11


def swiglu(h: Any, bias: Any) -> Any:
    gate, up = (h + bias).chunk(2, -1)
    return F.silu(gate) * up


def behind_a_product(x: Any, bias: Any) -> Any:
    gate, up = F.linear(x, x[0, :1].expand(20, -1), bias).chunk(2, -1)
    return F.gelu(gate) * up


def joint(h: Any, bias: Any, weight: Any) -> Any:
    q, k, v = (h + bias).chunk(3, -1)
    q, k = (F.rms_norm(t, t.shape[-1:], weight, 1e-6) for t in (q, k))
    return torch.cat([q, k, v], -1)


def with_sinks(x: Any, sinks: Any) -> Any:
    sinks = sinks.view(1, -1, 1, 1).expand(x.shape[0], -1, x.shape[2], -1)
    return torch.cat([x, sinks], -1).softmax(-1)[..., :-1]


def with_masked_sinks(x: Any, sinks: Any) -> Any:
    sinks = sinks.view(1, -1, 1, 1).expand(x.shape[0], -1, x.shape[2], -1)
    later = torch.ones(x.shape[2:], dtype=torch.bool).triu(1)
    joined = torch.cat([x.masked_fill(later, torch.finfo(x.dtype).min), sinks], -1)
    joined = joined - joined.max(-1, keepdim=True).values
    return joined.softmax(-1)[..., :-1] * 2


def with_shifted_sinks(x: Any, sinks: Any) -> Any:
    joined = torch.cat([x * 2, sinks.view(1, -1, 1, 1).expand(x.shape[0], -1, x.shape[2], -1)], -1)
    return (joined - joined.amax(-1, keepdim=True)).softmax(-1)[..., :-1]


PIECEWISE: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], str]] = {
    "swiglu": (swiglu, (37, 48), (48,), "37x24"),
    "swiglu of an odd size": (swiglu, (3, 13, 66), (66,), "39x33"),
    "glu behind a product": (behind_a_product, (5, 7, 20), (20,), "35x10"),
    "norms of a projection": (joint, (2, 11, 96), (96, 32), "22x32"),
    "sinks": (with_sinks, (2, 3, 5, 16), (3,), "row 2 x batch 3 x row 5 x column 16"),
    "sinks of an odd size": (with_sinks, (3, 2, 7, 33), (2,), "row 3 x batch 2 x row 7 x column 33"),
    "sinks below the largest": (with_shifted_sinks, (2, 3, 4, 8), (3,), "row 2 x batch 3 x row 4 x column 8"),
    "sinks behind a mask": (with_masked_sinks, (2, 3, 9, 9), (3,), "row 2 x batch 3 x row 9 x column 9"),
}


@pytest.mark.parametrize(("how", "dtype"), [(how, dtype) for how in PIECEWISE for dtype in (f32, bf16)])
def test_pieces_are_reduced_by_themselves(how: str, dtype: torch.dtype) -> None:
    function, shape, sizes, space = PIECEWISE[how]
    module = Piecewise(function, sizes).to(dtype)
    x = torch.randn(shape).to(dtype)
    dy = torch.randn_like(module(x))
    with collect() as records:
        ours = of_several(compiled(ON)(module), module, (x,), dy)
    assert {str(r.space) for r in records if isinstance(r, RegionRecord)} == {space}, records
    wide = copy.deepcopy(module).double()
    exact = of_several(wide, wide, (x.double(),), dy.double())
    stock = of_several(compiled(OFF)(module), module, (x,), dy)
    check(ours, stock, exact, x.numel())
