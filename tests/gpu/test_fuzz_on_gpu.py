"""A few random programs of tools/fuzz.py at a GPU's sizes, and that what they may read is poisoned."""

import pytest
import torch
from support.differential import check
from support.inputs import poison_free_memory
from support.programs import make


@pytest.mark.parametrize("size", [100, 1 << 14, 1 << 18, 3 << 20, 1 << 22])
def test_free_memory_is_poisoned(size):
    held = torch.zeros(size, device="cuda")
    del held
    poison_free_memory()
    assert torch.empty(size, device="cuda").isnan().all()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    check(make(seed, small=False), "cuda")
