"""Tiles that are chosen: which there are none of. Those of casts are in replay."""

from __future__ import annotations

import dataclasses

import pytest
from graphs import bf16, lowered_tile, merged, traced, within_tile
from support import quantised

from mixorder.errors import Decline
from mixorder.schedule import tile
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.kernel_time import TIMES, Kind


def test_blocks_that_do_not_fit_are_declined() -> None:
    graph = traced(lambda x: quantised.squares(x), ((16384, 4096), bf16))
    facts = tile.facts_of_tile(merged(within_tile(graph)))
    facts = dataclasses.replace(facts, whole=frozenset({0, 1, 3}))
    with pytest.raises(Decline):
        tile.choose(facts, H200)


def test_threads_combine_what_they_have_of_a_block_along_columns() -> None:
    """Twice as long blocks, of which a thread has twice as many elements, take half the instructions."""

    def added(block: int) -> float:
        program = lowered_tile(lambda x: quantised.int8_in_place(x, block), ((16384, 4096), bf16))
        found = {kernel.kind: kernel.work.instructions for kernel in tile.kernels_of(program)}
        return (found[Kind.COLUMNS] - found[Kind.POINTWISE]) / (16384 * 4096)

    assert added(64) - added(128) == pytest.approx(TIMES.tiled.combine_instructions / 2, abs=0.5)
    assert added(32) == pytest.approx(added(64), abs=0.5)
