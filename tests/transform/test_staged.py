"""Small results through a workspace: where there are none, and where a copy is missing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from graphs import bf16, merged, traced, within_tile
from support import quantised

from mixorder.ir.program import LoopProgram
from mixorder.ir.verify import Form, verify
from mixorder.schedule import tile
from mixorder.schedule.device import H200
from mixorder.schedule.plan import Plan
from mixorder.transform import staged as transform


def planned(function: Any, count: int = 1, rows: int = 256) -> tuple[LoopProgram, Plan]:
    region = within_tile(traced(lambda *x: function(*x), *[((rows, 512), bf16)] * count))
    program = merged(region)
    facts = tile.facts_of_tile(program)
    return program, tile.through_workspace(tile.choose(facts, H200), facts)


def staged(program: LoopProgram, schedule: Plan) -> LoopProgram:
    return transform.staged(program, tile.staged_results(program, schedule))


def test_a_staged_result_that_is_not_copied_is_found() -> None:
    program, schedule = planned(quantised.mx_both)
    loops = staged(program, schedule)
    with pytest.raises(ValueError, match="stored as"):
        verify(dataclasses.replace(loops, nests=loops.nests[:-1]), Form.BLOCKED)
