"""Values in half precision that are compared with versions of themselves: as eager does, in both graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, f16
from grids import crossed
from running import ON, Tensors, check, compiled

from mixorder.report import RegionRecord, collect

ROWS, COLS = 60, 128
Chain = Callable[[Any, Any], Any]

CHAINS: dict[str, Chain] = {
    "product": lambda x, w: x * w,
    "products": lambda x, w: x * w * w,
    "behind RMSNorm": lambda x, w: F.rms_norm(x, (COLS,), w, 1e-6) * w,
    "behind LayerNorm": lambda x, w: F.layer_norm(x, (COLS,), w) * w,
}


HEADS: dict[str, Chain] = {
    "amax": lambda y, w: (y.amax(-1), (y * w).sum(0)),
    "amin": lambda y, w: (y.amin(-1), (y * w).sum(0)),
    "max norm": lambda y, w: (torch.linalg.vector_norm(y, float("inf"), -1), (y * w).sum(0)),
    "largest": lambda y, w: (torch.where(y == y.amax(-1, keepdim=True), y * w, 0).sum(0),),
    "distance": lambda y, w: ((y - y.amax(-1, keepdim=True)).abs(), (y * w).sum(0)),
}


def inputs(dtype: torch.dtype) -> Tensors:
    return torch.randn(ROWS, COLS).to(dtype), torch.randn(COLS).to(dtype)


def step(function: Chain, args: Tensors) -> Tensors:
    """What a function gives, and the gradients of its arguments."""
    args = tuple(a.detach().requires_grad_() for a in args)
    out = function(*args)
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(t.shape, generator=generator).to(args[0].dtype) for t in out]
    return tuple(t.detach() for t in (*out, *torch.autograd.grad(out, args, seeds)))


PAIRS = crossed(CHAINS, HEADS)


@pytest.mark.parametrize(
    ("chain", "head", "dtype"), [(*pair, (bf16, f16)[i % 2]) for i, pair in enumerate(PAIRS)]
)
def test_gradients_are_those_of_the_rounded_values(chain: str, head: str, dtype: torch.dtype) -> None:
    args = inputs(dtype)

    def function(x: Any, w: Any) -> Any:
        return HEADS[head](CHAINS[chain](x, w), w)

    def exact(x: Any, w: Any) -> Any:
        """In float64, but for which elements are equal: that of eager's rounded values."""
        y = CHAINS[chain](x, w)
        return HEADS[head](y + (CHAINS[chain](*args).double() - y).detach(), w)

    with collect() as records:
        ours = step(compiled(ON)(function), args)
    assert any(isinstance(r, RegionRecord) for r in records)
    wide = tuple(a.double() for a in args)
    check(ours, step(function, args), step(exact, wide), ROWS)


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_what_eager_gives_exactly_is_given_exactly(dtype: torch.dtype) -> None:
    """Counts, signs and positions of what is equal."""

    def function(x: Any, w: Any) -> Any:
        y = x * w * w
        most = y.amax(-1, keepdim=True)
        equal, near = y == most, torch.isclose(y, most)
        exact = equal.sum(-1), near.sum(0), torch.sign(y - most), (y / most).to(torch.int32), y % most
        return *exact, (y - most).float().abs().amax(0)

    args = inputs(dtype)
    with torch.no_grad(), collect() as records:
        ours = compiled(ON)(function)(*args)
    assert any(isinstance(r, RegionRecord) for r in records)
    for mine, theirs in zip(ours, function(*args), strict=True):
        assert torch.equal(mine, theirs)


def test_both_graphs_say_that_they_round() -> None:
    """By the names of nodes: caches of graphs do not compare metadata."""
    seen: list[set[str]] = []

    def spy(graph: torch.fx.Graph) -> None:
        seen.append({n.name for n in graph.nodes if n.meta.get("low_precision_pointwise_barrier")})

    def function(x: Any, w: Any) -> Any:
        return HEADS["amax"](x * w, w)

    with torch._inductor.config.patch(post_grad_custom_post_pass=spy):
        step(compiled(ON)(function), inputs(bf16))
    assert seen == [{"mul_rounded"}, {"mul_rounded", "eq_rounded"}]
