"""Buffers whose strides are open: a launch changes none that views have."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V, ops
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
    monkeypatch.setattr(viewed, "launches_ours", lambda _: of_ours)

    def original(self: Any, node: Node) -> str:
        return "lowered"

    run_node = functools.partial(viewed.settled, original)
    with V.set_graph_handler(GraphLowering(symbolic_trace(torch.nn.Identity()))):
        assert run_node(SimpleNamespace(env={x: value}), launch) == "lowered"
        return value.get_layout()


def test_the_strides_of_a_view_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = lowered(True, True, monkeypatch)
    assert isinstance(layout, ir.FixedLayout) and tuple(layout.stride) == GAPS


@pytest.mark.parametrize(("of_ours", "has_view"), [(False, True), (True, False)])
def test_others_stay_open(of_ours: bool, has_view: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(lowered(of_ours, has_view, monkeypatch), ir.FlexibleLayout)


@pytest.mark.parametrize(("launches", "over"), [(1, False), (2, False), (2, True)])
def test_what_several_launches_read_is_written_once(
    launches: int, over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`over`: the last launch writes its result there, which is what all read then."""
    graph = Graph()
    x = graph.placeholder("x")
    made = [graph.call_function(torch.ops.aten.relu.default, (x,)) for _ in range(launches)]
    for node in made:
        node.kwargs = {"kernel_idx": "launch"}
    monkeypatch.setattr(viewed, "launches_ours", lambda node: "kernel_idx" in node.kwargs)
    with V.set_graph_handler(GraphLowering(symbolic_trace(torch.nn.Identity()))):
        loops = ir.Pointwise.create(
            device=torch.device("cpu"),
            dtype=torch.float32,
            inner_fn=lambda _: ops.constant(1.0, torch.float32),
            ranges=[4, 1030],
        )
        lowering = SimpleNamespace(env={x: loops}, mutated_buffers=set())

        def original(self: Any, node: Node) -> Any:
            if over and node is made[-1]:
                self.mutated_buffers.add(self.env[x].get_name())
            return self.env[x]

        run_node = functools.partial(viewed.settled, original)
        first, *others = (run_node(lowering, node) for node in made)
        assert lowering.env[x] is (first if over else loops) and not ir.is_storage_and_layout(loops)
        assert (first is loops) == (launches == 1) and all(one is first for one in others)
        assert launches == 1 or ir.is_storage_and_layout(first)


def test_what_is_no_buffer_is_left_alone() -> None:
    viewed.settle(None)
    viewed.settle(3)
