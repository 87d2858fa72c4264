"""Sums that are made at once: which, and what becomes of them."""

from __future__ import annotations

import re
from typing import Any

import graphs
import pytest
import sympy
import torch
from graphs import bf16, f32, only, traced

from mixorder.codegen.joint import definition, sums, turns
from mixorder.loops.ir import AMAX, SUM, Compute, Reduce, ReductionKind, Ref, Statement

X, Y = sympy.symbols("x y")


def reduced(name: str, value: str, axis: sympy.Symbol = Y, kind: ReductionKind = SUM) -> Reduce:
    return Reduce(name, kind, Ref(value), (axis,), torch.float32)


def computed(name: str, *values: str) -> Compute:
    return Compute(name, "add", tuple(map(Ref, values)), (), torch.float32)


def names(*statements: Statement) -> list[str]:
    return [" ".join(s.name for s in group) for group in turns(statements)]  # type: ignore[union-attr]


def test_sums_wait_for_others_until_one_is_used() -> None:
    a, b = reduced("a", "v"), reduced("b", "w")
    assert names(a, b) == ["a b"]
    assert names(a, computed("w", "v", "v"), b, computed("c", "a", "b")) == ["w", "a b", "c"]
    assert names(a, computed("w", "v", "a"), b) == ["a", "w", "b"]


def test_what_is_no_sum_or_of_another_axis_is_made_alone() -> None:
    assert names(reduced("a", "v"), reduced("b", "w", X), reduced("c", "w", X)) == ["a", "b c"]
    assert names(reduced("a", "v", kind=AMAX), reduced("b", "w", kind=AMAX)) == ["a", "b"]
    assert names(reduced("a", "v"), reduced("b", "w", kind=AMAX), reduced("c", "u")) == ["b", "a c"]


@pytest.mark.parametrize("n", [2, 3])
def test_the_function_adds_pair_by_pair(n: int) -> None:
    space: dict[str, Any] = {}
    exec(definition(n).replace("@triton.jit\n", ""), space)
    assert space[f"add_{n}"](*range(n), *range(10, 10 + n)) == tuple(10 + 2 * i for i in range(n))
    assert sums([f"v{i}" for i in range(n)], 1).endswith(f", 1, add_{n})")


@pytest.mark.parametrize("cols", [768, 5120, 65536])
def test_the_sums_of_a_layer_norm(cols: int) -> None:
    """Of a row, and of the partials: held, in chunks, and shared."""
    _, schedule, sources = graphs.kernels(only(graphs.layer_norm_backward(8192, cols)))
    assert (schedule.chunks > 1, schedule.parts > 1) == (cols == 5120, cols == 65536)
    for source, axis, times in zip(sources, (1, 0), (2 if cols == 65536 else 1, 1), strict=True):
        found = re.findall(r"sum0, sum1 = tl\.reduce\(.*, (\d), add_2\)", source.text)
        assert found == [str(axis)] * times
        assert source.text.startswith(definition(2)) and source.text.count("@triton.jit") == 2


def test_sums_that_need_each_other_are_made_one_by_one() -> None:
    def function(x: Any, dy: Any, w: Any) -> Any:
        weighted = dy * w
        total = weighted.sum(1, keepdim=True)
        return weighted - (weighted * total * x).sum(1, keepdim=True), (dy * x).sum(0)

    full = ((8192, 768), bf16)
    main, _ = graphs.kernels(only(traced(function, full, full, ((768,), f32))))[2]
    assert main.text.count("tl.sum(") >= 2 and "add_2" not in main.text
