"""Inductor's kernels where it stores a value on the way: who writes it, and who reads it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, only, traced
from torch.fx import Graph

from mixorder.lowering.lower import lower
from mixorder.schedule.apart import Kernel, kernels_of
from mixorder.schedule.device import H200

FEW, MANY = (2048, 1024), (32768, 768)


def kernels(graph: Graph) -> list[Kernel]:
    return kernels_of(lower(only(graph)), H200)


def kinds(graph: Graph) -> list[str]:
    return [k.kind.value for k in kernels(graph)]


def backward(total: Any, x: Any) -> Any:
    """Sums along and over rows of what five tensors give."""
    return total - x * (total * x).sum(-1, keepdim=True), (total * x).sum(0)


def of_five(x: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    return backward(a + b + c + d + e, x)


def of_four(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    return backward(a + b + c + d, x)


def test_inductors_own_fusion_reads_what_a_kernel_before_it_stored() -> None:
    """As Inductor of torch 2.13 has it: duels of rembert, gptj and swin."""
    five, four = (traced(f, *[(MANY, bf16)] * n) for f, n in ((of_five, 6), (of_four, 5)))
    assert kinds(four) == ["mixed"]
    assert kinds(five) == ["pointwise", "mixed"]
    first, second = kernels(five)
    size = 2 * MANY[0] * MANY[1]
    assert first.work.dram == 6 * size
    assert len({a.buffer for a in second.accesses if a.tiled}) == 3  # it, x and the result


def test_the_first_kernel_along_rows_stores_it_and_the_sums_read_it() -> None:
    graph = traced(of_five, *[(FEW, f32)] * 6)
    assert kinds(graph) == ["rows", "columns"]
    rows, columns = kernels(graph)
    size = 4 * FEW[0] * FEW[1]
    assert rows.work.dram == 8 * size  # six tensors, a result and the value
    assert columns.work.dram == pytest.approx(2 * size, rel=0.01)


def test_sums_over_rows_alone_are_as_lowered() -> None:
    def function(x: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        total = a + b + c + d + e
        return (total * x).sum(0), total.sum(0)

    assert kinds(traced(function, *[(FEW, f32)] * 6)) == ["columns"]


@pytest.mark.parametrize(
    ("tensors", "expected"), [(5, ["pointwise", "pointwise", "columns"]), (4, ["pointwise", "columns"])]
)
def test_a_part_that_takes_much_is_stored_by_a_kernel_before(tensors: int, expected: list[str]) -> None:
    """As the rotary part of GPT-NeoX's queries, in a `cat` with the rest."""

    def function(rest: Any, *some: Any) -> Any:
        total = sum(some[1:], some[0])
        part = total * torch.sigmoid(total)
        whole = torch.cat([part, rest], -1)
        return whole, whole.sum(0)

    rows, part, rest = 2048, 256, 768
    graph = traced(function, ((rows, rest), f32), *[((rows, part), f32)] * tensors)
    assert kinds(graph) == expected
    first, *_, last = kernels(graph)
    if tensors == 5:
        assert first.work.dram == 4 * rows * part * (tensors + 1)
    assert last.work.dram == pytest.approx(4 * rows * (part + rest), rel=0.01)
