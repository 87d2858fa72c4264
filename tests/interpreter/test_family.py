"""The family at small sizes: each case's regions, with their reductions, and errors beside stock's."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from checked import check_case
from graphs import Block, bf16, f32
from running import OFF, ON, compiled, exact_gradients, gradients
from support.cases import CASES, Checkpointed, Example, found_in
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mixorder.options import Options
from mixorder.report import RegionRecord, collect

interpreted = functools.partial(compiled, fullgraph=True)


# In one dtype or the other: the interpreter takes its time. On a GPU each is run in bf16.
@pytest.mark.parametrize(("name", "dtype"), list(zip(CASES, itertools.cycle((f32, bf16)), strict=False)))
def test_case(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    check_case(case, case.shapes.small, dtype, "cpu", interpreted(ON), interpreted(OFF))


# Other than at small sizes: alone in its graph, a part of a region would raise its peak of memory; a row of
# 3072 columns is one until its strategy is chosen.
AT_TRAINING_SIZE = {
    "gradient with two readers": ([("16384x2048", 1, 2)], []),
    "Linear, GELU, Linear": ([("32768x3072", 0, 1)], []),
}


@pytest.mark.parametrize("name", [*AT_TRAINING_SIZE, *[*CASES][::4]])
def test_regions_at_training_size(name: str) -> None:
    """On fake tensors: what is fused, whatever time it is predicted to take, without running it. The plans of
    such regions are compared by digest (tests/tools/test_replay.py)."""
    case, options = CASES[name], Options(enabled=True, strict=True, interpret=True, min_numel=0)
    with FakeTensorMode(allow_non_fake_inputs=True), collect() as records:
        Example(case, case.shapes.training, bf16).step(interpreted(options))()
    expected = case.expected(case.shapes.training, options.min_numel)
    assert found_in(records) == AT_TRAINING_SIZE.get(name, expected)


@pytest.mark.parametrize(
    "name",
    ["LayerNorm", "Qwen3 QK-norm, transpose, RoPE", "conv bias and gate", "dropout before"],
)
def test_results_are_bitwise_reproducible(name: str) -> None:
    case = CASES[name]
    example = Example(case, case.shapes.small, bf16)
    first, again = (example.step(interpreted(ON))() for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


def test_a_block_of_checkpointed_norms() -> None:
    def norm(dim: int) -> nn.Module:
        return Checkpointed(nn.RMSNorm(dim))

    module, x = Block(48, norm), torch.randn(2, 17, 48)
    dy = torch.randn_like(x)
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    for mine, truth in zip(ours, exact_gradients(module, x, dy), strict=True):
        assert float((mine - truth).norm()) <= 1e-6 * float(truth.norm())
    # The statistics of each norm are read; the last region is a bias gradient on its own.
    assert [len(r.inner) for r in records if isinstance(r, RegionRecord)] == [1, 1, 1, 0]
