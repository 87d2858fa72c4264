"""From a region to two nests: what is rounded and cast, and what is read under a condition.

Results are compared in tests/transform/test_results.py.
"""

from __future__ import annotations

import sys
from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32, f64, only, pair, traced

from mixorder.ir.program import Compute, Load, LoopProgram, Reduce
from mixorder.ir.program import operands as operand_names
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.lowering.tracer import Tracer

FULL = ((512, 256), f32)


def lowered(function: Any, *specs: Any) -> LoopProgram:
    return verify(lower(only(traced(function, *specs))), Form.LOWERED)


def statements(program: LoopProgram, kind: type) -> list[Any]:
    return [s for nest in program.nests for s in nest.body if isinstance(s, kind)]


HALF = ((512, 256), bf16)


def of_largest(x: Any, dy: Any, most: Any) -> Any:
    """The gradient of a maximum that was stored, and of a sum of rows beside it."""
    product = x * dy
    equal = product == most
    share = most / equal.float().sum(-1, keepdim=True)
    return share * equal, (dy * x.abs()).sum(0)


def roundings(program: LoopProgram) -> list[str]:
    """What is rounded, by the names of nodes."""
    found = (s for s in statements(program, Compute) if s.op == "to_dtype")
    names = {s.args[0].name for s in found if dict(s.kwargs).get("use_compute_types") is False}
    return sorted(name.split(".")[0] for name in names)


def test_a_value_is_rounded_where_it_is_compared_with_a_stored_one() -> None:
    """What is loaded needs no rounding, and nothing else has any."""
    assert roundings(lowered(of_largest, HALF, HALF, ((512, 1), bf16))) == ["mul"]


def test_nothing_is_rounded_in_float32() -> None:
    assert roundings(lowered(of_largest, FULL, FULL, ((512, 1), f32))) == []


def test_nothing_is_rounded_where_a_value_is_compared_with_a_number() -> None:
    def function(x: Any, dy: Any) -> Any:
        return torch.where(x * dy > 0.5, x, dy) * (x * dy).sum(-1, keepdim=True), (x * dy).sum(0)

    assert roundings(lowered(function, HALF, HALF)) == []


def test_the_largest_of_what_is_rounded_is_not_rounded_again() -> None:
    def function(x: Any, dy: Any) -> Any:
        product = x * dy
        return torch.where(product == product.amax(-1, keepdim=True), x, dy), product.sum(0)

    assert roundings(lowered(function, HALF, HALF)) == ["mul"]


def test_what_is_marked_rounds_no_operand_that_is_loaded() -> None:
    graph = traced(lambda x, dy: pair(x, dy), HALF, HALF)
    for node in graph.nodes:
        if node.target is torch.ops.aten.mul.Tensor:
            node.meta["low_precision_pointwise_barrier"] = True
    assert roundings(verify(lower(only(graph)), Form.LOWERED)) == ["mul", "mul_1", "sum_1"]


def test_a_cast_between_compute_dtypes_stays() -> None:
    def function(x: Any, dy: Any) -> Any:
        dx, dw = pair(x.to(f64), dy.to(f64))
        return dx.to(f32), dw

    program = lowered(function, FULL, FULL)
    assert [s.args[1] for s in statements(program, Compute) if s.op == "to_dtype"] != []


def test_a_predicate_is_an_operand_of_its_load() -> None:
    """So that every transform keeps it, and its value's axes are the load's."""

    def function(x: Any, z: Any) -> Any:
        return pair(x, torch.cat([z[:, 9:].exp(), z[:, :4], z[:, 4:9]], 1))

    program = graphs.merged(only(traced(function, *[((8, 16), f32)] * 2)))
    nest = program.nests[0]
    deps = nest.dependence()
    guarded = [s for s in nest.statements if isinstance(s, Load) and s.predicate is not None]
    assert len(guarded) == 3
    for load in guarded:
        assert load.predicate is not None and list(operand_names(load)) == [load.predicate.name]
        assert deps[load.predicate.name] <= deps[load.name]


def of_pictures(x: Any, dy: Any) -> Any:
    """The backward of a norm of pictures, whose gradient is added up over all pixels behind two views."""
    dx = dy - x * (x * dy).sum(3, keepdim=True)
    return dx, (x * dy).sum((0, 1, 2)), dx.reshape(4, 128, 32).reshape(512, 32).sum(0)


PICTURES = ((4, 8, 16, 32), f32)


def test_equal_rows_that_the_algebra_of_divisions_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of torch simplifies less: without any of it, a row is read at (x % 128 // 16) % 8."""
    expected = statements(lowered(of_pictures, PICTURES, PICTURES), Reduce)
    monkeypatch.setattr(Tracer, "simplify", lambda self, index: index)
    found = statements(lower(only(traced(of_pictures, PICTURES, PICTURES))), Reduce)
    assert [(s.kind, s.axes) for s in found] == [(s.kind, s.axes) for s in expected]


def test_a_long_chain_of_operators_is_lowered() -> None:
    """Each is traced by a call of the one behind it, deeper than Python's stack is by default."""

    def chained(x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for i in range(300):
            x = x * dy + i
        return x.sum(-1), x.sum(0)

    graph = traced(chained, ((512, 256), f32), ((512, 256), f32))
    region, limit = only(graph), sys.getrecursionlimit()
    assert len(region.nodes) > 600 and graphs.ops(graphs.merged(region)).count("mul") == 300
    assert sys.getrecursionlimit() == limit
    assert graphs.fused(graph).strategy == "persistent"
