"""Checkpointed norms: the backward has the bits of the forward, for a few saved bytes."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import graphs
import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, f16, f32
from recomputed import both, forward_and_recomputed
from running import OFF, ON, Tensors, compiled
from torch import nn
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from mixorder.inductor.graphs import ROUNDED
from mixorder.options import Options
from mixorder.region.nodes import reduction_kind
from mixorder.report import RegionRecord, collect

ROWS, COLS = 64, 128
Function = Callable[..., Any]


def twice(function: Function, x: torch.Tensor, options: Options = ON, **how: Any) -> Tensors:
    """What a function gives in a forward, and what it gives where its backward recomputes it."""
    step = compiled(options)(lambda *args: checkpoint(both, function, *args, use_reentrant=False, **how))
    return forward_and_recomputed(step, x)


@dataclasses.dataclass
class Divided:
    """What the graph of a backward gets and computes. `given`: the shapes of inputs that are no gradients.
    `sums`: how many sums it has of what depends on no gradient. `rounded`: the names of what rounds."""

    given: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    sums: int = 0
    rounded: set[str] = dataclasses.field(default_factory=set)

    def look(self, graph: Graph) -> None:
        """Note what a graph has; a forward is overwritten by its backward."""
        late: set[Node] = set()
        for node in graph.nodes:
            if node.name.startswith("tangents") or not late.isdisjoint(node.all_input_nodes):
                late.add(node)
        early = [n for n in graph.nodes if n not in late]
        self.given = [tuple(n.meta["val"].shape) for n in early if n.op == "placeholder"]
        self.sums = sum(reduction_kind(n) is not None for n in early)
        self.rounded = {n.name for n in graph.nodes if n.meta.get(ROUNDED)}


def divided(function: Function, dtype: torch.dtype = f32, options: Options = ON, **how: Any) -> Divided:
    backward = Divided()
    with torch._inductor.config.patch(post_grad_custom_post_pass=backward.look):
        twice(function, torch.randn(ROWS, COLS).to(dtype), options, **how)
    return backward


def norm(name: str, dtype: torch.dtype = f32) -> nn.Module:
    return graphs.randomised(graphs.NORMS[name](COLS), dtype)


def blocks(x: torch.Tensor) -> torch.Tensor:
    """Sums of two elements each: half as many bytes as the tensor."""
    return (x.view(ROWS, -1, 2) * x.view(ROWS, -1, 2).sum(-1, keepdim=True)).view(x.shape)


def experts(x: torch.Tensor) -> torch.Tensor:
    """A weighted sum of two products, as of the experts of a token."""
    products = torch.stack((x.sin(), x.cos()), 1) * torch.sigmoid(x[:, :2, None])
    return products.sum(1) * x


def of_parts(x: torch.Tensor) -> torch.Tensor:
    parts = x.view(ROWS, 2, -1)
    return (parts * (parts.sin() * parts.mean(-1, keepdim=True)).sum(1, keepdim=True)).view(x.shape)


def summed_again(x: torch.Tensor) -> torch.Tensor:
    """A reduction reads a sum, which is in half precision if x is."""
    y = x.view(ROWS, 2, -1)
    s = y.sum(-1, keepdim=True)
    return (y * s + s.sum(1, keepdim=True)).view(x.shape)


def root(x: torch.Tensor) -> torch.Tensor:
    """In half precision, the forward has such a sum in float32 where it is computed."""
    return x * torch.rsqrt((x * x).mean(-1)[:, None] + 1e-3)


def with_policy(policy: CheckpointPolicy) -> dict[str, Any]:
    contexts = functools.partial(create_selective_checkpoint_contexts, lambda *_, **__: policy)
    return {"context_fn": contexts}


MUST, PREFER = (with_policy(p) for p in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE))
# Inductor may store rows of 1100 elements in bfloat16 with gaps.
SAME_BITS: dict[str, tuple[Function, tuple[int, int], torch.dtype, dict[str, Any]]] = {
    **{
        f"{name} of {dtype}": (norm(name, dtype), (ROWS, COLS), dtype, {})
        for name, dtype in zip(graphs.NORMS, (f32, bf16, f32, bf16, bf16), strict=True)
    },
    "padded rows": (graphs.randomised(nn.LayerNorm(1100), bf16), (6, 1100), bf16, {}),
    "experts": (experts, (ROWS, COLS), f32, {}),
    "parts": (of_parts, (ROWS, COLS), f32, {}),
    "must be recomputed": (norm("layer"), (ROWS, COLS), f32, MUST),
}


@pytest.mark.parametrize("name", SAME_BITS)
def test_what_is_recomputed_has_the_bits_of_the_forward(name: str) -> None:
    """Casts round in both graphs: run node by node, the forward rounds where Inductor's kernel would not."""
    function, shape, dtype, how = SAME_BITS[name]
    rounding = torch._inductor.config.patch(emulate_precision_casts=True)
    with rounding, collect() as records:
        first, second = twice(function, torch.randn(shape).to(dtype), **how)
    if name.partition(" ")[0] in graphs.NORMS:
        assert any(isinstance(r, RegionRecord) for r in records) == ("layer_plain" not in name)
    assert torch.equal(first, second)


@pytest.mark.parametrize(("name", "dtype"), zip(graphs.NORMS, (bf16, f32, bf16, f32, bf16), strict=True))
def test_sums_along_rows_are_saved(name: str, dtype: torch.dtype) -> None:
    """Four bytes a row for each: a LayerNorm has two of them."""
    module = norm(name, dtype)
    saved, without = divided(module, dtype), divided(module, dtype, OFF)
    extra = Counter(saved.given) - Counter(without.given)
    assert saved.sums == 0 and without.sums > 0
    assert extra == {(ROWS, 1): 2 if name.startswith("layer") else 1}
    assert not saved.rounded


# How many sums are recomputed. The largest element has no other bits; what takes many bytes is not saved, nor
# what a policy forbids. The smallest sums are saved first.
RECOMPUTED: dict[str, tuple[Function, torch.dtype, dict[str, Any], int]] = {
    "softmax": (lambda x: torch.softmax(x, -1), f32, {}, 1),
    "group": (lambda x: F.group_norm(x.view(4, 8, -1), 2).view(x.shape), f32, {}, 0),
    "batch": (lambda x: F.batch_norm(x, None, None, training=True), f32, {}, 0),
    "centred": (lambda x: x - x.sum(-1)[:, None] / COLS, f32, {}, 0),
    "router of a norm": (
        lambda x: F.rms_norm(x, (COLS,)).topk(8).values.softmax(-1).sum(-1, True) * x,
        f32,
        {},
        1,
    ),
    "blocks": (blocks, f32, {}, 1),
    "blocks in a norm": (lambda x: F.rms_norm(blocks(x), (COLS,)), f32, {}, 1),
    "must be recomputed": (norm("layer"), f32, MUST, 2),
    "prefers to recompute": (norm("layer"), f32, PREFER, 0),
    "root of bfloat16": (root, bf16, {}, 0),
    "root of float16": (root, f16, {}, 0),
    "summed again": (summed_again, f32, {}, 0),
    "summed again in half precision": (summed_again, bf16, {}, 1),
}


@pytest.mark.parametrize("name", RECOMPUTED)
def test_small_sums_are_saved(name: str) -> None:
    function, dtype, how, count = RECOMPUTED[name]
    backward = divided(function, dtype, **how)
    assert backward.sums == count
    assert divided(function, dtype, OFF, **how).sums >= max(count, 1)
    assert backward.rounded == {"add_rounded"} or function is not root
    assert name != "blocks in a norm" or (ROWS, 1) in backward.given
