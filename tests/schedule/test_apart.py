"""Inductor's kernels for a region: which there are, what they move, and what L2 keeps between them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from graphs import bf16, f32, layer_norm_backward, only, pair, pair_graph, rms_norm_backward, traced
from torch.fx import Graph

from mixorder.inductor import config
from mixorder.lowering.lower import lower
from mixorder.schedule import split
from mixorder.schedule.apart import Kernel, kernels_of, microseconds
from mixorder.schedule.device import H200
from mixorder.schedule.kernel_time import SERIAL, SERIAL_COLS, TIMES, Kind, Walk
from mixorder.schedule.work import Access, Work


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
    assert (rms.sums, rms.casts, rms.launches) == (1, 1, 3)
    assert (layer.sums, layer.casts, layer.launches) == (2, 2, 5)


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


def scaled(x: Any, dy: Any, weight: Any) -> Any:
    """The gradients of a layer's scale and bias (ConvNeXt): one sum reads x and dy, one what is stored."""
    dx = dy * weight
    return dx, (x * dy).sum(0), dx.sum(0)


def test_sums_of_different_tensors_have_a_kernel_each() -> None:
    """As Inductor of torch 2.11 has it: two kernels of two launches beside the pointwise one."""
    graph = traced(scaled, (LARGE, bf16), (LARGE, bf16), ((1, LARGE[1]), bf16))
    assert kinds(graph) == [("pointwise", 1), ("columns", 2), ("columns", 2)]
    _, first, second = kernels(graph)
    size = 2 * LARGE[0] * LARGE[1]
    assert sorted([first.work.dram // size, second.work.dram // size]) == [1, 2]


def test_sums_of_the_same_tensors_have_one_kernel() -> None:
    """Programs wait for each load beyond the first, tile by tile: 128 rows are 4 tiles, 512 are 64."""

    def one(x: Any, dy: Any) -> Any:
        dx = torch.ops.aten.gelu_backward(dy, x)
        return dx, dx.sum(0)

    def both(x: Any, dy: Any) -> Any:
        dx = torch.ops.aten.gelu_backward(dy, x)
        return dx, (x * dx).sum(0), dx.sum(0)

    for rows in (4096, 65536):
        inputs = ((rows, 1024), bf16), ((rows, 1024), bf16)
        assert kinds(traced(both, *inputs)) == [("pointwise", 1), ("columns", 3)]
        few, many = (kernels(traced(f, *inputs))[1].walk for f in (one, both))
        assert few == Walk()
        assert many.turns == {4096: 4, 65536: 64}[rows]
        assert many.tiles == rows * 1024 / 512


def test_a_sum_of_tensors_in_both_orders_has_a_kernel_of_its_own() -> None:
    """As Inductor of torch 2.11 has it: the sum of x * dy has tiles of rows and columns, that of dy not."""

    def function(x: Any, dy: Any) -> Any:
        x = x.permute(0, 2, 1).reshape(-1, 768)
        return dy - x * (x * dy).sum(-1, keepdim=True), (x * dy).sum(0), dy.sum(0)

    pictures, rows = ((64, 768, 49), f32), ((64 * 49, 768), f32)
    assert kinds(traced(function, pictures, rows)) == [("rows", 1), ("columns", 2), ("columns", 2)]


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


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
def test_sums_that_are_not_float32_are_not_mixed(dtype: torch.dtype) -> None:
    """`inductor/mix_order.py` keeps Inductor from it."""

    def function(x: Any) -> Any:
        return x.sum(-1), x.sum(0)

    assert kinds(traced(function, (LARGE, f32))) == [("mixed", 2)]
    assert kinds(traced(function, (LARGE, dtype))) == [("rows", 1), ("columns", 2)]


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
    assert pointwise.work.light > 10 * columns.work.light


def test_the_sum_of_a_transposed_copy_reads_the_copy() -> None:
    """As many bytes and requests as the input, which lies across: XCiT, 50176x1152."""

    def function(x: Any) -> Any:
        copy = x.permute(0, 2, 1).clone(memory_format=torch.contiguous_format)
        return copy, copy.reshape(-1, LARGE[1]).sum(0)

    pointwise, columns = kernels(traced(function, ((LARGE[0] // 64, LARGE[1], 64), bf16)))
    assert pointwise.work.lines > 0
    assert columns.work.lines < pointwise.work.lines / 100


def test_rows_that_its_parts_do_not_divide_take_longer() -> None:
    """The loads of the last part are masked by their row."""
    graphs = (traced(largest, ((rows, 1024), f32), ((rows, 1024), f32)) for rows in (16384, 16381))
    even, odd = (kernels(graph)[1] for graph in graphs)
    assert split.parts(16384, 1024, H200) == split.parts(16381, 1024, H200) > 1
    assert odd.work.dram / even.work.dram == pytest.approx(split.UNEVEN, rel=0.01)


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
    assert narrow.work.light == pytest.approx(full.work.light * 4 / 3, rel=1e-3)


TENSOR = 6 * 10**6  # bytes
ROUND = dataclasses.replace(
    TIMES,
    start_us=10.0,
    launch_us=2.0,
    sum_us=7.0,
    serial_us=0.5,
    memory_mb_us=1.0,
    l2_mb_us=1e9,
    program_us=0.0,
    sharpness=1000.0,
    share={kind.value: 1.0 for kind in Kind},
    latency_us={kind.value: 0.0 for kind in Kind} | {"columns": 1.0, "final": 1.0},
)


def reading(buffer: str, size: int = TENSOR, launches: int = 1, sums: int = 0) -> Kernel:
    access = Access(buffer, size, size, size)
    partials = {"partials": SERIAL, "outputs": SERIAL_COLS}
    return Kernel(Kind.COLUMNS, Work(size, size), 10**6, launches, (access,), sums=sums, **partials)


PARTIAL_US = 4 * SERIAL * SERIAL_COLS / 1e6  # of moving all partial sums


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ([reading("a")], 10 + 7),
        ([reading("a"), reading("b")], 10 + 7 + 2 + 7),
        (
            [reading("a", launches=2)],
            10 + 7 + 2 + 1 + PARTIAL_US,
        ),
        ([reading("a", launches=3, sums=2)], 10 + 7 + 2 * (2 + 7 + PARTIAL_US)),
        # No part of a tensor is found in L2 by the next kernel.
        ([reading("a"), reading("a")], 10 + 7 + 2 + 7),
    ],
)
def test_time_of_kernels_one_after_the_other(sequence: list[Kernel], expected: float) -> None:
    assert microseconds(sequence, H200, ROUND) == pytest.approx(expected, rel=1e-2)


def test_few_partial_sums_are_added_one_after_the_other() -> None:
    """By PyTorch, and those of few columns."""
    few, many = (ROUND.summing_us(n, SERIAL_COLS, H200) for n in (SERIAL - 1, SERIAL))
    assert few == 0.5 * (SERIAL - 1) > many == pytest.approx(7 + PARTIAL_US)
    assert ROUND.summing_us(4 * SERIAL, SERIAL_COLS - 1, H200) == 0.5 * SERIAL
