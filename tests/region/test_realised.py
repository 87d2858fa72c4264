"""Which values of a region Inductor stores by themselves: by users, tensors read, and operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f32, traced, traced_rows
from support.effects import guards
from torch.fx.experimental import _config as symbolic

from mixorder.inductor.config import patched, realize_threshold
from mixorder.region.realised import realised

FULL = ((4096, 1024), f32)
READS, MOST_READS = realize_threshold("reads"), realize_threshold("acc_reads")


def stored(function: Callable[..., Any], tensors: int) -> list[str]:
    """The operators of the values that are stored."""
    graph = traced(function, *[FULL] * tensors)
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    return [str(n.target).removeprefix("aten.") for n in realised(nodes)]


def summed(count: int, *tensors: Any) -> Any:
    total = tensors[0]
    for tensor in tensors[1:count]:
        total = total + tensor
    return total


@pytest.mark.parametrize(("tensors", "expected"), [(READS, []), (READS + 1, ["add.Tensor"])])
def test_what_several_nodes_use_is_stored_if_it_reads_many_tensors(tensors: int, expected: list[str]) -> None:
    def function(*args: Any) -> Any:
        total = summed(tensors, *args)
        return total.sum(-1), (total * 2).sum(0)

    assert stored(function, tensors) == expected


@pytest.mark.parametrize(("tensors", "expected"), [(MOST_READS, 0), (MOST_READS + 1, 1)])
def test_what_one_node_uses_may_read_more(tensors: int, expected: int) -> None:
    assert len(stored(lambda *args: summed(tensors, *args).sum(0), tensors)) == expected


@pytest.mark.parametrize(("option", "tensors"), [("reads", 3), ("acc_reads", 5), ("opcount", 5)])
def test_inductors_options_are_asked(option: str, tensors: int) -> None:
    def function(*args: Any) -> Any:
        total = summed(tensors, *args)
        return total.sum(-1) if option != "reads" else (total.sum(-1), (total * 2).sum(0))

    assert stored(function, tensors) == []
    with patched({f"realize_{option}_threshold": 2}):
        assert stored(function, tensors)


def test_a_size_that_may_be_one_gets_no_guard() -> None:
    """With one, Inductor compiles what is left alone in another way (torch 2.11: not at all)."""
    with symbolic.patch(backed_size_oblivious=True):
        graph = traced_rows(lambda x, r: (x + r).sum(0), ((48, 64), f32), ((48, 1), f32))
        before = guards(graph)
        realised(graph.nodes)
    assert guards(graph) == before


def test_what_takes_many_operations_is_stored() -> None:
    """Each is counted once, however many of the loop's values need it."""

    def chain(steps: int) -> Callable[..., Any]:
        def function(x: Any, y: Any) -> Any:
            for _ in range(steps):
                x = torch.sigmoid(x * y)
            return x.sum(0)

        return function

    def doubled(x: Any, y: Any) -> Any:
        for _ in range(8):
            x = x * x + y
        return x.sum(0)

    assert stored(chain(13), 2) == []
    assert len(stored(chain(16), 2)) == 1
    assert stored(doubled, 2) == []


def test_a_result_that_is_read_again_is_stored() -> None:
    def function(x: Any, y: Any) -> Any:
        dx = x * y
        return dx, dx.sum(0)

    assert stored(function, 2) == ["mul.Tensor"]
    assert stored(lambda x, y: ((x * y).reshape(64, -1), (x * y).sum(0)), 2) == []


def test_a_sum_is_no_operation_of_what_follows() -> None:
    def function(*args: Any) -> Any:
        rows = summed(READS, *args).sum(-1, keepdim=True)
        return (args[0] - rows).sum(0), (args[0] * rows).sum(0)

    assert stored(function, READS) == []


def test_numbers_are_no_tensors() -> None:
    graph = traced(lambda x, y, s: ((x * y * s).sum(0), (x * s).sum(-1)), FULL, FULL, ((1,), bf16))
    assert realised([n for n in graph.nodes if n.op == "call_function"]) == []
