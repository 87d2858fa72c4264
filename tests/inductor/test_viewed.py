"""Buffers whose strides are open: a launch changes none that views have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.fx import Graph, Node, symbolic_trace

from mixorder.inductor import viewed

GAPS = (1088, 1)


def buffer() -> ir.TensorBox:
    """Of 4 rows of 1030 columns; a view of it was made with gaps between its rows, as by torch 2.11."""
    layout = ir.FlexibleLayout(torch.device("cpu"), torch.bfloat16, [4, 1030])
    layout.stride = list(GAPS)
    return ir.TensorBox(ir.StorageBox(ir.Buffer(name="buf0", layout=layout)))


def lowered(of_ours: bool, has_view: bool, monkeypatch: pytest.MonkeyPatch) -> ir.Layout:
    """The buffer's layout once a launch that reads it was lowered."""
    graph = Graph()
    x = graph.placeholder("x")
    if has_view:
        graph.call_function(torch.ops.aten.view.default, (x, [4120]))
    launch = graph.call_function(torch.ops.aten.relu.default, (x,))
    value = buffer()
    monkeypatch.setattr(viewed, "our_kernel", lambda _: of_ours or None)

    def original(self: Any, node: Node) -> str:
        return "lowered"

    run_node = viewed.settled(original)
    with V.set_graph_handler(GraphLowering(symbolic_trace(torch.nn.Identity()))):
        assert run_node(SimpleNamespace(env={x: value}), launch) == "lowered"
        return value.get_layout()


def test_the_strides_of_a_view_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = lowered(True, True, monkeypatch)
    assert isinstance(layout, ir.FixedLayout) and tuple(layout.stride) == GAPS


@pytest.mark.parametrize(("of_ours", "has_view"), [(False, True), (True, False)])
def test_others_stay_open(of_ours: bool, has_view: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(lowered(of_ours, has_view, monkeypatch), ir.FlexibleLayout)


def test_what_is_no_buffer_is_left_alone() -> None:
    viewed.settle(None)
    viewed.settle(3)
