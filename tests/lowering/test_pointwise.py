"""Nodes as Inductor's lowerings give them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import graphs
import pytest
import torch
from graphs import f32, only, pair, traced
from torch.fx import Node

from mixorder.errors import Decline, DeclineReason
from mixorder.inductor import lowerings
from mixorder.lowering import pointwise as boxes
from mixorder.lowering.lower import lower

aten = torch.ops.aten


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """How many times each op is lowered."""
    times: Counter[Any] = Counter()
    original = boxes.lowered

    def counted(node: Node, operand: Any) -> Any:
        times[node.target] += 1
        return original(node, operand)

    monkeypatch.setattr(boxes, "lowered", counted)
    return times


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


def test_pieces_come_from_one_lowering(lowered: Counter[Any]) -> None:
    def function(x: Any, z: Any) -> Any:
        a, b = z.split(8, -1)
        return pair(x, torch.cat([b, a], -1))

    lower(only(traced(function, ((64, 16), f32), ((64, 16), f32))))
    assert lowered[aten.split.Tensor] + lowered[aten.split_with_sizes.default] == 1
