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
from grids import crossed
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


@pytest.mark.parametrize(("name", "dtype"), crossed(graphs.NORMS, [f32, bf16]))
def test_a_norm_that_is_recomputed_has_the_bits_of_the_forward(name: str, dtype: torch.dtype) -> None:
    """Casts round in both graphs: run node by node, the forward rounds where Inductor's kernel would not."""
    rounding = torch._inductor.config.patch(emulate_precision_casts=True)
    with rounding, collect() as records:
        first, second = twice(norm(name, dtype), torch.randn(ROWS, COLS).to(dtype))
    assert any(isinstance(r, RegionRecord) for r in records) == (name != "layer_plain")
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["layer", "rms"])
def test_rows_that_inductor_pads(name: str) -> None:
    """Rows of 1100 elements in bfloat16 may be stored with gaps."""
    module = graphs.randomised(graphs.NORMS[name](1100), bf16)
    with torch._inductor.config.patch(emulate_precision_casts=True):
        first, second = twice(module, torch.randn(6, 1100).to(bf16))
    assert torch.equal(first, second)


@pytest.mark.parametrize(("name", "dtype"), crossed(graphs.NORMS, [f32, bf16]))
def test_sums_along_rows_are_saved(name: str, dtype: torch.dtype) -> None:
    """Four bytes a row for each: a LayerNorm has two of them."""
    module = norm(name, dtype)
    saved, without = divided(module, dtype), divided(module, dtype, OFF)
    extra = Counter(saved.given) - Counter(without.given)
    assert saved.sums == 0 and without.sums > 0
    assert extra == {(ROWS, 1): 2 if name.startswith("layer") else 1}
    assert not saved.rounded


SAVED: dict[str, Function] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "group": lambda x: F.group_norm(x.view(4, 8, -1), 2).view(x.shape),
    "batch": lambda x: F.batch_norm(x, None, None, training=True),
    "centred": lambda x: x - x.sum(-1)[:, None] / COLS,
    "router of a norm": lambda x: F.rms_norm(x, (COLS,)).topk(8).values.softmax(-1).sum(-1, True) * x,
}


@pytest.mark.parametrize("name", SAVED)
def test_other_small_sums_are_saved(name: str) -> None:
    of_selection = {"softmax": 1, "router of a norm": 1}  # the largest element has no other bits
    assert divided(SAVED[name]).sums == of_selection.get(name, 0)
    assert divided(SAVED[name], options=OFF).sums > of_selection.get(name, 0)


def blocks(x: torch.Tensor) -> torch.Tensor:
    """Sums of two elements each: half as many bytes as the tensor."""
    return (x.view(ROWS, -1, 2) * x.view(ROWS, -1, 2).sum(-1, keepdim=True)).view(x.shape)


def test_what_takes_many_bytes_is_recomputed() -> None:
    assert divided(blocks).sums == 1


def experts(x: torch.Tensor) -> torch.Tensor:
    """A weighted sum of two products, as of the experts of a token."""
    products = torch.stack((x.sin(), x.cos()), 1) * torch.sigmoid(x[:, :2, None])
    return products.sum(1) * x


def of_parts(x: torch.Tensor) -> torch.Tensor:
    parts = x.view(ROWS, 2, -1)
    return (parts * (parts.sin() * parts.mean(-1, keepdim=True)).sum(1, keepdim=True)).view(x.shape)


def must_recompute() -> Any:
    policy = CheckpointPolicy.MUST_RECOMPUTE
    return create_selective_checkpoint_contexts(lambda *_, **__: policy)


@pytest.mark.parametrize(
    ("function", "how"),
    [(experts, {}), (of_parts, {}), (norm("layer"), {"context_fn": must_recompute})],
    ids=["experts", "parts", "norm"],
)
def test_what_is_recomputed_is_left_to_inductor(function: Function, how: dict[str, Any]) -> None:
    first, second = twice(function, torch.randn(ROWS, COLS), **how)
    assert torch.equal(first, second)


def test_the_smallest_sums_are_saved_first() -> None:
    backward = divided(lambda x: F.rms_norm(blocks(x), (COLS,)))
    assert backward.sums == 1 and (ROWS, 1) in backward.given


@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE])
def test_a_policy_that_forbids_saving_is_followed(policy: CheckpointPolicy) -> None:
    contexts = functools.partial(create_selective_checkpoint_contexts, lambda *_, **__: policy)
    sums = divided(norm("layer"), context_fn=contexts).sums
    assert sums == (2 if policy is CheckpointPolicy.MUST_RECOMPUTE else 0)


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_readers_of_a_sum_in_half_precision_round_it_in_both_graphs(dtype: torch.dtype) -> None:
    """The forward has such a sum in float32 where it is computed."""
    backward = divided(lambda x: x * torch.rsqrt((x * x).mean(-1)[:, None] + 1e-3), dtype)
    assert backward.sums == 0 and backward.rounded == {"add_rounded"}


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_a_sum_in_half_precision_that_a_reduction_reads_is_recomputed(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.view(ROWS, 2, -1)
        s = y.sum(-1, keepdim=True)
        return (y * s + s.sum(1, keepdim=True)).view(x.shape)

    assert divided(function, dtype).sums == (1 if dtype == bf16 else 0)
