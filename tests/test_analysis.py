"""Inductor's analysis of our kernels: once per kernel, with the same answer, and never of other people's."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch

from mixorder import analysis


class Function:
    """As much of a `JITFunction` as is looked at."""

    def __init__(self, name: str, src: str) -> None:
        self.__name__, self.src = name, src


class Autotuner:
    def __init__(self, function: Function, **constants: int) -> None:
        self.fn, self.configs = function, [types.SimpleNamespace(kwargs=constants)]


OURS = Function("triton_mixorder_sum_0", "text")
F32, BF16 = torch.empty(2), torch.empty(2, dtype=torch.bfloat16)


@pytest.fixture
def asked() -> tuple[Callable[..., Any], list[Any]]:
    """The wrapped analysis, and what the original was asked."""
    seen: list[Any] = []

    def original(kernel: Any, kwargs: dict[str, Any], tma: dict[str, Any]) -> int:
        seen.append((kernel, kwargs, tma))
        return len(seen)

    module = types.ModuleType("triton_kernel_wrap")
    module.identify_accessed_tensors = original  # type: ignore[attr-defined]
    analysis.share(module)
    wrapped = module.identify_accessed_tensors
    analysis.share(module)
    assert module.identify_accessed_tensors is wrapped
    return wrapped, seen


def test_a_kernel_is_analysed_once(asked: tuple[Callable[..., Any], list[Any]]) -> None:
    analyse, seen = asked
    first = analyse(OURS, {"in0_ptr": F32, "rows": sympy.Symbol("s0"), "XBLOCK": 4}, {})
    assert analyse(OURS, {"in0_ptr": F32 + 1, "rows": sympy.Symbol("s1"), "XBLOCK": 4}, {}) == first
    assert analyse(Autotuner(OURS, XBLOCK=4), {"in0_ptr": F32, "rows": sympy.Symbol("s0")}, {}) == first
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("kernel", "kwargs", "tma"),
    [
        (Function("triton_mixorder_sum_0", "other text"), {"in0_ptr": F32, "XBLOCK": 4}, {}),
        (Autotuner(OURS, XBLOCK=8), {"in0_ptr": F32}, {}),
        (OURS, {"in0_ptr": BF16, "XBLOCK": 4}, {}),
        (OURS, {"in0_ptr": F32, "XBLOCK": 4.0}, {}),
        (OURS, {"in0_ptr": F32, "XBLOCK": 5}, {}),
        (OURS, {"in1_ptr": F32, "XBLOCK": 4}, {}),
        (OURS, {"in0_ptr": F32, "XBLOCK": 4}, {"in0_ptr": ()}),
    ],
)
def test_what_differs_is_analysed_anew(
    asked: tuple[Callable[..., Any], list[Any]], kernel: Any, kwargs: dict[str, Any], tma: dict[str, Any]
) -> None:
    analyse, seen = asked
    analyse(OURS, {"in0_ptr": F32, "XBLOCK": 4}, {})
    analyse(kernel, kwargs, tma)
    assert len(seen) == 2 and seen[1] == (kernel, kwargs, tma)


@pytest.mark.parametrize(
    ("kernel", "kwargs"),
    [
        (Function("my_kernel", "text"), {"in0_ptr": F32}),
        (types.SimpleNamespace(__name__="triton_mixorder_without_text"), {"in0_ptr": F32}),
        (OURS, {"in0_ptr": None}),
    ],
)
def test_what_is_not_ours_or_not_known_is_analysed_each_time(
    asked: tuple[Callable[..., Any], list[Any]], kernel: Any, kwargs: dict[str, Any]
) -> None:
    analyse, seen = asked
    for _ in range(2):
        analyse(kernel, kwargs, {})
    assert len(seen) == 2


def test_memory_is_bounded(
    asked: tuple[Callable[..., Any], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "_MAX_KERNELS", 2)
    analyse, seen = asked
    for text in "aabca":
        analyse(Function("triton_mixorder_sum_0", text), {}, {})
    assert len(seen) == 4  # a is forgotten with the third


def test_torch_has_what_is_wrapped() -> None:
    import torch._higher_order_ops.triton_kernel_wrap as module

    names = ("identify_accessed_tensors", "identify_mutated_tensors")
    assert any(hasattr(module, name) for name in names)
