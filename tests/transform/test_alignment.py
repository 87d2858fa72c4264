"""How rows lie relative to the boundaries of wide accesses, and kernels for rows that lie in several ways."""

from __future__ import annotations

import dataclasses
from typing import Any

import graphs
import pytest
import sympy
import torch
from graphs import bf16, f32, only

from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.persistent import choose
from mixorder.transform.alignment import row_alignment


def test_a_tensor_that_starts_off_a_boundary_is_read_by_elements() -> None:
    program = graphs.merged(only(graphs.rms_norm_backward(512, 1001)))
    assert row_alignment(program) is not None
    for offset, shifted in ((1, False), (7, False), (8, True)):
        first, *others = program.buffers
        moved = (dataclasses.replace(first, offset=sympy.Integer(offset)), *others)
        assert (row_alignment(dataclasses.replace(program, buffers=moved)) is not None) == shifted


def test_a_view_in_the_graph_has_its_offset_in_the_index() -> None:
    def function(base: Any, dy: Any, w: Any) -> Any:
        return graphs.pair(base[1:], dy * w)

    graph = graphs.traced(function, ((513, 1001), bf16), ((512, 1001), bf16), ((1001,), bf16))
    assert row_alignment(graphs.merged(only(graph))) is None


def test_a_view_given_to_the_graph_has_its_offset_in_the_buffer() -> None:
    graph = graphs.rms_norm_backward(512, 1001)
    dy = next(iter(graph.nodes))
    with dy.meta["val"].fake_mode:
        dy.meta["val"] = torch.empty(513 * 1001, dtype=bf16)[1001:].view(512, 1001)
    program = graphs.merged(only(graph))
    assert sorted(int(b.offset) for b in program.buffers)[-2:] == [0, 1001]
    assert row_alignment(program) is None


def test_a_row_that_fills_its_power_of_two_is_not_shifted() -> None:
    work = facts_of(graphs.merged(only(graphs.rms_norm_backward(4096, 2047))))
    assert work.alignment.period == 8 and choose(work, H200).period == 1


@pytest.mark.parametrize(("rows", "cols", "shifted"), [(8, 1001, True), (7, 1001, False), (4, 1002, True)])
def test_a_tensor_that_ends_off_a_boundary_is_read_by_elements(rows: int, cols: int, shifted: bool) -> None:
    program = graphs.merged(only(graphs.rms_norm_backward(rows, cols)))
    assert (row_alignment(program) is not None) == shifted


def test_nobody_knows_where_a_tensor_of_symbolic_rows_ends() -> None:
    full = ((512, 1001), f32)
    assert row_alignment(graphs.merged(only(graphs.traced_rows(graphs.pair, full, full)))) is None
    assert row_alignment(graphs.merged(only(graphs.traced(graphs.pair, full, full)))) is not None
