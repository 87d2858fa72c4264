"""One compile for every number of rows: symbolic sizes through all stages, down to launches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import Block, HFRMSNorm, f32, pair, traced_rows
from running import ON, Counting, Tensors, close_to_exact
from support.around import StarReLU, Temperature
from support.effects import watched
from torch import nn
from torch._dynamo.utils import counters
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental import _config as fx_config

from mixorder import pipeline
from mixorder.errors import Decline, DeclineReason
from mixorder.plugin import compile_for_interpreter, prepare_interpreter
from mixorder.record import as_dict
from mixorder.report import RegionRecord, collect


def after_a_product(module: nn.Module) -> nn.Module:
    """The product makes the columns static."""
    return nn.Sequential(nn.Linear(16, 16, bias=False), module)


class Concatenated(nn.Module):
    """The rows of the norm are a sum of two symbols."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.cat([x, y], 0))


class Pieces(nn.Module):
    """A norm over rows that the graph has in pieces behind it, as a window's attention has. Its rows are
    written in two ways, which are equal by torch's guards."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        many = like.shape[0]
        y = self.norm(x * 2).view(x.shape[0], many, x.shape[1] // many, x.shape[2])
        return y.sin().view(-1, x.shape[2]).exp() + like.sum()


MODULES: dict[str, tuple[Callable[[], nn.Module], list[list[tuple[int, ...]]], list[int]]] = {
    "layer": (lambda: nn.LayerNorm(16), [[(n, 16)] for n in (5, 9, 300, 2)], [1]),
    "hugging_face": (lambda: HFRMSNorm(16), [[(n, 16)] for n in (5, 9, 300, 2)], [1]),
    "two_leading_dims": (lambda: nn.LayerNorm(16), [[(a, b, 16)] for a, b in ((2, 5), (3, 7), (40, 9))], [2]),
    "heads": (lambda: nn.RMSNorm(16), [[(a, 4, b, 16)] for a, b in ((2, 5), (3, 7), (7, 40))], [3]),
    "pieces": (lambda: Pieces(16), [[(2, 15, 16), (3,)], [(2, 28, 16), (4,)]], [2]),
    "sum_of_two": (lambda: Concatenated(16), [[(a, 16), (b, 16)] for a, b in ((5, 3), (7, 2), (9, 11))], [2]),
    "sums_of_all": (lambda: after_a_product(StarReLU()), [[(n, 16)] for n in (5, 9, 300, 2)], [1]),
    "temperature": (lambda: after_a_product(Temperature(1)), [[(n, 16)] for n in (5, 9, 300, 2)], [1]),
    "block": (lambda: Block(16), [[(n, 16)] for n in (5, 9, 40)], [1] * 4),
    "block_of_two_dims": (lambda: Block(16, nn.RMSNorm), [[(2, 5, 16)], [(3, 7, 16)], [(4, 9, 16)]], [2] * 4),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_one_compile_for_all_row_counts(name: str) -> None:
    make, calls, symbols = MODULES[name]
    module, backend, first = make(), Counting(), 0
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend, dynamic=True)
    with collect() as records:
        for shapes in calls:
            close_to_exact(compiled, module, tuple(torch.randn(shape) for shape in shapes))
            first = first or backend.compiles
    assert backend.compiles == first and not any(isinstance(r, Decline) for r in records)
    rows = [r.space.rows for r in records if isinstance(r, RegionRecord)]
    assert [str(r).count("s") for r in rows] == symbols and all(isinstance(r, str) for r in rows)


@pytest.mark.parametrize("first", [0, 1, 6])
def test_a_module_compiled_for_any_number_of_rows(first: int) -> None:
    """`backed_size_oblivious` is one of the ways by which 0 and 1 reach a symbolic graph."""
    module = nn.RMSNorm(64)
    torch._dynamo.reset()
    with fx_config.patch(backed_size_oblivious=True):
        compiled = torch.compile(module, backend=compile_for_interpreter(ON))
        for batch in (first, 0, 1, 5):
            x = torch.randn(batch, 7, 64, requires_grad=True)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            dy = torch.randn(batch, 7, 64)
            inputs = [x, module.weight]
            ours = torch.autograd.grad(compiled(x), inputs, dy)
            for mine, truth in zip(ours, torch.autograd.grad(module(x), inputs, dy), strict=True):
                torch.testing.assert_close(mine, truth)


def test_a_gradient_across_memory_for_any_number_of_rows() -> None:
    """It is stored across memory for the graph's caller. Where rows may be 0 or 1, torch's copy to there asks
    for two, so that stock would serve fewer by this graph, and mixorder would compile another."""

    def function(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * w
        return y * (y * r).mean(1, keepdim=True), y.transpose(0, -1)

    backend = Counting()
    torch._dynamo.reset()
    with fx_config.patch(backed_size_oblivious=True), collect() as records, watched(moved := list[str]()):
        compiled = torch.compile(function, backend=backend)
        for rows in (13, 0, 5):
            inputs = [torch.randn(shape, requires_grad=True) for shape in ((rows, 3), (rows, 1), (1, 3))]
            for one in inputs[:2]:
                torch._dynamo.maybe_mark_dynamic(one, 0)
            dy, dt = torch.randn(rows, 3), torch.randn(3, rows)
            ours, truth = (torch.autograd.grad(f(*inputs), inputs, (dy, dt)) for f in (compiled, function))
            for mine, exact in zip(ours, truth, strict=True):
                torch.testing.assert_close(mine, exact)
    assert backend.compiles == 1 and not moved
    (declined,) = records
    assert isinstance(declined, Decline) and declined.reason is DeclineReason.DYNAMIC_SHAPE


class Modulated(nn.Module):
    """A norm with scale and shift for each sample, as of a diffusion transformer, and a Linear before it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(24, 24), nn.LayerNorm(24, elementwise_affine=False)

    def forward(self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)) * (1 + scale[:, None]) + shift[:, None]


@pytest.mark.parametrize("tokens", [(10, 10, 10), (10, 7, 30)], ids=["batch", "batch_and_rows"])
def test_one_compile_for_all_batch_sizes(tokens: tuple[int, ...]) -> None:
    """Where a result is per sample, the batch is an axis of its own. A mark that is given up would raise."""
    module, backend = Modulated(), Counting()
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend, dynamic=False)

    def marked(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        for one in (x, *others):
            torch._dynamo.mark_dynamic(one, 0)
        if len(set(tokens)) > 1:
            torch._dynamo.mark_dynamic(x, 1)
        return compiled(x, *others)

    with collect() as records:
        for batch, rows in zip((4, 9, 2), tokens, strict=True):
            of_samples = (torch.randn(batch, 24) for _ in range(2))
            close_to_exact(marked, module, (torch.randn(batch, rows, 24), *of_samples))
    assert backend.compiles == 1
    (record,) = records
    assert isinstance(record, RegionRecord), record
    assert str(record.space).startswith("batch s") and len(record.outer) == 2
    json.dumps(as_dict(record))


# Functions, on graphs with symbolic leading dims.


def fused(
    function: Callable[..., Any], shape: tuple[int, ...], symbolic: tuple[int, ...] = (0,)
) -> GraphModule:
    prepare_interpreter()
    graph = traced_rows(function, (shape, f32), (shape, f32), symbolic=symbolic)
    pipeline.run(graph, ON)
    assert counters["mixorder"] == {"fused_regions": 1}
    graph.lint()
    return GraphModule({}, graph)


@pytest.mark.parametrize(
    ("shape", "symbolic", "rows"),
    [
        *[
            ((5, 4, 7, 20), (0, 2), (0, 2)),
            ((7, 4, 20), (1,), 0),
            ((4, 7, 20), (0,), 1),
            ((4, 7, 20), (0, 1), 1),
        ],
        *[((5, 4, 7, 20), (0, 1, 2), (0, 2)), ((4, 7, 3, 20), (0, 2), 1), ((4, 7, 3, 20), (0, 1, 2), 1)],
    ],
)
def test_batch_axis(shape: tuple[int, ...], symbolic: tuple[int, ...], rows: Any) -> None:
    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        return dy - (x * dy).sum(-1, keepdim=True), (x * dy).sum(rows)

    module = fused(function, shape, symbolic)
    for size in (2, 33 if len(symbolic) == 1 else 11):  # their product is what takes time
        now = [size + d if d in symbolic else n for d, n in enumerate(shape)]
        args = torch.randn(now), torch.randn(now)
        for mine, theirs in zip(Interpreter(module).run(*args), function(*args), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def shifted(x: torch.Tensor, dy: torch.Tensor) -> Tensors:
    """A slice from the second row to the last."""
    return pair(x, torch.cat([torch.zeros_like(x[:1]), (dy * 2)[1:]]) + x)


def overwritten(x: torch.Tensor, dy: torch.Tensor) -> Tensors:
    return pair(x, torch.slice_scatter(dy * 2, x[1:], 0, 1) + x)


@pytest.mark.parametrize("function", [shifted, overwritten])
def test_the_pass_adds_no_guard(function: Callable[..., Tensors]) -> None:
    """Inductor then compiles what is not fused as without mixorder, and nothing for another size anew."""
    args = torch.randn(40, 16), torch.randn(40, 16)
    for arg in args:
        torch._dynamo.mark_dynamic(arg, 0)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=compile_for_interpreter(ON))
    with watched(moved := list[str]()), collect() as records:
        found = compiled(*args)
    assert not moved and [type(r) for r in records] == [RegionRecord]
    truth = function(*(arg.double() for arg in args))
    for mine, exact in zip(found, truth, strict=True):
        torch.testing.assert_close(mine, exact.float())
