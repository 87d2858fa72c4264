"""A graph that Inductor cannot compile with our regions in it is compiled without them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as config
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.graph import GraphLowering
from torch.fx import GraphModule

from mixorder.inductor import hooks as install
from mixorder.inductor.fallback import Untouched
from mixorder.report import collect

OPTIONS = {"mixorder": True, "mixorder_interpret": True, "mixorder_min_numel": 0}


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Inductor fails on graphs with our kernels. Gives whether each graph that it was handed had one."""
    original, seen = GraphLowering.run, list[bool]()
    monkeypatch.setattr(install, "_runs_kernels", lambda graph: True)

    def run(self: GraphLowering, *args: Any) -> Any:
        seen.append(any("triton_kernel_wrapper" in str(n.target) for n in self.module.graph.nodes))
        assert not config.triton.mix_order_reduction
        if seen[-1]:
            raise TypeError("list indices must be integers")
        return original(self, *args)

    monkeypatch.setattr(GraphLowering, "run", run)
    torch._dynamo.reset()
    counters["mixorder"].clear()
    with config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield seen


def gradients(step: Callable[[Tensor], Tensor], model: nn.Module) -> list[Tensor]:
    x = torch.randn(48, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return list(torch.autograd.grad(step(x).square().sum(), [x, *model.parameters()]))


def test_the_graph_is_compiled_without_and_that_is_said_once(fails: list[bool]) -> None:
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.LayerNorm(64))
    expected = gradients(model, model)
    step = torch.compile(model, options=OPTIONS)
    with warnings.catch_warnings(record=True) as caught, collect() as records:
        warnings.simplefilter("always")
        found = gradients(step, model)
        again = gradients(step, model)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-4)
    told = [str(w.message) for w in caught if "mixorder" in str(w.message)]
    assert len(told) == 1 and "2 regions" in told[0] and "list indices must be integers" in told[0]
    assert fails == [False, True, False], "the forward; the backward twice"
    assert counters["mixorder"]["fused_regions"] == 0
    assert counters["mixorder"]["given_back_regions"] == 2 and records == []


def test_strict_mode_raises(fails: list[bool]) -> None:
    model = nn.LayerNorm(64)
    step = torch.compile(model, options={**OPTIONS, "mixorder_strict": True})
    with pytest.raises(Exception, match="list indices must be integers"):
        gradients(step, model)
    assert fails[-1] and counters["mixorder"]["fused_regions"] >= 1


def test_an_error_of_a_graph_without_regions_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0

    def run(self: GraphLowering, *args: Any) -> Any:
        nonlocal tried
        tried += 1
        raise TypeError("no such luck")

    torch._dynamo.reset()
    monkeypatch.setattr(GraphLowering, "run", run)
    with config.patch(fx_graph_cache=False), pytest.raises(Exception, match="no such luck"):
        torch.compile(torch.sin, options=OPTIONS)(torch.randn(8))
    assert tried == 1


def test_the_graphs_of_all_modules_come_back() -> None:
    inner = torch.fx.symbolic_trace(lambda x: x + 1)
    holder = nn.Module()
    holder.inner = inner
    graph = torch.fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    module = GraphModule(holder, graph)
    untouched = Untouched(module)
    for changed in (module, module.inner):
        for node in list(changed.graph.nodes)[1:-1]:
            node.replace_all_uses_with(next(iter(changed.graph.nodes)))
            changed.graph.erase_node(node)
        changed.recompile()
    assert module(torch.ones(1)) == 1
    untouched.restore()
    assert module(torch.ones(1)) == 2
    module.graph.lint()
