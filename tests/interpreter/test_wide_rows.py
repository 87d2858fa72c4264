"""Regions that read their rows twice, or whose programs have few rows: at widths where they must, and at
small ones where they are made to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from checked import check_case
from graphs import HFRMSNorm, bf16, f32, random_function, traced
from grids import crossed
from running import OFF, ON, check_gradients, compiled, gradients
from support.cases import CASES
from torch import nn
from torch._dynamo.utils import counters
from torch.fx import GraphModule, Interpreter

from mixorder import pipeline
from mixorder.plugin import prepare_interpreter
from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import H200
from mixorder.strategies import PERSISTENT, REREAD, SHORT_ROWS, SHORT_SUMS


class WithResidual(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.sigmoid(self.norm(x))


WIDE: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": lambda n: nn.RMSNorm(n, eps=1e-6),
    "hf": HFRMSNorm,
    "residual": WithResidual,
}


@pytest.fixture(autouse=True)
def no_exchange(plan_with: Callable[..., None]) -> None:
    """On a device whose programs cannot share a row: tests/interpreter/test_shared_rows.py has the others."""
    alone = dataclasses.replace(H200, exchanges=False)
    plan_with(device=alone)


# 12288 columns and less are held, in chunks.
@pytest.mark.parametrize(("name", "cols", "dtype"), crossed(WIDE, [13008, 16384], [f32, bf16]))
def test_wide_rows(name: str, cols: int, dtype: torch.dtype) -> None:
    module, x = WIDE[name](cols).to(dtype), torch.randn(5, cols, dtype=dtype)
    dy = torch.randn_like(x)
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    # Weight, bias and a compensated sum leave too few registers for the whole: a sum is its own region.
    parts = ["short sums", "reread"] if (name, cols, dtype) == ("residual", 16384, f32) else ["reread"]
    assert [r.strategy for r in records if isinstance(r, RegionRecord)] == parts
    for record in records:
        assert isinstance(record, RegionRecord) and record.inner and record.outer
        assert ("evict_last" in record.kernels[0].text) == (record.strategy == "reread")
    check_gradients(ours, module, x, dy, cols)


@pytest.fixture
def never_resident(plan_with: Callable[..., None]) -> None:
    """Every program reads its rows again, if it has any reason to."""
    plan_with(strategies=(dataclasses.replace(REREAD, choose=PERSISTENT.choose),))


NAMES = """LayerNorm; Cohere; Cohere QK-norm; adaLN; Qwen3 QK-norm, transpose, RoPE; softmax with bias;
norms in a chain; checkpointed LayerNorm; BitLinear, prenorm; cat after; LayerScale; conv bias and gate;
fp32 residual stream; row and column mean, max, min"""


@pytest.mark.usefixtures("never_resident")
@pytest.mark.parametrize("name", [name.strip() for name in NAMES.split(";")])
def test_the_family(name: str) -> None:
    check_case(CASES[name], CASES[name].shapes.small, f32, "cpu", compiled(ON), compiled(OFF))


@pytest.mark.usefixtures("never_resident")
@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int) -> None:
    function = random_function(seed, 10, 12)
    args = torch.randn(10, 12), torch.randn(10, 12), torch.randn(12, 12)
    prepare_interpreter()
    graph = traced(function, *[(tuple(a.shape), f32) for a in args])
    counters["mixorder"].clear()
    pipeline.run(graph, ON)
    graph.lint()
    ours = Interpreter(GraphModule({}, graph)).run(*args)
    exact = function(*(a.double() for a in args))
    for mine, theirs, truth in zip(ours, function(*args), exact, strict=True):
        error, reference = (float((t.double() - truth).norm()) for t in (mine, theirs))
        assert error <= 2 * reference + 1e-5 * float(truth.norm())


@pytest.fixture
def few_rows(plan_with: Callable[..., None]) -> None:
    """Every program whose sums would be compensated has few rows instead."""
    plan_with(strategies=(SHORT_SUMS, PERSISTENT))


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("name", ["LayerNorm", "softmax with bias", "cat after", "fp32 residual stream"])
def test_the_family_by_short_sums(name: str) -> None:
    check_case(CASES[name], CASES[name].shapes.small, f32, "cpu", compiled(ON), compiled(OFF))


@pytest.mark.usefixtures("few_rows")
def test_short_sums_are_as_exact_as_compensated_ones_in_another_order() -> None:
    """2200 rows: more than a program for each multiprocessor, and a last one with fewer rows."""
    module, x = nn.LayerNorm(16), torch.randn(2200, 16)
    dy = torch.randn_like(x)
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    (record,) = records
    assert isinstance(record, RegionRecord) and record.strategy == SHORT_SUMS.name
    assert 2200 % record.schedule.num_splits and "error" not in record.kernels[0].text
    assert -(-2200 // record.schedule.num_splits) <= SHORT_ROWS
    exact = gradients(module.double(), x.double(), dy.double(), OFF)
    for mine, truth in zip(ours, exact, strict=True):
        assert float((mine.double() - truth).norm() / truth.norm()) < 1.2e-7
