"""On a GPU: every case of the family at a middle size, against float64 beside stock Inductor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checked import check_case
from graphs import bf16

from cases import CASES, Compile  # isort: skip

pytestmark = pytest.mark.gpu

STRICT = {"mixorder": True, "mixorder_strict": True, "mixorder_min_numel": 0}


def inductor(**options: Any) -> Compile:
    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        return torch.compile(function, options=options, dynamic=False, fullgraph=True)

    return compile


@pytest.fixture(autouse=True)
def no_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hit in a cache of graphs runs no pass, and so reports no regions."""
    monkeypatch.setattr(torch.compiler.config, "force_disable_caches", True)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    check_case(case, case.shapes.middle, bf16, "cuda", inductor(**STRICT), inductor(mixorder=False))
