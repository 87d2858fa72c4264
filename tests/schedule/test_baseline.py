"""Inductor's kernels for a region: which there are, and what they move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, layer_norm_backward, only, pair, pair_graph, rms_norm_backward, traced
from torch.fx import Graph

from mixorder.inductor import config
from mixorder.lowering.lower import lower
from mixorder.schedule.baseline import Kernel, kernels_of, microseconds
from mixorder.schedule.device import H200
from mixorder.schedule.kernel_time import TIMES, Kind
from mixorder.schedule.work import Work


def kernels(graph: Graph) -> list[Kernel]:
    return kernels_of(lower(only(graph)), H200)


def kinds(graph: Graph) -> list[tuple[str, int]]:
    """Each kernel's kind and launches."""
    return [(k.kind.value, k.launches) for k in kernels(graph)]


# As the kernels that Inductor of torch 2.11 writes for an H200.
@pytest.mark.parametrize(
    ("rows", "cols", "expected"),
    [
        (512, 768, [("rows", 1), ("columns", 3)]),
        (4096, 1024, [("rows", 1), ("columns", 3)]),  # 4.2 million elements, of at least 5
        (4096, 1025, [("looped", 1), ("columns", 3)]),  # too wide for registers
        (32768, 768, [("mixed", 5)]),
        (65536, 64, [("rows", 1), ("columns", 3)]),  # enough rows, too few elements
        (8192, 4096, [("mixed", 5)]),
        (8192, 8192, [("looped", 1), ("columns", 3)]),  # fewer than two rows for each column
        (16384, 16384, [("looped", 1), ("columns", 1)]),  # as many programs as are wanted without a split
        (65536, 16384, [("mixed", 5)]),
        (65536, 16385, [("looped", 1), ("columns", 1)]),
    ],
)
def test_layer_norm(rows: int, cols: int, expected: list[tuple[str, int]]) -> None:
    assert kinds(layer_norm_backward(rows, cols)) == expected


def test_rms_norm_has_one_sum_of_partial_sums_where_layer_norm_has_two() -> None:
    """PyTorch adds up the partial sums of each result of a mixed kernel; each in bf16 is cast behind that."""
    (rms,), (layer,) = kernels(rms_norm_backward(32768, 768)), kernels(layer_norm_backward(32768, 768))
    assert (rms.sums, rms.launches) == (1, 3)
    assert (layer.sums, layer.launches) == (2, 5)


def test_few_rows_are_not_split() -> None:
    assert kinds(pair_graph(32, 2048)) == [("looped", 1), ("columns", 1)]
    assert kinds(pair_graph(128, 2048)) == [("looped", 1), ("columns", 1)]
    assert kinds(pair_graph(129, 2048)) == [("looped", 1), ("columns", 2)]


@pytest.mark.parametrize(("indices", "launches"), [(32, 3), (264, 1)])
def test_sums_over_rows_and_columns_have_few_outputs(indices: int, launches: int) -> None:
    """As Inductor of torch 2.11 has it: with few outputs, both sums are divided."""

    def channels(x: Any, dy: Any) -> Any:
        product = x * dy
        row = product.sum((2, 3))
        return dy * row[:, :, None, None], product.sum((0, 2, 3)), x.sum((0, 2, 3))

    shape = (64, indices, 28, 28)
    assert kinds(traced(channels, (shape, bf16), (shape, bf16)))[-1] == ("columns", launches)


LARGE = (32768, 1024)


def largest(x: Any, dy: Any) -> Any:
    return dy - x * (x * dy).sum(-1, keepdim=True), (x * dy).amax(0)


def transposed(x: Any, dy: Any) -> Any:
    return pair(x.t(), dy)


@pytest.mark.parametrize(
    ("function", "first"),
    [(pair, LARGE), (largest, LARGE), (transposed, LARGE[::-1])],
    ids=["sum", "maximum", "across memory"],
)
def test_only_sums_of_contiguous_tensors_are_mixed(function: Any, first: tuple[int, int]) -> None:
    found = kinds(traced(function, (first, f32), (LARGE, f32)))
    assert found == ([("mixed", 2)] if function is pair else [("rows", 1), ("columns", 2)])


def test_a_sum_that_needs_another_along_rows_is_not_mixed() -> None:
    def function(x: Any, dy: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx, dw, (dx * dx).sum(0)

    assert kinds(traced(function, (LARGE, f32), (LARGE, f32))) == [("mixed", 2), ("columns", 2)]


def test_sums_that_are_not_float32_are_not_mixed() -> None:
    """`inductor/mix_order.py` keeps Inductor from it."""

    def function(x: Any) -> Any:
        return x.sum(-1), x.sum(0)

    assert kinds(traced(function, (LARGE, f32))) == [("mixed", 2)]
    assert kinds(traced(function, (LARGE, torch.float64))) == [("rows", 1), ("columns", 2)]


@pytest.mark.parametrize("option", [{"triton.mix_order_reduction": False}, {"cpp_wrapper": True}])
def test_nothing_is_mixed_where_the_user_has_it_off(option: dict[str, bool]) -> None:
    graph = traced(pair, (LARGE, f32), (LARGE, f32))
    assert kinds(graph) == [("mixed", 2)]
    with config.patched(option):
        assert kinds(graph) == [("rows", 1), ("columns", 2)]


def test_a_pointwise_result_and_its_sum() -> None:
    """Without a reduction along rows there is nothing to mix with."""

    def function(dy: Any, x: Any) -> Any:
        dx = torch.ops.aten.gelu_backward(dy, x)
        return dx, dx.sum(0)

    graph = traced(function, (LARGE, bf16), (LARGE, bf16))
    assert kinds(graph) == [("pointwise", 1), ("columns", 2)]
    pointwise, columns = kernels(graph)
    size = 2 * LARGE[0] * LARGE[1]
    assert pointwise.work.dram == 3 * size
    # The sum reads what the first has written instead of computing it again from two tensors.
    assert columns.work.dram == size + 2 * LARGE[1]
    assert pointwise.work.instructions > 10 * columns.work.instructions


def test_a_row_in_a_loop_is_read_once_for_each_sum_that_needs_another() -> None:
    """And once more for what it writes: a norm's backward reads twice, with a further norm three times."""
    rows, cols = 2048, 2048
    size = 4 * rows * cols

    def twice(x: Any, dy: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx - (dx * dx).sum(-1, keepdim=True), dw

    once, more = (kernels(traced(f, ((rows, cols), f32), ((rows, cols), f32)))[0] for f in (pair, twice))
    assert (once.kind, more.kind) == (Kind.LOOPED, Kind.LOOPED)
    assert once.work.dram == more.work.dram == 3 * size
    assert (once.work.l2, more.work.l2) == (2 * 3 * size, 3 * 3 * size)


def test_a_mixed_kernel_reads_each_tensor_once_and_computes_in_a_power_of_two_of_lanes() -> None:
    (narrow,), (full,) = kernels(pair_graph(65536, 768)), kernels(pair_graph(49152, 1024))
    assert narrow.work.dram == 3 * 4 * 65536 * 768 + 4 * 768
    assert full.work.dram == 3 * 4 * 49152 * 1024 + 4 * 1024
    assert narrow.work.instructions == pytest.approx(full.work.instructions * 4 / 3, rel=1e-3)


def test_kernels_follow_one_another_and_some_finish_their_sums() -> None:
    work = Work(6e6, 6e6)
    one, three = Kernel(Kind.COLUMNS, work, 10**6, 1, ()), Kernel(Kind.MIXED, work, 10**6, 3, (), sums=1)
    alone = TIMES.us(Kind.COLUMNS, work, H200), TIMES.us(Kind.MIXED, work, H200)
    finishing = TIMES.sum_us + TIMES.final_us + 3 * TIMES.launch_us
    both = microseconds([one, three], H200, TIMES)
    assert both == pytest.approx(TIMES.start_us + sum(alone) + finishing)
