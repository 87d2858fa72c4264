"""Sums over all rows beside blocks: what a tile writes of them, and the finalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from graphs import bf16, traced, within_tile
from support import quantised

from mixorder.errors import Decline
from mixorder.ir.program import BufferRole, LoopProgram, PartialAccumulate, Reduce
from mixorder.ir.verify import Form, verify
from mixorder.lowering.tile import lower_tile
from mixorder.transform.tile_split import split_spanning


def lowered(function: Callable[..., Any], rows: int = 256, cols: int = 512) -> LoopProgram:
    graph = traced(lambda *x: function(*x), *[((rows, cols), bf16)] * 2)
    return verify(lower_tile(within_tile(graph)), Form.BLOCKED)


def with_sums(x: Any, z: Any) -> Any:
    product = x * z
    bias = product.float().sum(0)
    return *quantised.mx_both(product), bias.to(bf16), bias * 2, product.abs().amax(0)


def test_a_second_nest_has_the_sums_and_what_follows() -> None:
    program = verify(split_spanning(lowered(with_sums)), Form.BLOCKED)
    main, final = program.nests
    assert [str(b) for b in program.role(BufferRole.WORKSPACE)] == [
        "ws0: f32[num_splits, 512]",
        "ws1: bf16[num_splits, 512]",
    ]
    partials = [s for s in main.body if isinstance(s, PartialAccumulate)]
    assert [str(s.index) for s in partials] == ["32*j + 512*s + y"] * 2
    assert {s.kind.name for s in partials} == {"sum", "amax"}
    lines = str(final).splitlines()
    assert lines[0] == "for y in column(512):" and "store out4[y]" in str(final)
    assert [s.kind.name for s in final.body if isinstance(s, Reduce)] == ["sum", "amax"]
    assert str(final).count("store") == 3 and str(main).count("store") == 4


def test_without_sums_nothing_changes() -> None:
    program = lowered(lambda x, z: quantised.mx_both(x * z))
    assert split_spanning(program) is program


def test_values_that_only_the_finalisation_needs_leave_the_main_nest() -> None:
    program = split_spanning(lowered(with_sums))
    main, final = ({s.name for s in n.body if hasattr(s, "name")} for n in program.nests)
    assert not any(name.startswith("mul_1") for name in main) and any(n.startswith("mul_1") for n in final)


def test_a_vector_beside_the_sum_is_read_by_the_finalisation() -> None:
    def function(x: Any, z: Any) -> Any:
        return *quantised.mx_in_place(x), x.sum(0) + z[0]

    (_, final) = split_spanning(lowered(function)).nests
    assert "[y]" in str(final) and "load in" in str(final)


def test_results_that_do_not_lie_column_by_column_are_declined() -> None:
    def function(x: Any, z: Any) -> Any:
        return *quantised.mx_both(x), x.float().sum(0).view(16, 32).t().contiguous()

    with pytest.raises(Decline):
        split_spanning(lowered(function))


def test_a_sum_in_a_program_of_other_sizes() -> None:
    program = split_spanning(lowered(with_sums, 96, 2048))
    assert program.nests[1].loops[0].size == 2048


def test_a_sum_comes_right_behind_its_operands() -> None:
    """`x` and `z` are needed for the casts before it, and for nothing else after it."""
    main = split_spanning(lowered(lambda x, z: (*quantised.mx_both(x - z), (x * z).sum(0)))).nests[0]
    names = [type(s).__name__ for s in main.body]
    at = names.index("PartialAccumulate")
    assert main.body[at].value.name == main.body[at - 1].name  # type: ignore[union-attr]
    assert "Store" not in names[:at] and "Reduce" not in names[:at]
