"""The order of a second stage's statements, and how kernels are loaded.

Whole texts: tests/golden.
"""

from __future__ import annotations

import inspect
from typing import Any

import graphs
import torch
from graphs import bf16, f32, only, pair, traced
from torch._inductor.utils import fresh_cache

from mixorder.codegen.load import load_kernel
from mixorder.codegen.source import KernelSource


def pair_of(function: Any, *specs: Any) -> tuple[KernelSource, KernelSource]:
    return graphs.kernels(only(traced(function, *specs)))[2]


def test_a_kernel_has_a_file_where_the_cache_was_emptied() -> None:
    """Inductor looks for a kernel's line in its file, also where the kernel was loaded before."""
    source, _ = pair_of(pair, ((4096, 776), f32), ((4096, 776), f32))
    with fresh_cache():
        load_kernel(source)
    lines, _ = inspect.getsourcelines(load_kernel(source).fn.fn)
    assert any(source.name in line for line in lines)


def test_a_total_is_stored_before_it_is_divided() -> None:
    """In each dtype. Triton 3.6 does not compile the kernel otherwise."""

    def function(x: Any, y: Any) -> Any:
        total = (x * y).sum(0)
        return y - (x * y).sum(1, keepdim=True), total.to(bf16), total, (x * y).mean(0)

    _, final = pair_of(function, ((300, 24), f32), ((300, 24), f32))
    lines = [line for line in final.text.splitlines() if "tl.store" in line or " / " in line]
    assert ["tl.store" in line for line in lines] == [True, True, False, True]


def test_maxima_of_float64_are_inductors() -> None:
    """Those of float32 are one instruction, which propagates NaN."""

    def function(x: Any, dy: Any) -> Any:
        return dy * (x * dy).amax(1, keepdim=True), (x * dy).amax(0)

    full = ((512, 256), torch.float64)
    assert not any("maximum_or_nan" in kernel.text for kernel in pair_of(function, full, full))
