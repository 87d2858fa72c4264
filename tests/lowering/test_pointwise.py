"""Nodes as Inductor's lowerings give them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32, fused, only, pair, traced

from mixorder.errors import Decline, DeclineReason
from mixorder.inductor import lowerings
from mixorder.lowering.lower import lower

aten = torch.ops.aten


class Counting(dict[Any, Any]):
    """Inductor's lowerings, and how many times each was asked for."""

    def __init__(self) -> None:
        super().__init__(lowerings.lowerings)
        self.times = Counter[Any]()

    def __getitem__(self, target: Any) -> Any:
        self.times[target] += 1
        return super().__getitem__(target)


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How many times each op is lowered."""
    counting = Counting()
    monkeypatch.setattr(lowerings, "lowerings", counting)
    return counting.times


def test_an_op_whose_lowering_is_no_loop_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {**lowerings.lowerings, aten.mul.Tensor: lambda *args: None}
    monkeypatch.setattr(lowerings, "lowerings", table)
    with pytest.raises(Decline) as caught:
        lower(only(graphs.pair_graph()))
    assert caught.value.reason is DeclineReason.UNSUPPORTED_OP
    assert caught.value.node_name in {"mul", "mul_1"}


def test_a_node_is_lowered_once_however_often_it_is_read(lowered: Counter[Any]) -> None:
    """`exp` is read by both nests, and twice by one."""

    def function(x: Any, dy: Any) -> Any:
        return pair(torch.exp(x), dy)

    lower(only(traced(function, ((512, 256), f32), ((512, 256), f32))))
    assert lowered[aten.exp.default] == 1


@pytest.mark.parametrize(
    ("op", "function", "count"),
    [
        (aten.exp.default, lambda x, y: (torch.exp(x), torch.exp(y)), 1),
        (aten.exp.default, lambda x, y: (torch.exp(x), torch.exp(y.to(bf16))), 2),
        (aten.atan2.default, lambda x, y: (torch.atan2(x, y), torch.atan2(x, x)), 2),
        (aten.fmod.Scalar, lambda x, y: (torch.fmod(x, 3.0), torch.fmod(y, 3)), 2),
    ],
)
def test_nodes_that_compute_the_same_are_lowered_once(
    lowered: Counter[Any], op: Any, function: Any, count: int
) -> None:
    """Of other operands, or of other numbers, another box is needed."""

    def both(x: Any, y: Any) -> Any:
        one, other = function(x, y)
        return pair(one, other.to(f32))

    lower(only(traced(both, ((512, 256), f32), ((512, 256), f32))))
    assert lowered[op] == count


def test_pieces_come_from_one_lowering(lowered: Counter[Any]) -> None:
    def function(x: Any, z: Any) -> Any:
        a, b = z.split(8, -1)
        return pair(x, torch.cat([b, a], -1))

    lower(only(traced(function, ((64, 16), f32), ((64, 16), f32))))
    assert lowered[aten.split.Tensor] + lowered[aten.split_with_sizes.default] == 1


def test_a_size_that_torch_knows_by_now_is_a_number() -> None:
    """A symbol of a dynamic compile may get a value on the way: the nodes that ask for it stay."""

    def function(x: Any, z: Any) -> Any:
        return pair(x, (z * 2).reshape(512, 256))

    graph = traced(function, ((512, 256), f32), ((256, 512), f32))
    (view,) = graph.find_nodes(op="call_function", target=aten.view.default)
    with graph.inserting_before(view):
        rows = graph.call_function(aten.sym_size.int, (view.args[0], 1))
    rows.meta["val"] = 512
    view.args = (view.args[0], [rows, 256])
    fused(graph)
