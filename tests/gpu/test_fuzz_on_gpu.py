"""A few random programs of tools/fuzz.py at a GPU's sizes, and that what they may read is poisoned."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from _differential import check  # noqa: E402
from _inputs import poison_free_memory  # noqa: E402
from _programs import Seeded, make  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [100, 1 << 14, 1 << 18, 3 << 20, 1 << 22])
def test_free_memory_is_poisoned(size):
    held = torch.zeros(size, device="cuda")
    del held
    poison_free_memory()
    assert torch.empty(size, device="cuda").isnan().all()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    check(make(Seeded(seed), small=False, seed=seed), "cuda")
