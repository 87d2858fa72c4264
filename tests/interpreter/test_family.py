"""The family at small sizes: each case's regions, with their reductions, and errors versus stock's."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from checked import check_case
from graphs import Block, bf16, f32
from running import OFF, ON, compiled, exact_gradients, gradients
from support.cases import CASES, Checkpointed
from torch import nn

from mixorder.report import RegionRecord, collect

interpreted = functools.partial(compiled, fullgraph=True)


# Every other one, in one dtype or the other: the interpreter takes its time. On a GPU each is run in bf16.
@pytest.mark.parametrize(("name", "dtype"), zip([*CASES][::2], itertools.cycle((f32, bf16)), strict=False))
def test_case(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    check_case(case, case.shapes.small, dtype, "cpu", interpreted(ON), interpreted(OFF))


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
