"""Run modules and functions fused by the interpreted kernels, and compare what they give.

Errors are norms. A fused gradient may be a tenth worse than the unfused one, which rounds at other places,
plus what summing `n` terms in another order costs in the compute dtype: `eps * sqrt(n)` of the result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import graphs
import torch
from graphs import bf16, f16, f32, f64, traced
from support.quantised import different
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.virtualized import V
from torch.fx import Graph, GraphModule

from mixorder import pipeline
from mixorder.options import Options
from mixorder.plugin import compile_for_interpreter, prepare_interpreter
from mixorder.report import RegionRecord, collect

ON = graphs.ALWAYS
OFF = Options(enabled=False)

Tensors = tuple[torch.Tensor, ...]


def with_options(**changes: Any) -> Options:
    return Options(**{**vars(ON), **changes})


def compiled(options: Options, fullgraph: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """How to compile for the interpreter, from scratch."""

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        backend = compile_for_interpreter(options)
        return torch.compile(function, backend=backend, dynamic=False, fullgraph=fullgraph)

    return compile


class Counting:
    """The interpreting backend; counts the graphs it gets (Dynamo may start a trace over)."""

    def __init__(self) -> None:
        self.compiles = 0
        self.backend = compile_for_interpreter(ON)

    def __call__(self, *args: Any) -> Any:
        self.compiles += 1
        return self.backend(*args)


def gradients(module: nn.Module, x: torch.Tensor, dy: torch.Tensor, options: Options) -> Tensors:
    function = compiled(options)(module)
    x = x.detach().requires_grad_()
    y = function(x)
    return torch.autograd.grad(y, [x, *module.parameters()], dy)


def exact_gradients(module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> Tensors:
    module = copy.deepcopy(module).double()
    x = x.double().requires_grad_()
    return torch.autograd.grad(module(x), [x, *module.parameters()], dy.double())


def unfused(module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> Tensors:
    """Gradients without mixorder, whose errors are the measure for ours.

    Eager's are those of the unfused graph, without a compile. But on the CPU eager LayerNorm adds up in half
    precision what a graph adds up in fp32: there the graph is run.
    """
    if has_half_layer_norm(module, x.dtype):
        return gradients(module, x, dy, OFF)
    x = x.detach().requires_grad_()
    return torch.autograd.grad(module(x), [x, *module.parameters()], dy)


def has_half_layer_norm(module: Any, dtype: torch.dtype) -> bool:
    if not isinstance(module, nn.Module):
        return False
    half = not {dtype, *(p.dtype for p in module.parameters())}.isdisjoint((f16, bf16))
    return half and any(isinstance(m, nn.LayerNorm) for m in module.modules())


def check_gradients(
    ours: Tensors, module: nn.Module, x: torch.Tensor, dy: torch.Tensor, terms: int, scale: float = 0.0
) -> None:
    check(ours, unfused(module, x, dy), exact_gradients(module, x, dy), terms, scale)


def check(ours: Tensors, stock: Tensors, exact: Tensors, terms: int, scale: float = 0.0) -> None:
    for mine, theirs, truth in zip(ours, stock, exact, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert mine.isfinite().all()
        size = float(truth.norm()) + scale
        my_error, their_error = (float((t.double() - truth).norm()) for t in (mine, theirs))
        compute = torch.finfo(f64 if mine.dtype == f64 else f32).eps
        allowed = 1.1 * their_error + 2 * compute * terms**0.5 * size
        if mine.numel() < 1000:  # a few last bits of a few numbers do not average out
            allowed += torch.finfo(mine.dtype).eps / 4 * size
        assert my_error <= allowed, (tuple(truth.shape), my_error, their_error, size)


def fused_graph(
    function: Callable[..., Any], args: Tensors, make: Callable[..., Graph] = traced, **options: Any
) -> tuple[GraphModule, RegionRecord]:
    """A function's rewritten graph, and the record of its one region. `make`: traces it."""
    prepare_interpreter()
    graph = make(function, *[(tuple(a.shape), a.dtype) for a in args])
    value = next(n.meta["val"] for n in graph.nodes if n.op == "placeholder")
    with V.set_fake_mode(value.fake_mode), collect() as records:
        pipeline.run(graph, with_options(**options))
    graph.lint()
    (record,) = records
    assert isinstance(record, RegionRecord), record
    return GraphModule({}, graph), record


def run_fused(function: Callable[..., Any], args: Tensors, options: Options = ON) -> Tensors:
    prepare_interpreter()
    graph = traced(function, *[(tuple(a.shape), a.dtype) for a in args])
    before = counters["mixorder"]["fused_regions"]
    pipeline.run(graph, options)
    assert counters["mixorder"]["fused_regions"] > before
    graph.lint()
    return tuple(torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(*args))


def exactly_fused(function: Callable[..., Any], *args: torch.Tensor) -> list[RegionRecord]:
    """The records of a function that is run fused. Asserts that its results are eager's bit by bit."""
    with collect() as records:
        ours = run_fused(lambda *x: function(*x), args)
    for mine, eager in zip(ours, function(*args), strict=True):
        assert different(mine, eager) == 0
    found = [r for r in records if isinstance(r, RegionRecord)]
    assert len(found) == len(records)
    return found


def wide(rows: int, cols: int, dtype: torch.dtype = bf16, special: bool = False) -> torch.Tensor:
    """Numbers of rows that differ by many powers of two; also zeros, infinities and NaN, if asked for."""
    x = (torch.randn(rows, cols) * torch.exp2(torch.randint(-10, 10, (rows, 1)))).to(dtype)
    if special:
        x[3, 5], x[7, -1], x[-1, 2], x[9] = float("nan"), float("inf"), -float("inf"), 0
    return x
