"""Each of these tests needs a GPU, and starts with nothing compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.inputs import poison_free_memory
from torch._dynamo.utils import counters

from mixorder.tune import tuner

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    counters["mixorder"].clear()
    if torch.cuda.is_available():
        poison_free_memory()  # what a kernel leaves out is NaN


@pytest.fixture
def no_winners(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache of winners of tuning; Inductor's own caches stay where they are."""
    tuner.say_once.cache_clear()
    monkeypatch.setattr(tuner.config, "winners_folder", lambda: tmp_path / "mixorder")
