"""`mixorder_interpret` as a plain option of `torch.compile`."""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config as config
from running import check, exact_gradients
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.async_compile import AsyncCompile

from mixorder.inductor import hooks as install

OPTIONS = {"mixorder": True, "mixorder_interpret": True, "mixorder_strict": True, "mixorder_min_numel": 0}


@pytest.mark.parametrize("patched", [False, True])
def test_the_option_alone_runs_the_kernels(patched: bool, poisoned: list[int]) -> None:
    """Given to the compile, or in force around the forward only."""
    module = nn.LayerNorm(96)
    x, dy = torch.randn(70, 96, requires_grad=True), torch.randn(70, 96)
    torch._dynamo.reset()
    with config.patch(OPTIONS if patched else {}):
        y = torch.compile(module, options=None if patched else OPTIONS)(x)
    ours = torch.autograd.grad(y, [x, *module.parameters()], dy)
    eager = torch.autograd.grad(module(x), [x, *module.parameters()], dy)
    check(ours, eager, exact_gradients(module, x, dy), 70)
    assert counters["mixorder"]["fused_regions"] == 1 and not counters["mixorder"]["given_back_regions"]
    assert poisoned


def test_what_inductor_made_of_it_before_does_not_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.LayerNorm(64), torch.randn(33, 64, requires_grad=True)
    # Nothing is asked of the numbers: loops in C++ need no compiler.
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_, **__: lambda *_: None)
    lenient = {**OPTIONS, "mixorder_strict": False}
    for interprets, fused in ((False, 0), (True, 1)):
        monkeypatch.setattr(install, "_interprets", lambda: interprets)  # noqa: B023  called in this turn
        torch._dynamo.reset()
        counters["mixorder"].clear()
        torch.compile(module, options=lenient)(x).sin().sum().backward()
        assert counters["mixorder"]["fused_regions"] == fused
