"""What forbids one kernel for a region that was found: devices, and writes to its inputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import graphs
import pytest
import torch
from graphs import f32, find, node, pair, traced

from mixorder.errors import Decline, DeclineReason
from mixorder.region import legality

FULL = ((512, 256), f32)


def mutated(at: str) -> Any:
    """A pair whose x is overwritten `before`, `inside` or `after` the region's nodes."""

    def function(x: Any, dy: Any, new: Any) -> Any:
        if at == "before":
            x.copy_(new)
        product = x * dy
        if at == "inside":
            x.copy_(new)
        dx, dw = dy - x * product.sum(-1, keepdim=True), product.sum(0)
        if at == "after":
            x.copy_(new)
        return dx, dw

    return traced(function, FULL, FULL, FULL, in_place=True)


def reason_of(graph: torch.fx.Graph) -> DeclineReason | None:
    (region,) = find(graph)
    try:
        legality.check(region)
    except Decline as decline:
        return decline.reason
    return None


def test_a_plain_region_is_legal() -> None:
    assert reason_of(graphs.layer_norm_backward(512, 256)) is None


def test_an_input_written_after_the_region_is_legal() -> None:
    assert reason_of(mutated("after")) is None


def test_an_input_written_inside_is_declined() -> None:
    assert reason_of(mutated("inside")) is DeclineReason.INPUT_MUTATED


def test_an_input_written_between_its_definition_and_the_region_is_declined() -> None:
    """The kernels stand where the last input is made, which is before the write."""
    assert reason_of(mutated("before")) is DeclineReason.INPUT_MUTATED


@pytest.mark.parametrize("through", ["view", "slice"])
def test_an_input_written_inside_through_an_alias_is_declined(through: str) -> None:
    def function(x: Any, dy: Any, new: Any) -> Any:
        alias = x.view(-1) if through == "view" else x[:1]
        product = x * dy
        alias.copy_(new.view(-1) if through == "view" else new[:1])
        return dy - x * product.sum(-1, keepdim=True), product.sum(0)

    graph = traced(function, FULL, FULL, FULL, in_place=True)
    assert reason_of(graph) is DeclineReason.INPUT_MUTATED


def test_a_write_to_another_tensor_inside_is_legal() -> None:
    def function(x: Any, dy: Any, new: Any, other: Any) -> Any:
        product = x * dy
        other.copy_(new)
        return dy - x * product.sum(-1, keepdim=True), product.sum(0)

    assert reason_of(traced(function, FULL, FULL, FULL, FULL, in_place=True)) is None


def test_tensors_of_two_devices_are_declined() -> None:
    graph = graphs.pair_graph()
    x = node(graph, "x_1")
    with x.meta["val"].fake_mode:
        x.meta["val"] = torch.empty_strided((512, 256), (256, 1), device="meta")
    assert reason_of(graph) is DeclineReason.MIXED_DEVICE


def test_fp8_that_something_else_has_computed_is_declined() -> None:
    def function(x: Any, dy: Any) -> Any:
        return pair(x.to(torch.float8_e4m3fn).to(f32), dy)

    (region,) = find(graph := traced(function, FULL, FULL))
    assert reason_of(graph) is None
    cast = next(n for n in region.nodes if n.meta["val"].dtype == torch.float8_e4m3fn)
    without = dataclasses.replace(region, nodes=tuple(n for n in region.nodes if n is not cast))
    assert cast in without.inputs
    with pytest.raises(Decline, match="float8_e4m3fn is read"):
        legality.check(without)


def test_the_device_of_a_region_is_that_of_its_reductions() -> None:
    (region,) = find(traced(pair, FULL, FULL))
    assert legality.device_of(region) == torch.device("cpu")
