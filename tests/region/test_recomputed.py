"""What a region leaves to Inductor because the forward has computed it as well: its bits may matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import NORMS, bf16, f32, find, graphs_of, path_through_outside, randomised, traced
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

from mixorder.errors import Decline, DeclineReason
from mixorder.region.find import find_regions
from mixorder.region.nodes import operands, reduction_kind
from mixorder.region.region import Region

ROWS, COLS = 512, 64


class Kept(torch.autograd.Function):
    """Gives what its backward finds of `y`, a half more of it, as the gradient of `probe`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, probe: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return y + probe

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return grad, y * 1.5


class Checkpointed(nn.Module):
    """A norm whose forward runs again in the backward, with what reads its result."""

    def __init__(self, norm: Callable[[int], nn.Module], reader: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.norm, self.reader = norm(COLS), reader
        self.probe = nn.Parameter(torch.zeros(ROWS, COLS))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda x: self.reader(self.norm(x), self.probe), x, use_reentrant=False)  # type: ignore[no-any-return]


def routed(y: Tensor, _: Tensor) -> Tensor:
    """Each row keeps its largest two elements."""
    chosen = y.topk(2, -1).indices
    return torch.zeros_like(y).scatter(-1, chosen, y.gather(-1, chosen))


READERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "topk": routed,
    "argmax": lambda y, _: y * F.one_hot(y.argmax(-1), COLS),
    "sort": lambda y, _: y * y.sort(-1).indices,
    "a comparison": lambda y, _: y * (y > 0.5) + y.sin(),
    "round": lambda y, _: y * torch.round(y),
    "floor division": lambda y, _: y * torch.div(y, 0.3, rounding_mode="floor"),
    "a cast to integers": lambda y, _: y * y.to(torch.int32),
    "its gradient": Kept.apply,
    "a product": lambda y, _: (y @ torch.ones(COLS, COLS, dtype=y.dtype)).sin(),
}


def graph_of(norm: str, reader: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> Graph:
    return graphs_of(randomised(Checkpointed(NORMS[norm], reader), dtype), (ROWS, COLS), dtype)[-1]


def of_the_forward(graph: Graph) -> set[Node]:
    """What a backward computes without its tangents."""
    late: set[Node] = set()
    for n in graph.nodes:
        if n.name.startswith("tangents") or any(a in late for a in operands(n)):
            late.add(n)
    return set(graph.nodes) - late


def paired(graph: Graph) -> Region:
    (region,) = (region for region in find(graph) if region.inner)
    assert path_through_outside(region) is None
    return region


@pytest.mark.parametrize(
    ("norm", "reader", "dtype"),
    [
        *(("rms", reader, f32) for reader in READERS),
        ("layer", "round", f32),
        ("layer", "its gradient", bf16),
        ("hf", "round", bf16),
        ("hf", "its gradient", bf16),
    ],
)
def test_statistics_behind_a_choice_are_read(norm: str, reader: str, dtype: torch.dtype) -> None:
    """The pair of dx and dw is fused with the statistics that Inductor computes as in the forward."""
    region = paired(graph := graph_of(norm, READERS[reader], dtype))
    forward = of_the_forward(graph)
    assert not [n for n in region.nodes if n in forward and reduction_kind(n) is not None]
    assert forward.isdisjoint(region.outputs)


@pytest.mark.parametrize("norm", ["layer", "rms", "hf"])
def test_statistics_behind_formulas_of_gradients_alone_are_computed(norm: str) -> None:
    graph = graph_of(norm, lambda y, _: y.sin(), f32)
    region, forward = paired(graph), of_the_forward(graph)
    assert [n for n in region.nodes if n in forward and reduction_kind(n) is not None]
    assert forward.isdisjoint(region.outputs)


class Sums(nn.Module):
    """A sum along each axis, whose backward needs both."""

    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            return checkpoint(self.sums, x, use_reentrant=False)  # type: ignore[no-any-return]
        return self.sums(x)

    @staticmethod
    def sums(x: Tensor) -> Tensor:
        return x.exp().sum(-1).sin().sum() + x.exp().sum(0).sin().sum()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_sums_of_a_forward_that_are_computed_again_are_left(checkpointed: bool) -> None:
    forward, _ = graphs_of(Sums(checkpointed), (512, 256))
    found = list(find_regions(forward))
    if checkpointed:
        (decline,) = found
        assert isinstance(decline, Decline) and decline.reason is DeclineReason.RECOMPUTED
    else:
        (region,) = found
        assert isinstance(region, Region) and len(region.inner) == len(region.outer) == 1


def test_the_largest_elements_have_the_same_bits_in_any_order() -> None:
    graph = traced(lambda x: (x.amax(-1), x.amax(0), x.sum(-1)), ((512, 256), f32))
    for n in graph.nodes:
        n.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    (region,) = (found for found in find_regions(graph) if isinstance(found, Region))
    assert [n.target for n in region.nodes] == [torch.ops.aten.amax.default] * 2
