"""Kernels that write dx over dy give the same bits as those that have a tensor of its own for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import Block, bf16, f32, f64, pair, randomised
from running import ON, check_gradients, compiled, gradients
from torch import nn

from mixorder import pipeline
from mixorder.plugin import compile_for_interpreter
from mixorder.region import peak_memory
from mixorder.report import RegionRecord, collect
from mixorder.strategies.cooperative import COOPERATIVE

SHAPE = (3, 37, 40)


def overwritten(records: list[object]) -> int:
    kernels = [record.kernels[0] for record in records if isinstance(record, RegionRecord)]
    return sum(name.startswith("in") for kernel in kernels for name in kernel.written)


class Response(nn.Module):
    """A norm of each channel over a sample's rows: the gradient of its result is read by two kernels, and the
    second, which waits for the first, writes over it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.scale, self.shift = (nn.Parameter(torch.randn(2 * dim)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.up(x))
        y = self.scale * y / y.norm(2, 1, keepdim=True) + self.shift + y
        return self.down(y)


class OverChannels(nn.Module):
    """A norm of the channels, of a tensor that is contiguous along the rows: a copy of x is read, and dx is
    written over it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.transpose(1, 2) * 2)


class Autocast(nn.Module):
    """A Block whose Linears compute in bf16, and whose norms and residuals are in fp32. The gradient of a
    residual is in fp32, and the product that a norm gets its gradient from in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", bf16):
            return self.block(self.block.mix(x)).sin()


# Shape and dtype of x, and how many inputs are overwritten. Of a Block's four regions, one is a bias gradient
# on its own. Of wide rows, programs share a row and do not wait.
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype, int]] = {
    "block": (lambda: Block(40, nn.RMSNorm), SHAPE, bf16, 4),
    "what another kernel has read before": (lambda: Response(40), SHAPE, f32, 1),
    "shared rows": (
        lambda: nn.Sequential(nn.Linear(24, 12032), nn.GELU(), nn.Linear(12032, 8)),
        (37, 24),
        f32,
        1,
    ),
    "a copy in another layout": (lambda: OverChannels(40), (3, 40, 37), f32, 1),
}


@pytest.mark.parametrize("name", MODULES)
def test_same_bits(name: str, monkeypatch: pytest.MonkeyPatch, plan_with: Callable[..., None]) -> None:
    make, shape, dtype, count = MODULES[name]
    if name == "shared rows":
        plan_with(strategies=(COOPERATIVE,))
    module, x = randomised(make(), dtype), torch.randn(shape).to(dtype)
    dy, before = torch.randn_like(module(x)), x.clone()
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    check_gradients(ours, module, x, dy, 111)
    monkeypatch.setattr(pipeline, "dead_after", lambda *_: ())
    with collect() as others:
        separate = gradients(module, x, dy, ON)
    assert (overwritten(records), overwritten(others)) == (count, 0)
    assert all(map(torch.equal, ours, separate)) and torch.equal(x, before)


def test_symbolic_rows() -> None:
    """One compile serves both batches."""
    module = randomised(Block(40), f32)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=compile_for_interpreter(ON), dynamic=True)
    with collect() as records:
        for batch in (3, 5):
            x, dy = torch.randn(batch, 37, 40), torch.randn(batch, 37, 40)
            leaf = x.clone().requires_grad_()
            ours = torch.autograd.grad(compiled(leaf), [leaf, *module.parameters()], dy)
            check_gradients(ours, module, x, dy, 37 * len(x))
    assert overwritten(records) == 4


def test_a_result_is_overwritten_by_the_next_region() -> None:
    """Its memory was a product's before. They are two, since the second one waits for dw."""

    def function(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> Any:
        dx, dw = pair(x, g @ w)
        return dw, *pair(torch.cumsum(z * dw, 1), dx)

    args = [torch.randn(shape, dtype=f64) for shape in ((37, 40), (37, 8), (8, 40), (37, 40))]
    with collect() as records:
        ours = compiled(ON)(function)(*args)
    assert len(records) == 2 and overwritten(records) == 2
    torch.testing.assert_close(list(ours), list(function(*args)))


def test_an_activation_that_only_the_backward_holds_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    module = randomised(Autocast(), f32)
    x, dy = torch.randn(SHAPE), torch.randn(SHAPE)
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    monkeypatch.setattr(peak_memory, "donated", lambda graph: frozenset())
    with collect() as others:
        separate = gradients(module, x, dy, ON)
    assert overwritten(records) > overwritten(others) and all(map(torch.equal, ours, separate))


def test_a_backward_that_runs_twice_overwrites_nothing_of_the_forward() -> None:
    """Known while it is compiled; one that was not compiled for it raises torch's error."""
    module = randomised(Autocast(), f32)
    x, dy = torch.randn(SHAPE).requires_grad_(), torch.randn(SHAPE)
    twice = []
    y = compiled(ON)(module)(x)
    for _ in range(2):
        twice.append(torch.autograd.grad(y, [x, *module.parameters()], dy, retain_graph=True))
    assert all(map(torch.equal, *twice))
    function = compiled(ON)(module)
    torch.autograd.grad(function(x), x, dy)
    with pytest.raises(RuntimeError, match="donated"):
        torch.autograd.grad(function(x), x, dy, retain_graph=True)


def test_what_a_graph_inside_reads_is_not_overwritten() -> None:
    """Torch knows which inputs of the whole backward may be overwritten, and nothing of the graphs inside."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(40)

    @torch.compiler.nested_compile_region
    def inner(k: torch.Tensor, s: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        product = x @ w
        return norm(product * k * s) + product @ w

    def function(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = (x @ w).sin().detach()
        y = inner(kept, s, inner(kept, s, x, w), w)
        return ((y.sin() @ w).sin() @ w).sin() @ w, kept

    args = torch.randn(37, 40).requires_grad_(), torch.randn(40, 40).requires_grad_(), torch.randn(40)
    with collect() as records:
        y, kept = compiled(ON, fullgraph=True)(function)(*args)
        before = kept.clone()
        y.sum().backward()
    assert len(records) == 1 and overwritten(records) == 0
    assert torch.equal(kept, before)


def test_what_a_graph_inside_gave_twice_is_not_overwritten() -> None:
    """A compiled region gives a product, and the same tensor once more to its backward. To the whole backward
    these are two inputs."""

    @torch.compiler.nested_compile_region
    def inner(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = x @ w
        return product, product.sin().sum(-1, keepdim=True)

    def function(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        y, s = inner(x, w)
        y, t = inner(y.cos(), w)
        scale = torch.rsqrt(y.sin().square().mean(-1, keepdim=True) + 1e-5)
        return y.sin() * scale * g + y.cos() * g + s * t

    args = tuple(torch.randn(*n, requires_grad=True) for n in ((37, 40), (40, 40), (40,)))
    dy = torch.randn(37, 40)
    eager = torch.autograd.grad(function(*args), args, dy)
    with collect() as records:
        ours = torch.autograd.grad(compiled(ON, fullgraph=True)(function)(*args), args, dy)
    assert len(records) == 1 and overwritten(records) == 0
    for mine, theirs in zip(ours, eager, strict=True):
        assert float((mine - theirs).norm()) <= 1e-5 * float(theirs.norm())
