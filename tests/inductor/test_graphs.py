"""What Inductor may overwrite of a graph's inputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._guards import TracingContext
from torch._inductor import config

from mixorder.inductor.graphs import donated, mark_donated, may_overwrite_inputs


def graph_of(*names: str, shared: tuple[int, ...] = ()) -> torch.fx.Graph:
    """A graph of inputs; those in `shared` lie in one tensor's memory."""
    graph, common = torch.fx.Graph(), torch.empty(8)
    for i, name in enumerate(names):
        node = graph.placeholder(name)
        node.meta["val"] = common.view(2, 4) if i in shared else torch.empty(8)
    return graph


def names(
    graph: torch.fx.Graph, indices: list[int], monkeypatch: pytest.MonkeyPatch, is_backward: bool = True
) -> tuple[list[str], Any]:
    """What is donated, and what the key of Inductor's cache says of it."""
    context = SimpleNamespace(fw_metadata=SimpleNamespace(bw_donated_idxs=indices))
    monkeypatch.setattr(TracingContext, "try_get", lambda: context)
    key = mark_donated(graph, is_backward=is_backward)
    return sorted(node.name for node in donated(graph)), key


def test_only_activations_of_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch knows the indices already while it compiles the forward, whose inputs are others."""
    graph = graph_of("primals_1", "mul", "rsqrt", "tangents_1")
    assert names(graph, [1, 2], monkeypatch) == (["mul", "rsqrt"], ((1, True), (2, True)))
    assert names(graph, [1, 2], monkeypatch, is_backward=False) == ([], ())


def test_none_of_a_graph_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = graph_of("mul", "tangents_1"), graph_of("mul", "tangents_1")
    assert names(outer, [0], monkeypatch)[0] == ["mul"] and not donated(inner)


def test_not_two_names_for_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of("mul", "view", "rsqrt", "tangents_1", shared=(0, 1))
    assert names(graph, [0, 1, 2], monkeypatch) == (["rsqrt"], ((0, False), (1, False), (2, True)))


@pytest.mark.parametrize("option", ["triton.cudagraphs", "max_autotune", "max_autotune_gemm"])
def test_not_with_cuda_graphs_or_products_that_are_timed(option: str) -> None:
    assert may_overwrite_inputs()
    with config.patch({option: True}):
        assert not may_overwrite_inputs()
