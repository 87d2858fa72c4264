"""These tests run kernels in the Triton interpreter, which triton decides on when it is imported.

`TRITON_INTERPRET=1 pytest tests/interpreter` runs them; in any other run they are skipped.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memoised
import pytest
import torch
from support.inputs import poison
from torch._dynamo.utils import counters
from torch._functorch import config as functorch

from mixorder.schedule.device import MEASURED as H200

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs TRITON_INTERPRET=1"))


@pytest.fixture(scope="session", autouse=True)
def faster() -> Iterator[None]:
    """Saves time in each operation of a kernel, and for each graph a key for a cache."""
    with pytest.MonkeyPatch.context() as patch, functorch.patch(enable_autograd_cache=False):
        memoised.install(patch)
        yield


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.manual_seed(0)
    counters["mixorder"].clear()


@pytest.fixture(autouse=True)
def small_gpu(plan_with: Callable[..., None]) -> None:
    """With all of a GPU's programs, each would get one row of these tests' tensors, and take its time."""
    plan_with(device=dataclasses.replace(H200, num_sm=5))


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Outputs and workspaces start as NaN where the dtype has it; gives their sizes."""
    original, sizes = torch.fx.Interpreter.call_function, []

    def call_function(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        result = original(self, target, args, kwargs)
        if target is torch.ops.aten.empty_strided.default:
            sizes.append(poison(result).numel())
        return result

    monkeypatch.setattr(torch.fx.Interpreter, "call_function", call_function)
    return sizes
