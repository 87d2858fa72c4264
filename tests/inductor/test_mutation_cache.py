"""Inductor's analysis of our kernels: once per kernel, with the same answer, and never of other people's."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import triton
from torch._higher_order_ops import triton_kernel_wrap
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError

from mixorder.codegen.load import load_function
from mixorder.inductor import mutation_cache as analysis
from mixorder.inductor.versions import mutation_analysis


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


SOURCE = """
import triton
import triton.language as tl
@triton.jit
def {name}(in0_ptr, out0_ptr, rows, XBLOCK: tl.constexpr):
    at = tl.arange(0, XBLOCK)
    tl.store(out0_ptr + at, tl.sqrt_rn(tl.load(in0_ptr + at, at < rows)), at < rows)
"""
F64 = torch.empty(2, dtype=torch.float64)


@pytest.fixture
def for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles, as if there were a GPU."""
    target = GPUTarget("cuda", 90, 32)
    active = types.SimpleNamespace(get_current_target=lambda: target)
    monkeypatch.setattr(triton.runtime.driver, "_active", active)
    assert triton.runtime.driver.active.get_current_target() == target


def compiled(kind: str) -> Any:
    name = f"{analysis.PREFIX}{kind}"
    return triton.autotune([triton.Config({"XBLOCK": 8})], [])(load_function(SOURCE.format(name=name), name))


@pytest.mark.usefixtures("for_hopper")
def test_what_triton_rejects_is_raised_each_time_it_is_asked_for() -> None:
    """Square roots rounded to the nearest are there for float32 alone."""
    good, bad = ({"in0_ptr": t, "out0_ptr": t, "rows": 5} for t in (F32, F64))
    kernel = compiled("sqrt")
    for _ in range(2):
        analysis.check(triton_kernel_wrap, kernel, good)
        with pytest.raises(CompilationError):
            analysis.check(triton_kernel_wrap, kernel, bad)


@pytest.mark.usefixtures("for_hopper")
def test_what_the_check_learns_serves_the_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    original, made = triton_kernel_wrap.generate_ttir, []

    def generate_ttir(*args: Any) -> Any:
        made.append(args)
        return original(*args)

    monkeypatch.setattr(triton_kernel_wrap, "generate_ttir", generate_ttir)
    kwargs, kernel = {"in0_ptr": F32, "out0_ptr": F32, "rows": sympy.Symbol("s0")}, compiled("once")
    analysis.check(triton_kernel_wrap, kernel, kwargs)
    analyse = getattr(triton_kernel_wrap, mutation_analysis(triton_kernel_wrap))
    analyse(kernel, kwargs, {})
    analysis.check(triton_kernel_wrap, kernel, kwargs)
    assert len(made) == 1


@pytest.mark.usefixtures("for_hopper")
def test_what_is_not_a_matter_of_the_kernel_is_no_reason_to_refuse_it() -> None:
    analysis.check(triton_kernel_wrap, compiled("other"), {"in0_ptr": F32})  # too few arguments


ASSEMBLY = """
import triton
import triton.language as tl
@triton.jit
def {name}(in0_ptr, out0_ptr, XBLOCK: tl.constexpr):
    at = tl.arange(0, XBLOCK)
    x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(in0_ptr + at)], tl.float32, False, 1)
    tl.store(out0_ptr + at, x)
"""


@pytest.mark.usefixtures("for_hopper")
@pytest.mark.parametrize("own", [True, False])
def test_assembly_writes_to_no_argument(own: bool) -> None:
    analysis.share(triton_kernel_wrap)
    name = f"{analysis.PREFIX if own else ''}assembly"
    kernel = triton.autotune([triton.Config({"XBLOCK": 8})], [])(
        load_function(ASSEMBLY.format(name=name), name)
    )
    analyse = getattr(triton_kernel_wrap, mutation_analysis(triton_kernel_wrap))
    found = analyse(kernel, {"in0_ptr": F32, "out0_ptr": F32}, {})
    if hasattr(found, "read_writes"):  # newer torch also tells what is read
        found = [one.name for one in found.read_writes.writes]
    assert found == (["out0_ptr"] if own else ["in0_ptr", "out0_ptr"])
