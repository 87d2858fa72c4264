"""A program keeps a row in registers, and has few rows, whose sums are not compensated."""

from __future__ import annotations

import dataclasses

from ..errors import Decline, DeclineReason, GainsNothing
from ..ir.program import LoopProgram
from ..schedule import persistent
from ..schedule.device import DeviceInfo
from ..schedule.facts import RowFacts
from ..schedule.persistent_search_space import PersistentSearchSpace
from ..schedule.plan import Plan
from ..transform.short_sums import without_compensation
from .persistent import PERSISTENT

# Rows of a program whose sums in fp32 are not compensated. In NumPy, sums of 16384 products with a total in
# fp64 have errors of 7.9e-8 with 16 rows, 1.0e-7 with 32; with one in fp32, as Inductor's, at least 9.6e-8.
SHORT_ROWS = 32


def _has_known_rows(program: LoopProgram) -> None:
    if not program.tile_axes[0].size.is_number:
        raise GainsNothing(DeclineReason.ROW_TOO_WIDE, "with other sizes, a program may have more rows")


def _choose_few_rows(facts: RowFacts, device: DeviceInfo, split_size: int = 0) -> Plan:
    chosen = persistent.choose(facts, device, split_size)
    if facts.rows <= SHORT_ROWS * chosen.splits:
        return chosen
    few = persistent.choose(facts, device, SHORT_ROWS)
    if split_size or facts.rows > SHORT_ROWS * few.splits:
        detail = f"plain sums in fp32 have at most {SHORT_ROWS} rows"
        raise Decline(DeclineReason.TOO_MANY_LIVE_TILES, detail)
    return few


SHORT_SUMS = dataclasses.replace(
    PERSISTENT,
    name="short sums",
    rank=40,
    choose=_choose_few_rows,
    starts=lambda facts, device, split_size: iter(()),
    search_space=lambda facts, device, start, _: PersistentSearchSpace(facts, device, start, pinned=True),
    applies=_has_known_rows,
    transform=lambda merged, device: without_compensation(merged),
)
