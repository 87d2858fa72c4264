"""Functions without branches: what they compute by PyTorch. Their PTX is run
on a GPU (tests/gpu/test_assembly_on_gpu.py), and digests hold it."""

from __future__ import annotations

import pytest
import torch

from mixorder.codegen.branchless import FUNCTIONS as OURS
from mixorder.transform.branches import FUNCTIONS, OF_EAGER, PREFIX


@pytest.mark.parametrize("function", sorted(FUNCTIONS | OF_EAGER))
def test_the_meaning(function: str) -> None:
    x = torch.cat([torch.linspace(-100, 100, 4001), torch.tensor([0.0, float("inf"), float("nan")])])
    found = OURS[PREFIX + function].meaning(x)
    assert torch.allclose(found, getattr(torch, function)(x.double()).float(), equal_nan=True)
