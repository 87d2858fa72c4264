"""Gradients that come through permutes, slices, cat, pad and scatters: computed where they are needed.

Forms as models have them, and functions whose slices leave NaNs out: what no lane may read must not show.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, f32, traced
from grids import crossed
from running import ON, Tensors, check_gradients, close_to_exact, gradients, run_fused
from torch import nn

from mixorder import pipeline, search
from mixorder.errors import Decline, DeclineReason
from mixorder.ir.program import LoopProgram
from mixorder.plugin import compile_for_interpreter, prepare_interpreter
from mixorder.region.gathers import is_gather
from mixorder.region.region import Region
from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import MEASURED as H200


@pytest.fixture(autouse=True)
def few_programs(plan_with: Callable[..., None]) -> None:
    """So that tiles hold several rows, and the last of them is partial."""
    device = dataclasses.replace(H200, num_sm=2)
    plan_with(device=device)


class Around(nn.Module):
    """A norm, with what comes after it."""

    def __init__(self, norm: nn.Module, after: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.norm, self.after = norm, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.norm(x))


def rope(y: torch.Tensor) -> torch.Tensor:
    """Heads first, then the rotary embedding, as in Qwen3."""
    y = y.transpose(1, 2)
    tokens, half = y.shape[2], y.shape[3] // 2
    angle = torch.arange(tokens, dtype=y.dtype)[:, None] * torch.linspace(1, 0.1, half, dtype=y.dtype)
    cos, sin = (torch.cat([t, t], -1) for t in (angle.cos(), angle.sin()))
    return y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin


def gated(y: torch.Tensor) -> torch.Tensor:
    value, gate = y.chunk(2, -1)
    return value * torch.sigmoid(gate)


def class_token(y: torch.Tensor) -> torch.Tensor:
    return y[:, 0].sin().unsqueeze(1) + y[:, 1:].cos()


def parts(y: torch.Tensor) -> torch.Tensor:
    """Three parts of different sizes."""
    a, b, c = y.split_with_sizes([5, 3, y.shape[-1] - 8], -1)
    return torch.cat([c.sin(), a * 2, b.cos()], -1).tanh()


FORMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "rope": (rope, (3, 5, 2, 12)),
    "rope_of_square_rows": (rope, (3, 6, 6, 12)),
    "gated": (gated, (3, 5, 24)),
    "class_token": (class_token, (3, 5, 11)),
    "next_token": (lambda y: y[:, 1:].sin() * y[:, :-1], (3, 5, 11)),
    "every_other_token": (lambda y: y[:, ::2].sin(), (3, 7, 11)),
    "parts": (parts, (7, 19)),
    "pad": (lambda y: F.pad(y, (2, 3, 1, 0)).sin(), (3, 5, 11)),
    "crop": (lambda y: F.pad(y, (-2, -3, 1, -1)).sin(), (3, 5, 11)),
    "batch_second": (lambda y: y.permute(1, 0, 2).contiguous().sin(), (3, 5, 11)),
    "square_rows": (lambda y: y.permute(1, 0, 2).contiguous().sin() * 2, (5, 5, 11)),
    "square": (lambda y: y.permute(1, 0, 2).contiguous().sin(), (7, 7, 7)),
    "heads_first_and_back": (
        lambda y: y.transpose(1, 2).contiguous().sin().transpose(1, 2).contiguous().cos(),
        (3, 5, 2, 11),
    ),
    "windows": (
        lambda y: y.reshape(2, 3, 2, 5, 11).permute(0, 2, 1, 3, 4).reshape(-1, 5, 11).sin(),
        (2, 6, 5, 11),
    ),
    "concatenated": (lambda y: torch.cat([y[:, 2:].sin(), y[:, :1]], 1).cos(), (3, 5, 11)),
}  # fmt: skip


def fused(module: nn.Module, x: torch.Tensor) -> RegionRecord:
    """Run a module fused, hold its gradients against float64, and give the record of its one region."""
    dy = torch.randn_like(module(x))
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    (record,) = records
    assert isinstance(record, RegionRecord), record
    terms = max(x.shape[-1], x.numel() // x.shape[-1])
    check_gradients(ours, module, x, dy, terms)
    return record


WITH = [(nn.LayerNorm, f32), (nn.RMSNorm, bf16), (nn.LayerNorm, bf16), (nn.RMSNorm, f32)]


@pytest.mark.parametrize(("form", "norm", "dtype"), [(f, *WITH[i % 4]) for i, f in enumerate(FORMS)])
def test_form(form: str, norm: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the input's size is left of RMSNorm's graph but kernels and views. (The gradient of `pad` is
    larger than the space, and so made outside.)"""
    after, shape = FORMS[form]
    left: list[torch.fx.Node] = []
    run = pipeline.run

    def spy(graph: torch.fx.Graph, options: Any) -> None:
        run(graph, options)
        if options.enabled:
            graph.eliminate_dead_code()
            left[:] = [n for n in graph.nodes if n.op == "call_function"]

    monkeypatch.setattr(pipeline, "run", spy)
    monkeypatch.setattr(search, "lighter", lambda *_: [])  # at any size
    fused(Around(norm(shape[-1]), after).to(dtype), torch.randn(shape, dtype=dtype))
    made = [
        n.name
        for n in left
        if isinstance(val := n.meta.get("val"), torch.Tensor)
        and n.target not in (torch.ops.aten.empty_strided.default, torch.ops.aten.view.default)
        and "getitem" not in n.name
        and val.numel() * 2 >= torch.Size(shape).numel()
    ]
    assert left and (made == [] or form == "pad" or norm is nn.LayerNorm)


SYMBOLIC = ["rope", "gated", "class_token", "next_token", "pad", "batch_second", "concatenated"]


@pytest.mark.parametrize(("form", "dims"), [(f, [(0, 1), (0,), (1,)][i % 3]) for i, f in enumerate(SYMBOLIC)])
def test_symbolic_rows(form: str, dims: tuple[int, ...]) -> None:
    after, shape = FORMS[form]
    module = Around(nn.LayerNorm(shape[-1]), after)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=compile_for_interpreter(ON), dynamic=False)

    def marked(x: torch.Tensor) -> torch.Tensor:
        for d in dims:
            torch._dynamo.mark_dynamic(x, d)
        return compiled(x)

    with collect() as records:
        for more in (0, 4, 1):
            x = torch.randn([n + more if d in dims else n for d, n in enumerate(shape)])
            close_to_exact(marked, module, (x,))
    (record,) = records
    assert isinstance(record, RegionRecord) and isinstance(record.space.rows, str)


# Functions: what a slice leaves out, and where nothing may be read.


def reductions(x: torch.Tensor, value: torch.Tensor) -> Any:
    product = x * value
    return value - x * product.sum(-1, keepdim=True), product.sum(tuple(range(x.dim() - 1)))


def padded(rows: slice, columns: slice, *padding: int) -> Callable[..., Any]:
    return lambda x, z: reductions(x, F.pad(z[rows, columns].exp(), padding))


def spoil(*places: Any) -> Callable[[torch.Tensor], None]:
    def fill(z: torch.Tensor) -> None:
        for place in places:
            z[place] = torch.nan

    return fill


ALL = slice(None)
SPOILT: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], None]]] = {
    "rows_before": (padded(slice(3, None), ALL, 0, 0, 1, 2), spoil(slice(3))),
    "rows_after": (padded(slice(-4), ALL, 0, 0, 2, 2), spoil(slice(-4, None))),
    "columns_before": (padded(ALL, slice(3, None), 2, 1), spoil((ALL, slice(3)))),
    "columns_after": (padded(ALL, slice(-3), 0, 3), spoil((ALL, slice(-3, None)))),
    "both": (padded(slice(3, -1), slice(2, -1), 1, 2, 3, 1), spoil(slice(3), -1, (ALL, slice(2)), (ALL, -1))),
    "cat_of_columns": (
        lambda x, z: reductions(x, torch.cat([z[:, 2:5].cos(), z[:, 7:10], z[:, 2:7]], 1)),
        spoil((ALL, slice(2)), (ALL, slice(10, None))),
    ),
    "scatter_over": (
        lambda x, z: reductions(x, torch.slice_scatter(z, x[:, 1:5].exp(), 1, 4, 8)),
        spoil((ALL, slice(4, 8))),
    ),
    "row_over": (
        lambda x, z: reductions(x, torch.select_scatter(z, x[3].exp(), 0, -2)),
        spoil(-2),
    ),
}  # fmt: skip


def close(ours: Tensors, function: Callable[..., Any], args: Tensors) -> None:
    theirs, exact = function(*args), function(*(a.double() for a in args))
    for mine, other, truth in zip(ours, theirs, exact, strict=True):
        assert mine.isfinite().all() and mine.stride() == other.stride()
        error, reference = (float((t.double() - truth).norm()) for t in (mine, other))
        assert error <= 1.1 * reference + 2 * torch.finfo(f32).eps * 16 * float(truth.norm())


@pytest.mark.parametrize("name", SPOILT)
def test_what_a_slice_leaves_out_does_not_show(name: str) -> None:
    function, fill = SPOILT[name]
    args = torch.randn(13, 11), torch.randn(13, 11)
    fill(args[1])
    assert args[1].isnan().any()
    close(run_fused(function, args), function, args)


@pytest.mark.parametrize("kind", ["amax", "amin"])
def test_a_fill_takes_part_in_a_reduction_and_lanes_beyond_the_end_do_not(kind: str) -> None:
    def function(x: torch.Tensor, z: torch.Tensor) -> Any:
        value = F.pad(z[1:, 2:], (1, 1, 1, 0), value=0.5)
        return x * getattr(value, kind)(1, keepdim=True), getattr(value, kind)(0)

    sign = -1 if kind == "amin" else 1
    args = torch.randn(13, 11), sign * (torch.rand(13, 11) + 0.25)
    close(run_fused(function, args), function, args)


def test_a_region_declined_with_its_gathers_is_fused_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor, z: torch.Tensor) -> Any:
        return reductions(x, torch.cat([z[:, 1:], z[:, :1]], 1))

    def lower(region: Region) -> LoopProgram:
        if any(map(is_gather, region.nodes)):
            raise Decline(DeclineReason.UNSUPPORTED_OP, "for the test")
        return lowered(region)

    lowered = pipeline.lower
    monkeypatch.setattr(pipeline, "lower", lower)
    args = torch.randn(3, 40), torch.randn(3, 40)
    prepare_interpreter()
    graph = traced(function, *[((3, 40), f32)] * 2)
    with collect() as records:
        pipeline.run(graph, ON)
    (record,) = records
    assert isinstance(record, RegionRecord)
    assert any(is_gather(n) for n in graph.nodes)
    close(torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(*args), function, args)


@pytest.mark.parametrize(
    ("sizes", "dtype"), crossed([(2, 3, 5, 8), (3, 2, 7, 5), (1, 1, 3, 33)], [f32, bf16])
)
def test_a_gradient_put_together_for_a_product_gives_its_bias_gradient(
    sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    batch, heads, tokens, wide = sizes

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        pieces = [t.permute(0, 2, 1, 3).reshape(batch, tokens, -1) for t in (q, k, v)]
        whole = torch.cat(pieces, 2).view(batch * tokens, 3 * heads * wide)
        return whole @ whole.t(), whole.sum(0)

    args = tuple(torch.randn(batch, heads, tokens, wide).to(dtype) for _ in range(3))
    with collect() as records:
        ours = run_fused(function, args)
    (record,) = records
    assert isinstance(record, RegionRecord) and len(record.kernels) == 2 - record.schedule.finishes
    theirs, exact = function(*args), function(*(a.double() for a in args))
    assert torch.equal(ours[0], theirs[0])
    errors = [float((t[1].double() - exact[1]).norm()) for t in (ours, theirs)]
    assert errors[0] <= 1.1 * errors[1] + 1e-6 * float(exact[1].norm())
