"""Tiles that are chosen: which there are none of. Those of casts are in replay."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from graphs import bf16, declined, lowered_tile, merged, traced, within_tile
from support import quantised
from torch import nn

from mixorder.errors import Decline, DeclineReason
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


def test_a_tile_that_has_parts_of_sectors_alone_is_priced() -> None:
    """Statistics of each channel, with a tensor beside whose channels are contiguous: a tile has one of them.
    H200, bf16: 95 us, and 25 by Inductor's kernel."""

    def normalised(x: torch.Tensor, beside: torch.Tensor) -> tuple[torch.Tensor, ...]:
        var, mean = torch.var_mean(x.float(), (0, 2, 3), correction=0, keepdim=True)
        y = beside.permute(0, 3, 1, 2) + ((x - mean) * torch.rsqrt(var + 1e-5)).bfloat16()
        return mean, nn.functional.silu(y)

    shapes = ((32, 2048, 8, 8), bf16), ((32, 8, 8, 2048), bf16)
    assert declined(traced(normalised, *shapes), min_numel=1).reason is DeclineReason.SLOWER
