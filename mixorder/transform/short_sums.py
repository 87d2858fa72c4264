"""Leave out the compensation of sums over rows, for programs of so few rows that it gains nothing.

Takes a merged program; returns one whose sums take half the registers. The rounding error of a sum grows with
the number of rows that a program adds up one after the other. The partial results are still added up in fp64.
"""

from __future__ import annotations

import dataclasses

from ..errors import DeclineReason, GainsNothing
from ..ir.program import LoopProgram, PartialAccumulate


def without_compensation(program: LoopProgram) -> LoopProgram:
    """The program with plain sums. Raises `GainsNothing` where no sum is compensated."""
    main, *rest = program.nests
    body = tuple(
        dataclasses.replace(s, compensated=False) if isinstance(s, PartialAccumulate) else s
        for s in main.body
    )
    if body == main.body:
        raise GainsNothing(DeclineReason.ROW_TOO_WIDE, "no sum over rows is compensated")
    return dataclasses.replace(program, nests=(dataclasses.replace(main, body=body), *rest))
