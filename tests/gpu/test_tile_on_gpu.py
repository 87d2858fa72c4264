"""On a GPU: scales and casts by blocks, behind what computes the tensor, versus eager."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import quantised
from support.compilers import STRICT
from support.quantised import RECIPES, different, inputs

from mixorder import planning
from mixorder.report import RegionRecord, collect
from mixorder.schedule.tile import through_workspace
from mixorder.strategies import STRATEGIES
from mixorder.strategies.tile import TILE

SHAPES = [(256, 512), (480, 544), (4096, 4096), (2048, 7168), (96, 16384)]


def fused(function: Callable[..., Any], args: Any, mode: str | None = None) -> tuple[Any, RegionRecord]:
    torch._dynamo.reset()
    gc.collect()
    options = STRICT | ({"triton.cudagraphs": True} if mode else {})
    with collect() as records:
        compiled = torch.compile(lambda *x: function(*x), options=options, dynamic=False)
        for _ in range(3):
            results = compiled(*args)
    (record,) = (r for r in records if isinstance(r, RegionRecord))
    return results, record


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["mx_both", "mx_transposed", "gelu_backward", "swiglu_backward"])
def test_bytes_are_those_of_eager(name: str, shape: tuple[int, int]) -> None:
    recipe = RECIPES[name]
    args = inputs(recipe, *shape, "cuda")
    results, _ = fused(recipe.function, args)
    for mine, eager in zip(results, recipe.function(*args), strict=True):
        off = different(mine, eager)
        assert off == 0 if recipe.exact else off <= 1e-4 * eager.numel() + 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(512, 1024), (4096, 4096)])
def test_every_number_by_any_scale(shape: tuple[int, int], dtype: torch.dtype) -> None:
    args = quantised.any_scales(*shape, "cuda", dtype)
    results, _ = fused(quantised.by_any_scale, args)
    for mine, eager in zip(results, quantised.by_any_scale(*args), strict=True):
        assert different(mine, eager) == 0


def layer(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    """Two sums of each row."""
    normed, scaled = x.float() * rstd, dy.float() * w.float()
    means = scaled.mean(-1, keepdim=True), (normed * scaled).mean(-1, keepdim=True)
    dx = (rstd * (scaled - means[0] - normed * means[1])).to(x.dtype)
    return *quantised.mx_both(dx), (dy.float() * normed).sum(0).to(w.dtype)


@pytest.mark.parametrize("graphs", [None, "graphs"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", [quantised.norm_backward, layer])
def test_a_norm_in_the_same_kernel(function: Any, shape: tuple[int, int], graphs: str | None) -> None:
    """The tiles wait for the sums of their rows, at every launch."""
    args = inputs(RECIPES["norm_backward"], *shape, "cuda")
    results, record = fused(function, args, graphs)
    assert record.schedule.produced
    *casts, dw = results
    *eager, dw_of_eager = function(*args)
    for mine, theirs in zip(casts, eager, strict=True):
        assert different(mine, theirs) <= 1e-4 * theirs.numel() + 2
    exact = function(*(a.double() for a in args))[-1]
    error, of_eager = ((d.double() - exact).norm() / exact.norm() for d in (dw, dw_of_eager))
    assert error <= 1.1 * of_eager + 1e-6


@pytest.mark.parametrize("shape", [(256, 512), (1024, 1152), (4096, 4096)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["mx_both", "mx_transposed", "mx4_both", "blocks_both", "swiglu_backward"])
def test_bytes_with_staged_scales(name: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Results are allocated without being written, and the second kernel may start before the first ends."""
    recipe = RECIPES[name]
    args = [
        a.to(dtype) if a.is_floating_point() and a.dim() == 2 else a for a in inputs(recipe, *shape, "cuda")
    ]

    def choose(*facts: Any) -> Any:
        return through_workspace(TILE.choose(*facts), facts[0]).changed(dependent=True)

    tiles = tuple(dataclasses.replace(s, choose=choose) if s is TILE else s for s in STRATEGIES)
    with planning.planning_with(strategies=tiles):
        results, record = fused(recipe.function, args)
    assert record.schedule.results and len(record.kernels) == 2
    for mine, eager in zip(results, recipe.function(*args), strict=True):
        off = different(mine, eager)
        assert off == 0 if recipe.exact else off <= 1e-4 * eager.numel() + 1


def test_gelu_backward_rounds_as_in_eager() -> None:
    """Products of the operator are contracted, as in its own kernel."""
    torch.manual_seed(0)
    x, dy = (torch.randn(4096, 4096, device="cuda").bfloat16() for _ in range(2))

    def function(x: Any, dy: Any) -> Any:
        dx = torch.ops.aten.gelu_backward(dy, x, approximate="tanh")
        return *quantised.mx_both(dx), dx

    results, record = fused(function, [x, dy])
    assert record.kernels[0].text.count("tl.fma(") == 4
    assert different(results[-1], function(x, dy)[-1]) <= 1e-5 * x.numel()  # 8.7e-5 if each product rounds


ROWS_OF_NAN = """
import re

import torch
from support import quantised

from mixorder import search
from mixorder.codegen import tile
from mixorder.report import RegionRecord, collect

search.remainder_us = lambda *_: 1e6
if {late}:  # no producer computes anything
    roles = tile.roles
    tile.roles = lambda *args: (re.sub(r"row_values.*", "pass", line) for line in roles(*args))

def function(x, dy):
    dx = dy - x * dy.amax(-1, keepdim=True)
    return *quantised.mx_both(dx.to(torch.bfloat16)), (dy * x).sum(0)

torch.manual_seed(0)
x, dy = (torch.rand(4096, 4096, device="cuda") + 1 for _ in range(2))
dy.view(torch.int32)[1001] = -1  # its largest is NaN, with the bits of an empty slot
compiled = torch.compile(lambda *a: function(*a), options={options}, dynamic=False)
with collect() as records:
    compiled(x, dy)
(record,) = (r for r in records if isinstance(r, RegionRecord))
assert record.schedule.produced and record.kernels[0].text.count("row_values(") == (2 if {late} else 3)
*casts, sums = function(x, dy)
for _ in range(10):  # who waits for whom is another matter each time
    results = compiled(x, dy)
    assert all(quantised.different(a, b) == 0 for a, b in zip(results[:-1], casts, strict=True))
    assert results[-1].isnan().all()
"""


@pytest.mark.parametrize("late", [False, True], ids=["in time", "too late"])
def test_no_wait_is_without_end(late: bool) -> None:
    """In a process of its own: a kernel that waits for ever cannot be ended otherwise."""
    text = ROWS_OF_NAN.format(late=late, options=STRICT)
    paths = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": paths}, check=True, timeout=180
    )
