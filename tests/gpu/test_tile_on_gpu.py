"""On a GPU: scales and casts by blocks, behind what computes the tensor, beside eager."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lab import quantised
from lab.quantised import RECIPES, different, inputs

from mixorder import planning
from mixorder.report import RegionRecord, collect

pytestmark = pytest.mark.gpu

OURS = {"mixorder": True, "mixorder_strict": True, "mixorder_min_numel": 0, "fx_graph_cache": False}
SHAPES = [(256, 512), (480, 544), (4096, 4096), (2048, 7168), (96, 16384)]


def fused(function: Callable[..., Any], args: Any, mode: str | None = None) -> tuple[Any, RegionRecord]:
    torch._dynamo.reset()
    gc.collect()
    options = OURS | ({"triton.cudagraphs": True} if mode else {})
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


def layer(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    """Two sums of each row."""
    normed, scaled = x.float() * rstd, dy.float() * w.float()
    means = scaled.mean(-1, keepdim=True), (normed * scaled).mean(-1, keepdim=True)
    dx = (rstd * (scaled - means[0] - normed * means[1])).to(x.dtype)
    return *quantised.mx_both(dx), (dy.float() * normed).sum(0).to(w.dtype)


@pytest.mark.parametrize("graphs", [None, "graphs"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", [quantised.norm_backward, layer])
def test_a_norm_in_the_same_kernel(
    function: Any, shape: tuple[int, int], graphs: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiles wait for the sums of their rows, at every launch."""
    monkeypatch.setattr(planning, "behind_row_values", lambda region: None)
    args = inputs(RECIPES["norm_backward"], *shape, "cuda")
    results, record = fused(function, args, graphs)
    assert bool(record.schedule.ahead) == (shape != (96, 16384))  # too wide for its small tiles
    *casts, dw = results
    *eager, dw_of_eager = function(*args)
    for mine, theirs in zip(casts, eager, strict=True):
        assert different(mine, theirs) <= 1e-4 * theirs.numel() + 2
    exact = function(*(a.double() for a in args))[-1]
    error, of_eager = ((d.double() - exact).norm() / exact.norm() for d in (dw, dw_of_eager))
    assert error <= 1.1 * of_eager + 1e-6
