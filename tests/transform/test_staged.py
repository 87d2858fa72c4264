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
from mixorder.schedule.schedule import Schedule
from mixorder.transform import staged as transform


def planned(function: Any, count: int = 1, rows: int = 256) -> tuple[LoopProgram, Schedule]:
    region = within_tile(traced(lambda *x: function(*x), *[((rows, 512), bf16)] * count))
    program = merged(region)
    schedule = tile.choose(tile.facts_of_tile(program), H200)
    return program, dataclasses.replace(schedule, staged=True)


def staged(program: LoopProgram, schedule: Schedule) -> LoopProgram:
    return transform.staged(program, tile.staged_results(program, schedule))


def test_a_schedule_that_stages_nothing() -> None:
    program, schedule = planned(quantised.mx_both)
    assert staged(program, dataclasses.replace(schedule, staged=False)) is program


def test_a_staged_result_that_is_not_copied_is_found() -> None:
    program, schedule = planned(quantised.mx_both)
    loops = staged(program, schedule)
    with pytest.raises(ValueError, match="stored as"):
        verify(dataclasses.replace(loops, nests=loops.nests[:-1]), Form.BLOCKED)
