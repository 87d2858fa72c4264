"""Decisions of the writer that a schedule of its own brings about, and how kernels are loaded.

Whole texts: tests/golden.
"""

from __future__ import annotations

import inspect
from typing import Any

import graphs
from graphs import bf16, f32, only, pair, traced
from torch._inductor.utils import fresh_cache

from mixorder.codegen.load import load_kernel
from mixorder.codegen.source import KernelSource

FULL = ((4096, 768), f32)


def pair_of(function: Any, *specs: Any) -> tuple[KernelSource, KernelSource]:
    return graphs.kernels(only(traced(function, *specs)))[2]


def test_same_inputs_same_text_and_names() -> None:
    first, again = (pair_of(pair, FULL, FULL) for _ in range(2))
    assert first == again
    assert load_kernel(first[0]) is load_kernel(again[0])


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


def test_a_kernel_is_loaded_with_its_one_configuration() -> None:
    _, schedule, (main, _) = graphs.kernels(only(graphs.pair_graph(32768, 768)))
    (config,) = load_kernel(main).configs
    assert config.kwargs == {"XBLOCK": schedule.tile_rows, "NUM_STAGES": schedule.launch.num_stages}
    assert (config.num_warps, config.num_stages) == (schedule.launch.num_warps, schedule.launch.num_stages)
