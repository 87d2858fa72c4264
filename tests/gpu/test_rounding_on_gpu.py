"""On a GPU: where values are rounded on their way, beside stock Inductor. Triton's interpreter has no `fma`
that rounds once, and what is not in a region is eager there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f16, f32, pair, randomised
from torch import nn

from mixorder.report import RegionRecord, collect

pytestmark = pytest.mark.gpu

STRICT = {"mixorder_strict": True, "mixorder_min_numel": 0, "fx_graph_cache": False}
Results = tuple[torch.Tensor, ...]


def compiled(function: Callable[..., Any], fuse: bool) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, options={"mixorder": fuse, **STRICT}, dynamic=False)


def errors(found: Results, exact: Results) -> list[float]:
    """Relative, as norms."""
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]


@pytest.mark.parametrize("shape", [(2048, 2048), (2048, 8192), (1000, 1001), (512, 20000)])
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_dx_is_as_exact_as_from_a_kernel_of_its_own(norm: str, shape: tuple[int, int]) -> None:
    """In fp32, where Inductor's product is not rounded before something is subtracted from it."""
    torch.manual_seed(0)
    rows, cols = shape
    modules = {"rms": nn.RMSNorm(cols), "layer": nn.LayerNorm(cols)}
    module = randomised(modules[norm], f32).cuda()
    x, dy = torch.randn(rows, cols, device="cuda", requires_grad=True), torch.randn(rows, cols, device="cuda")

    def gradients(fuse: bool) -> Results:
        return torch.autograd.grad(compiled(module, fuse)(x), [x, *module.parameters()], dy)

    ours, stock = gradients(True), gradients(False)
    wide = copy.deepcopy(module).double()
    x = x.detach().double().requires_grad_()
    exact = torch.autograd.grad(wide(x), [x, *wide.parameters()], dy.double())
    for mine, theirs in zip(errors(ours, exact), errors(stock, exact), strict=True):
        assert mine <= 1.02 * theirs


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_a_row_s_result_that_a_later_loop_reads_is_not_rounded_for_it(dtype: torch.dtype) -> None:
    """Eager rounds dx, the product of matrices, the mean, and what is made of both."""
    torch.manual_seed(0)
    x, dy = (torch.randn(1000, 512, device="cuda", dtype=dtype) for _ in range(2))
    m = torch.randn(512, 512, device="cuda", dtype=dtype)

    def function(x: Any, dy: Any, m: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx, dw, (dx @ m) * (x * dy).mean(1, keepdim=True)

    exact = function(x.double(), dy.double(), m.double())
    with collect() as records:
        ours = errors(compiled(function, True)(x, dy, m), exact)
    (record,) = records
    assert isinstance(record, RegionRecord) and len(record.inner) == 2
    eager, stock = errors(function(x, dy, m), exact), errors(compiled(function, False)(x, dy, m), exact)
    assert ours[2] < 0.95 * eager[2]
    assert all(mine <= 1.02 * theirs for mine, theirs in zip(ours, stock, strict=True))
