"""Decisions of the writer that a schedule of its own brings about, and how kernels are loaded.

Whole texts: tests/golden.
"""

from __future__ import annotations

from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32, generate, only, pair, traced

from mixorder.codegen.load import load_kernel
from mixorder.codegen.persistent import persistent_kernel
from mixorder.codegen.source import KernelSource

FULL = ((4096, 768), f32)


def pair_of(function: Any, *specs: Any) -> tuple[KernelSource, KernelSource]:
    return graphs.kernels(only(traced(function, *specs)))[2]


def loop_body(text: str) -> str:
    """The lines inside the loop over row tiles."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if "tl.range" in line)
    depth = len(lines[start]) - len(lines[start].lstrip())
    inside = []
    for line in lines[start + 1 :]:
        if len(line) - len(line.lstrip()) <= depth:
            break
        inside.append(line)
    return "\n".join(inside)


def test_same_inputs_same_text_and_names() -> None:
    first, again = (pair_of(pair, FULL, FULL) for _ in range(2))
    assert first == again
    assert load_kernel(first[0]) is load_kernel(again[0])


@pytest.mark.parametrize(("tensors", "cols", "kept"), [(3, 49, True), (2, 49, False), (3, 48, False)])
def test_sectors_that_programs_share_are_not_evicted_first(tensors: int, cols: int, kept: bool) -> None:
    """Windows of 49 in bf16: a softmax's backward. H100, three tensors: 290 us with, 198 without."""

    def windows(*full: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = full[0] * full[1] if tensors == 2 else full[0] * full[1] * full[2]
        dx = product - full[1] * product.sum(-1, keepdim=True)
        return dx, dx.sum(0), dx.amax(0)

    main, final = pair_of(windows, *[((1024, 49, cols), bf16)] * tensors)
    assert ("evict_first" in main.text) != kept and "evict_first" in final.text


def test_column_loads_are_spread_over_the_tile_for_a_loop_over_several() -> None:
    """A program with one tile would load each column once for each row, and spare no conversion."""
    program, schedule, _ = graphs.kernels(only(graphs.rms_norm_backward(4096, 256)))
    rows = 4096 // schedule.splits
    for xblock, spread in ((rows // 2, True), (rows, False)):
        main = generate(program, schedule.changed(tile_rows=xblock), "test")[0].text
        before = main[: main.index("tl.range")]
        assert before.count("tl.load") == 1 and ("broadcast_to" in before) == spread


@pytest.mark.parametrize(("warps", "folds"), [(2, True), (4, False)])
def test_a_thread_that_has_all_rows_adds_them_up_before_it_compensates(warps: int, folds: bool) -> None:
    """256 columns of 4 bytes are the accesses of two warps."""
    loops, schedule, _ = graphs.kernels(only(graphs.pair_graph(4096, 256)))
    text = persistent_kernel(loops, schedule.changed(tile_rows=4, num_warps=warps), "x").text
    assert (", 0)[None, :] - ws0_error" in loop_body(text)) == folds
    assert ("ws0_acc = tl.full([1, R0_BLOCK]" in text) == folds


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
