"""Inductor's kernels for a region: which there are, and what they move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, fused, layer_norm_backward, merged, only, pair, traced
from torch.fx import Graph

from mixorder.inductor import config, versions
from mixorder.lowering.lower import lower
from mixorder.rewrite.canonicalise import Canonicaliser
from mixorder.schedule.baseline import Kernel, kernels_of
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.facts import BY_ROW, PRICES, instructions_by_node


def kernels(graph: Graph) -> list[Kernel]:
    return kernels_of(lower(only(graph)), H200)


def kinds(graph: Graph) -> list[tuple[str, int]]:
    """Each kernel's kind and launches."""
    return [(k.kind.value, k.launches) for k in kernels(graph)]


# As the kernels that Inductor of torch 2.11 to 2.14 writes for an H200. 2.15 mixes long rows as well.
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
    ],
)
@pytest.mark.parametrize("wide", [False, True])
def test_layer_norm(
    monkeypatch: pytest.MonkeyPatch, rows: int, cols: int, expected: list[tuple[str, int]], wide: bool
) -> None:
    monkeypatch.setattr(versions, "mixes_wide_rows", lambda: wide)
    mixed = wide and rows in (8192, 16384)
    assert kinds(layer_norm_backward(rows, cols)) == ([("mixed", 5)] if mixed else expected)


LARGE = (32768, 1024)


def test_sums_that_are_not_float32_are_not_mixed() -> None:
    def function(x: Any) -> Any:
        return x.sum(-1), x.sum(0)

    assert kinds(traced(function, (LARGE, f32))) == [("mixed", 2)]
    assert kinds(traced(function, (LARGE, torch.float64))) == [("rows", 1), ("columns", 2)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((16384, 2048), [("pointwise", 1)]),  # 512 parts
        ((128, 56, 56, 256), [("pointwise", 1)]),
        ((128, 14, 14, 1280), [("pointwise", 1), ("columns", 1)]),  # 512 parts, and 128 * 14 is no multiple
        ((128, 197, 3072), [("pointwise", 1), ("columns", 1)]),
        ((16383, 2047), [("pointwise", 1), ("columns", 1)]),  # no equal parts
        ((256, 1024), [("pointwise", 1)]),  # 32 parts
        ((16384, 65536), [("pointwise", 1)]),  # 8192 parts
    ],
)
def test_sums_of_all_elements_are_computed_in_passing(shape: Any, expected: Any) -> None:
    """Where equal parts of all elements are whole rows. The second step of a sum is Inductor's either way."""
    assert kinds_of_whole_sums(lambda x, dy: (dy * x, dy.sum(), (dy * x.sin()).sum()), shape) == expected


def test_sums_of_all_elements_beside_sums_of_rows() -> None:
    """A sum that needs those of rows is made of them; Inductor divides any other one by itself."""

    def temperature(x: Any, dy: Any) -> Any:
        dx = dy - (x * dy).sum(-1, keepdim=True)
        return dx, (dx * x).sum()

    def scale(x: Any, dy: Any) -> Any:
        return dy - (x * dy).sum(-1, keepdim=True), (dy * x).sum()

    assert kinds_of_whole_sums(temperature, (16384, 2047)) == [("looped", 1)]
    assert kinds_of_whole_sums(scale, (512, 1024)) == [("rows", 1), ("columns", 1)]


def kinds_of_whole_sums(function: Any, shape: Any) -> list[tuple[str, int]]:
    canonicaliser = Canonicaliser(graph := traced(function, (shape, bf16), (shape, bf16)))
    canonicaliser.begin()
    found = kinds(graph)
    canonicaliser.end()
    return found


@pytest.mark.parametrize("option", [{"triton.mix_order_reduction": False}, {"cpp_wrapper": True}])
def test_nothing_is_mixed_where_the_user_has_it_off(option: dict[str, bool]) -> None:
    graph = traced(pair, (LARGE, f32), (LARGE, f32))
    assert kinds(graph) == [("mixed", 2)]
    with config.patched(option):
        assert kinds(graph) == [("rows", 1), ("columns", 2)]


def test_what_is_left_to_inductor_is_not_mixed() -> None:
    """What is told is compared with Inductor as shipped; what is left otherwise decides what is fused."""
    mixed, plain = (
        fused(traced(pair, (shape, f32), (shape, f32))).expected for shape in (LARGE, (512, 1024))
    )
    assert mixed.fused_us < mixed.apart_us < mixed.left_us
    assert plain.apart_us == plain.left_us


def test_a_quotient_by_a_row_s_value_takes_few_instructions() -> None:
    """Elements of a thread have its reciprocal in common."""

    def costs(function: Any) -> dict[str, int]:
        return instructions_by_node(merged(only(traced(function, ((512, 256), f32)))))

    by_row = costs(lambda x: (x / x.sum(1, keepdim=True), x.sum(0)))
    by_element = costs(lambda x: ((x / (x + 1)).sum(1), x.sum(0)))
    assert by_row["div"] == PRICES[BY_ROW] < by_element["div"] == PRICES["truediv"]


def test_a_kernel_without_reductions_computes_all_for_each_element() -> None:
    def function(x: Any, step: Any) -> Any:
        scaled = x * step.sin()
        return scaled, scaled.sum(0)

    writing, adding = kernels(traced(function, (LARGE, bf16), (LARGE[1:], f32)))
    assert writing.work.instructions > LARGE[0] * LARGE[1] * PRICES["sin"] > adding.work.instructions
