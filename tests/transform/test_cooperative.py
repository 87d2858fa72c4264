"""Rows that programs share: the slots of the mailbox, and what is declined."""

from __future__ import annotations

import dataclasses
from typing import Any

import graphs
import pytest
import torch
from graphs import f32, f64, merged, only, traced
from torch.fx import Graph

from mixorder.errors import Decline, DeclineReason
from mixorder.ir.program import Axis, AxisClass, LoopProgram
from mixorder.transform.cooperative import check_shareable
from mixorder.transform.reorder import reorder
from mixorder.transform.split import split_outer

WIDE, HEADS = ((64, 256), f32), ((64, 4, 256), f32)


def program_of(function: Any, *specs: Any) -> LoopProgram:
    return merged(only(traced(function, *specs)))


def layer() -> LoopProgram:
    return merged(only(graphs.layer_norm_backward(64, 256)))


def per_head(x: Any, dy: Any) -> Any:
    product = x * dy
    return dy - x * product.sum(2, keepdim=True), product.sum(0)


def rotated(x: Any, dy: Any) -> Any:
    half = torch.cat([-x[:, 128:], x[:, :128]], 1)
    return graphs.pair(x * dy + half, dy)


def doubled(x: Any, dy: Any) -> Any:
    return graphs.pair(x.to(f64), dy.to(f64))


def outer_doubled(x: Any, dy: Any) -> Any:
    product = x * dy
    return dy - x * product.sum(1, keepdim=True), product.to(f64).sum(0)


def staged(x: Any, dy: Any) -> Any:
    q = x / x.abs().amax(1, keepdim=True)
    return graphs.pair(q, dy)


REFUSED: dict[str, tuple[Any, Any]] = {
    "a batch axis": (per_head, HEADS),
    "a gather": (rotated, WIDE),
    "reductions other than sums": (doubled, WIDE),
    "a workspace in float64": (outer_doubled, WIDE),
    "reductions that need one another": (staged, WIDE),
}


def test_a_single_row_is_declined() -> None:
    one = ((1, 256), f32)
    with pytest.raises(Decline, match="the same for all rows"):
        check_shareable(program_of(graphs.pair, one, one))


def first_program(graph: Graph) -> LoopProgram:
    region = next(iter(graphs.in_turn(graph)))
    return reorder(split_outer(graphs.lower(region)))


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_shared_is_declined(what: str) -> None:
    function, spec = REFUSED[what]
    with pytest.raises(Decline, match=what) as caught:
        check_shareable(first_program(traced(function, spec, spec)))
    assert caught.value.reason is DeclineReason.ROW_TOO_WIDE


def test_a_common_axis_is_declined() -> None:
    program = layer()

    def common(axis: Axis) -> Axis:
        return dataclasses.replace(axis, kind=AxisClass.COMMON) if axis.kind is AxisClass.COLUMN else axis

    nests = [dataclasses.replace(n, loops=tuple(map(common, n.loops))) for n in program.nests]
    with pytest.raises(Decline, match="a common axis"):
        check_shareable(dataclasses.replace(program, nests=tuple(nests)))
