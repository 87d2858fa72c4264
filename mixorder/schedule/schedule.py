"""A schedule: every choice that turns one loop program into one pair of kernels."""

from __future__ import annotations

import dataclasses

from ..ir.hardware import WARP

# Fields for blocks in a tile alone.
TILES_ALONE = (
    "extents",
    "programs",
    "backwards",
    "band",
    "thread_rows",
    "warp_cols",
    "ahead",
    "ahead_rows",
    "through_memory",
    "staged",
)


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
    """The rows are divided among `num_splits` groups of `parts` programs; a program has its part of a row.

    `part_cols`: columns of a part, where there are several parts. `r0_block`: lanes for a part. They are a
    power of two or, with one part, `chunks` tiles of a power of two each. With several parts, `depth` tiles
    lie between a tile's partial result and its total. The finalisation reduces `num_splits` partials for
    `final_block` columns per program. The rows of a program are `period` apart, so that they all start at the
    same distance from a boundary of wide memory accesses. `overlap`: the finalisation is launched while the
    main kernel still runs (`codegen.programmatic_launch`).

    `extents`: of a program whose reductions end within its tile, the tile's elements along each axis; the
    other numbers are then 1 or 0, but for the warps and stages. `programs`: how many walk through
    all tiles; 0 for one for each tile. `backwards`: they begin at the last tile, whose inputs L2 may still
    have from the kernel before. `band`: tiles along the first axis that follow one another before the next
    one along the second. `thread_rows`: rows next to each other that a thread loads; 0 where Triton spreads
    threads over all rows first. `warp_cols`: columns next to each other that a warp loads. `through_memory`:
    partial results of rows in several lanes are combined through shared memory (`codegen.lanes`).

    `ahead`: groups of programs between those that compute values of whole rows and the tiles of these rows; 0
    where tiles need none. `ahead_rows`: rows of such a program (`schedule.rows_ahead`). `staged`: small
    results go through a workspace, and a second kernel puts them in place (`schedule.staged`).

    `max_registers`: the most that a thread gets, of 32 bits; 0 where the compiler decides. `finishable`:
    where a program has all rows, there is no finalisation: its main kernel does that work.
    """

    tile: Tile
    r0_block: int
    num_splits: int
    final_block: int
    final_warps: int
    parts: int = 1
    part_cols: int = 0
    depth: int = 0
    period: int = 1
    overlap: bool = False
    chunks: int = 1
    extents: tuple[int, ...] = ()
    programs: int = 0
    backwards: bool = False
    band: int = 1
    thread_rows: int = 0
    warp_cols: int = 0
    through_memory: bool = False
    ahead: int = 0
    ahead_rows: int = 0
    staged: bool = False
    max_registers: int = 0
    finishable: bool = False

    @property
    def chunk(self) -> int:
        """Columns of one tile of a row, a power of two."""
        return self.r0_block // self.chunks

    def per_thread(self, lanes: int) -> int:
        """Elements of a thread, which has some of so many lanes of a tile's rows."""
        return max(1, self.tile.xblock * lanes // (WARP * self.tile.num_warps))

    @property
    def finishes(self) -> bool:
        """Whether a program has all rows of its columns, and the main kernel computes their totals."""
        return self.finishable and self.num_splits == self.parts == self.period == 1

    @property
    def partials(self) -> int:
        """Partial results of each column, which are in memory; 0 where there are none."""
        return 0 if self.finishes else self.num_splits

    def __str__(self) -> str:
        names = [f.name for f in dataclasses.fields(self) if f.name != "finishable"]
        names += ["finishes"] * self.finishes
        if not self.extents:
            unlimited = () if self.max_registers else ("max_registers",)
            names = [name for name in names if name not in (*TILES_ALONE, *unlimited)]
        elif not self.ahead:
            names = [name for name in names if name not in ("ahead", "ahead_rows")]
        return "\n".join(f"{name} = {getattr(self, name)}" for name in names)


def is_power_of_2(n: int) -> bool:
    return n >= 1 and n & (n - 1) == 0


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def shifted(power: int, by: int) -> int:
    """A power of two, doubled or halved `by` times; half of 1 is 0, which no schedule may have."""
    return power << by if by >= 0 else power >> -by
