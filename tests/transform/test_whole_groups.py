"""Programs over reduction groups in nests that keep these: what is read, stored and added up, what fails."""

from __future__ import annotations

import dataclasses

import pytest
from graphs import bf16, group_norm_backward, traced_rows, within_tile

from mixorder.errors import Decline, GainsNothing
from mixorder.ir.program import LoopProgram, Store
from mixorder.lowering.tile import lower_tile
from mixorder.transform.whole_groups import within_a_tile

SAMPLES, PLACES, CHANNELS, GROUPS = 4, 256, 64, 8


def of_groups(**changes: bool) -> LoopProgram:
    graph = group_norm_backward(SAMPLES, PLACES, CHANNELS, GROUPS, bf16, **changes)
    return lower_tile(within_tile(graph))


def test_a_batch_of_any_size_may_have_reduction_groups_but_be_none() -> None:
    first, second = within_a_tile(of_groups(symbolic=True)).nests
    assert not first.axes[0].size.is_number and not second.axes[0].size.is_number
    full = (8, 2048, 24), bf16
    graph = traced_rows(lambda dy, x: dy - x * (dy * x).sum((0, 1)), full, full, symbolic=[0])
    with pytest.raises(GainsNothing, match="reduction groups of any size"):
        within_a_tile(lower_tile(within_tile(graph)))


def test_what_is_not_computed_from_sums_has_no_reduction_groups() -> None:
    program = of_groups()
    (nest,) = program.nests
    full = {axis.symbol for axis in nest.loops}
    body = tuple(s for s in nest.body if not (isinstance(s, Store) and full <= s.index.free_symbols))
    small = dataclasses.replace(program, nests=(dataclasses.replace(nest, body=body),))
    with pytest.raises(Decline, match="nothing of full size"):
        within_a_tile(small)
