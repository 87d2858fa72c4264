"""Tensors that lie across the tile: copied if they are the smaller part. If they are the larger, they are
read along the rows where these are in whole accesses, and declined where not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, traced
from grids import crossed
from running import ON, check_gradients, gradients
from torch import nn
from torch._dynamo.utils import counters
from torch.fx import Graph, GraphModule, Interpreter

from mixorder import pipeline
from mixorder.plugin import compile_for_interpreter, prepare_interpreter
from mixorder.report import RegionRecord, collect

aten = torch.ops.aten


class Transposed(nn.Module):
    """A mix over the sequence: the gradient comes from it with the sequence innermost."""

    def __init__(self, seq: int, dim: int) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(dim, dim), nn.LayerNorm(dim)
        self.mix = nn.Parameter(torch.randn(seq, seq))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.up(x)).transpose(1, 2) @ self.mix


class ChannelsFirst(Transposed):
    """The norm's input and both gradients have the sequence innermost."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2) @ self.mix


class HeadsFirst(nn.Module):
    """A projection, a norm of each head, and what reads its result with the heads first or the tokens."""

    def __init__(self, heads: int, dim: int, norm: type[nn.Module], wide: bool) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        self.up, self.norm = nn.Linear(12, heads * dim), norm((heads, dim) if wide else dim)
        self.wide = wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x).unflatten(-1, (self.heads, self.dim))
        y = y.permute(1, 0, 2, 3) if self.wide else y.transpose(1, 2)
        return self.norm(y).sin().contiguous()


def targets(graph: Graph) -> list[Any]:
    return [n.target for n in graph.nodes]


@pytest.mark.parametrize("seq", [7, 8])
def test_most_tensors_across_memory(seq: int) -> None:
    """Eight rows beside each other are whole accesses; seven are not, and are left to Inductor."""
    module, x, dy = ChannelsFirst(seq, 24), torch.randn(3, 24, seq), torch.randn(3, 24, seq)
    del module.up
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    (record,) = records
    if seq == 7:
        assert str(record).startswith("layout: ")
        return
    assert isinstance(record, RegionRecord)
    assert record.traffic.copies == 0
    check_gradients(ours, module, x, dy, 24 * seq * 3)


@pytest.mark.parametrize("rows", [(3, 5), (4, 4)])
@pytest.mark.parametrize(
    ("norm", "wide", "dtype"), crossed([nn.LayerNorm, nn.RMSNorm], [False, True], [f32, bf16])
)
def test_a_gradient_is_stored_in_the_layout_of_its_reader(
    rows: tuple[int, int], norm: type[nn.Module], wide: bool, dtype: torch.dtype, monkeypatch: Any
) -> None:
    """The projection reads it with the tokens first, and nothing copies it for that."""
    left: list[Graph] = []
    run = pipeline.run

    def spy(graph: Graph, options: Any) -> None:
        run(graph, options)
        left.append(graph)

    monkeypatch.setattr(pipeline, "run", spy)
    module, x = HeadsFirst(2, 8, norm, wide).to(dtype), torch.randn(*rows, 12, dtype=dtype)
    dy = torch.randn_like(module(x))
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    (record,) = records
    assert isinstance(record, RegionRecord)
    check_gradients(ours, module, x, dy, 16 * rows[0] * rows[1])
    backward = targets(left[1])
    assert any("triton_kernel_wrapper" in str(t) for t in backward) and aten.clone.default not in backward


@pytest.fixture
def across() -> Any:
    """A graph whose third placeholder is a transposed tensor."""

    def make(leaves: bool) -> tuple[GraphModule, Any]:
        def function(x: Any, y: Any, dy: Any) -> Any:
            product = x * dy * y
            dx = dy - x * product.sum(1, keepdim=True)
            return (dx if leaves else dx.cumsum(0), product.sum(0))

        prepare_interpreter()
        graph = traced(function, ((24, 40), f32), ((24, 40), f32), ((24, 40), f32), transposed=(2,))
        pipeline.run(graph, ON)
        assert counters["mixorder"] == {"fused_regions": 1}
        graph.lint()
        return GraphModule({}, graph), function

    return make


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves_the_graph", "stays"])
def test_an_output_across_memory(across: Any, leaves: bool) -> None:
    module, function = across(leaves)
    # One copy to read dy along memory; another only where the caller expects dx across.
    assert targets(module.graph).count(aten.clone.default) == 1
    assert targets(module.graph).count(aten.copy.default) == leaves
    args = torch.randn(24, 40), torch.randn(24, 40), torch.randn(40, 24).t()
    ours, exact = Interpreter(module).run(*args), function(*(a.double() for a in args))
    for mine, theirs, truth in zip(ours, function(*args), exact, strict=True):
        assert float((mine - truth).norm()) <= 1e-6 * float(truth.norm())
        assert mine.stride() == theirs.stride() or not leaves


@pytest.mark.parametrize("dtype", [f32, bf16])
def test_any_number_of_rows(dtype: torch.dtype) -> None:
    """The strides that the caller expects are the rows' number, and the copy has the result's dtype."""

    def function(x: torch.Tensor, y: torch.Tensor, dy: torch.Tensor) -> Any:
        across = dy.t()
        product = x * across * y
        return across - x * product.sum(1, keepdim=True), product.sum(0)

    prepare_interpreter()
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=compile_for_interpreter(ON), dynamic=False)
    with collect() as records:
        compare_row_counts(compiled, function, dtype)
    (record,) = records
    assert isinstance(record, RegionRecord) and record.traffic.copied > 0


def compare_row_counts(compiled: Any, function: Any, dtype: torch.dtype) -> None:
    for rows in (24, 9, 50):
        args = *(torch.randn(rows, 40, dtype=dtype) for _ in range(2)), torch.randn(40, rows, dtype=dtype)
        for arg, dim in zip(args, (0, 0, 1), strict=True):
            torch._dynamo.mark_dynamic(arg, dim)
        ours, exact = compiled(*args), function(*(a.double() for a in args))
        for mine, theirs, truth in zip(ours, function(*args), exact, strict=True):
            assert mine.dtype == theirs.dtype and mine.stride() == theirs.stride()
            error, reference = (float((t.double() - truth).norm()) for t in (mine, theirs))
            assert error <= 1.1 * reference + 1e-6 * float(truth.norm())


def test_all_across_memory_is_read_along_the_rows() -> None:
    """Nothing is copied, and the result is as transposed as the gradient."""

    def function(x: Any, dy: Any) -> Any:
        return dy - (x * dy).sum(1, keepdim=True), (x * dy).sum(0)

    prepare_interpreter()
    graph = traced(function, ((24, 40), f32), ((24, 40), f32), transposed=(0, 1))
    pipeline.run(graph, ON)
    graph.lint()
    assert counters["mixorder"] == {"fused_regions": 1} and aten.clone.default not in targets(graph)
    args = [torch.randn(40, 24).t() for _ in range(2)]
    ours, exact = Interpreter(GraphModule({}, graph)).run(*args), function(*(a.double() for a in args))
    for mine, theirs, truth in zip(ours, function(*args), exact, strict=True):
        assert float((mine - truth).norm()) <= 1e-6 * float(truth.norm())
        assert mine.stride() == theirs.stride()


def test_an_input_is_read_by_its_own_strides_where_it_replaces_a_sum_with_zeros() -> None:
    """Torch then states for the input the strides of the sum, until it traces the graph again."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.zeros_like(x) + y
        return (x * z).sum(1), (z * z).sum(0)

    x, y = torch.randn(24, 40), torch.full((24, 48), torch.nan)[:, 3:43].copy_(torch.randn(24, 40))
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=compile_for_interpreter(ON), dynamic=False)
    for mine, truth in zip(compiled(x, y), function(x, y), strict=True):
        torch.testing.assert_close(mine, truth)
    assert counters["mixorder"] == {"fused_regions": 1}
