"""Tiles that are chosen: which there are none of. Those of casts are in replay."""

from __future__ import annotations

import dataclasses

import pytest
from graphs import bf16, merged, traced, within_tile
from support import quantised

from mixorder.errors import Decline
from mixorder.schedule import tile
from mixorder.schedule.device import H200


def test_blocks_that_do_not_fit_are_declined() -> None:
    graph = traced(lambda x: quantised.squares(x), ((16384, 4096), bf16))
    facts = tile.facts_of_tile(merged(within_tile(graph)))
    facts = dataclasses.replace(facts, whole=frozenset({0, 1, 3}))
    with pytest.raises(Decline):
        tile.choose(facts, H200)
