"""A program has a part of the columns, where no reduction runs along a row."""

from __future__ import annotations

import dataclasses

from ..errors import DeclineReason, GainsNothing
from ..ir.program import LoopProgram
from ..schedule.facts import facts_of
from ..schedule.persistent import block_of
from ..transform.column_blocks import check_divisible, in_blocks
from .persistent import PERSISTENT


def _can_be_divided(program: LoopProgram) -> None:
    check_divisible(program)
    facts = facts_of(program)
    if block_of(facts) == facts.cols:
        detail = f"no block of {facts.cols} columns has fewer idle lanes"
        raise GainsNothing(DeclineReason.ROW_TOO_WIDE, detail)


COLUMN_BLOCKS = dataclasses.replace(
    PERSISTENT,
    name="blocks of columns",
    rank=10,
    applies=_can_be_divided,
    transform=lambda merged, device: in_blocks(merged, block_of(facts_of(merged))),
)
