"""What Inductor may overwrite of a graph's inputs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._guards import TracingContext
from torch._inductor import config

from mixorder.inductor.graphs import donated, may_overwrite_inputs


def graph_of(*names: str, shared: tuple[int, ...] = ()) -> torch.fx.Graph:
    """A graph of inputs; those in `shared` lie in one tensor's memory."""
    graph, common = torch.fx.Graph(), torch.empty(8)
    for i, name in enumerate(names):
        node = graph.placeholder(name)
        node.meta["val"] = common.view(2, 4) if i in shared else torch.empty(8)
    return graph


def names(graph: torch.fx.Graph, indices: list[int], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    context = SimpleNamespace(fw_metadata=SimpleNamespace(bw_donated_idxs=indices))
    monkeypatch.setattr(TracingContext, "try_get", lambda: context)
    return sorted(node.name for node in donated(graph))


def test_only_activations_of_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch knows the indices already while it compiles the forward, whose inputs are others."""
    inputs = ("primals_1", "mul", "rsqrt", "tangents_1")
    assert names(graph_of(*inputs), [1, 2], monkeypatch) == ["mul", "rsqrt"]
    assert names(graph_of("primals_1", "primals_2", "primals_3"), [1, 2], monkeypatch) == []


def test_not_two_names_for_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of("mul", "view", "rsqrt", "tangents_1", shared=(0, 1))
    assert names(graph, [0, 1, 2], monkeypatch) == ["rsqrt"]


def test_not_with_cuda_graphs() -> None:
    assert may_overwrite_inputs()
    with config.patch({"triton.cudagraphs": True}):
        assert not may_overwrite_inputs()
