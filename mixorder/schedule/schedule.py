"""A schedule: every choice that turns one loop program into one pair of kernels."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tile:
    """The choices that do not change what a program reads or writes.

    `xblock`: rows that a program holds at once; `num_warps` per program; `num_stages`: row tiles in flight.
    """

    xblock: int
    num_warps: int
    num_stages: int


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Row-resident: a program holds whole rows, `num_splits` programs share the rows out.

    `r0_block` is the power of two that holds a row. The finalisation reduces `num_splits` partials for
    `final_block` columns per program.
    """

    tile: Tile
    r0_block: int
    num_splits: int
    final_block: int
    final_warps: int

    def __str__(self) -> str:
        return "\n".join(f"{f.name} = {getattr(self, f.name)}" for f in dataclasses.fields(self))
