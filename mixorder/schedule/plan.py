"""A plan: who walks each axis, where each value waits, and in which order, as one value.

**Who.** A `Walk` for each axis of a tile says how many programs, tiles in the text and lanes share it. What
they leave is a loop. A reduction is combined at each level at which its axis is divided: between lanes,
between tiles, in the loop's accumulator, between programs of a group while they run, and in the end between
all other programs, by a second stage. So programs that share no row have no `group`, and one that has all
rows of its columns leaves nothing to the second stage (`finishes`). Programs that hold a reduction group of
several axes have a `group` on each of these, and exchange a vector: a sum for each element of the tile along
the others.

**Where.** `totals` says how the total of a reduction comes to what needs it, and so where the operands of
that wait: the total is found `Within` a program; or it is `Exchanged`, while a program keeps the operands; or
it is `Produced` by other programs, and operands are reloaded; or it is in memory before a kernel of a
second pass begins, which reloads the operands (`Applied`). `results` has those that are not simply
stored. A result that is a slice of a larger tensor is: its place gives it the strides (`region.cat_slices`).

**In which order.** `order` is that of the tiles, `layout` that of the elements in a tile, and `launch` says
what runs at once.

Strategies yield plans, `explain` shows them, tuning varies them, and codegen writes what they say. They are
plain data, so that they are compared, hashed and kept on disk.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any

from ..ir.hardware import WARP


@dataclasses.dataclass(frozen=True)
class Walk:
    """How an axis is divided, from the outside in."""

    grid: int = 1
    """Programs that need nothing of one another."""

    split: int = 1
    """Programs that leave a partial result each, for the second stage."""

    group: int = 1
    """Programs that exchange partial results while they run."""

    part: int = 0
    """Elements that each of a group has; 0 where there is no group."""

    unroll: int = 1
    """Tiles that have their own code."""

    tile: int = 1
    """Elements of a tile, in lanes."""

    period: int = 1
    """How far apart the elements of a tile are. It divides `split`: other programs have those in between."""

    def __str__(self) -> str:
        numbers = [(f, getattr(self, f.name)) for f in dataclasses.fields(self)]
        return ", ".join(f"{f.name} {n}" for f, n in numbers if n != f.default or f.name == "tile")


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a main kernel is compiled and launched."""

    num_warps: int

    num_stages: int = 1
    """Tiles in flight: Triton's software pipelining."""

    max_registers: int = 0
    """The most 32-bit registers that a thread gets; 0 where the compiler decides."""

    dependent: bool = False
    """Whether the second kernel is launched while this one still runs (`codegen.programmatic_launch`)."""


@dataclasses.dataclass(frozen=True)
class SecondStage:
    """The kernel that reduces partial results."""

    block: int = 1
    """Columns of a program."""

    warps: int = 1

    skippable: bool = False
    """Whether the main kernel can do this work where a program has all rows."""


@dataclasses.dataclass(frozen=True)
class Within:
    """A program has the total of each reduction that it needs."""


@dataclasses.dataclass(frozen=True)
class Exchanged:
    """Programs of a group exchange partial results, and keep the operands of what needs the total."""

    lag: int
    """Tiles between a partial result and its total."""


@dataclasses.dataclass(frozen=True)
class Produced:
    """Other programs of the same kernel compute the totals of whole rows (`codegen.producers`)."""

    lag: int
    """Groups of programs between these and the tiles that need the totals."""

    rows: int
    """Rows of such a program."""

    cols: int
    """Columns that it has at once; it reduces wider rows part by part."""


@dataclasses.dataclass(frozen=True)
class Applied:
    """A kernel behind the second stage has what needs totals. It reloads the operands."""

    tile: tuple[int, ...]
    """Elements of its tile along each axis."""

    warps: int

    results: tuple[int, ...]
    """Elements of the second stage's tile along each axis of the totals."""

    together: bool = False
    """Whether all reduction groups are computed at the same time, and not in turn, as they were summed."""

    ends: tuple[int, ...] = ()
    """Elements of the tile of a kernel that adds up sums of the elements, along the splits and each axis."""


@dataclasses.dataclass(frozen=True)
class TileOrder:
    """In which order programs compute tiles, and what caches keep meanwhile."""

    backwards: bool = False
    """They begin at the last tile, whose inputs L2 may still have from the kernel before."""

    grouped: int = 1
    """Tiles along the first axis that follow one another before the next one along the second."""

    keeps: bool = False
    """Whether caches keep what a program with several tiles has read once: others read sectors of it."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a tile's elements lie in threads."""

    thread_rows: int = 0
    """Rows next to each other that a thread loads; 0 where Triton spreads threads over all rows first."""

    warp_cols: int = 0
    """Columns next to each other that a warp loads."""

    column_words: bool = False
    """Whether casts to one byte make words of a column's elements (`codegen.registers`)."""


@dataclasses.dataclass(frozen=True)
class Workspace:
    """A small result that goes through a workspace: a second kernel puts it in place (`schedule.staged`)."""

    result: str
    """Its buffer."""

    tile: tuple[int, int]
    """Elements of the second kernel's tile along the graph's contiguous dim, and along the others."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one loop program becomes kernels."""

    walk: tuple[Walk, ...]
    """Of each axis of the tile, outermost first."""

    launch: Launch
    second: SecondStage = SecondStage()
    totals: Within | Exchanged | Produced | Applied = Within()
    order: TileOrder = TileOrder()
    layout: Layout = Layout()
    results: tuple[Workspace, ...] = ()

    @property
    def extents(self) -> tuple[int, ...]:
        """The tile's elements along each axis."""
        return tuple(axis.tile for axis in self.walk)

    @property
    def tile_rows(self) -> int:
        return self.walk[0].tile

    @property
    def chunk(self) -> int:
        """Columns of one tile of a row, a power of two."""
        return self.walk[-1].tile

    @property
    def chunks(self) -> int:
        """Tiles of a row, or of a program's part of it."""
        return self.walk[-1].unroll

    @property
    def lanes(self) -> int:
        """Lanes for a row, or for a program's part of it."""
        return self.chunks * self.chunk

    @property
    def splits(self) -> int:
        """Programs, or groups of them, that leave a partial result of each column."""
        return math.prod(axis.split for axis in self.walk)

    @property
    def group(self) -> int:
        """Programs that exchange partial results."""
        return math.prod(axis.group for axis in self.walk)

    @property
    def programs(self) -> int:
        """Without those for each index of a batch, and without producers."""
        return math.prod(axis.grid for axis in self.walk) * self.splits * self.group

    @property
    def period(self) -> int:
        return self.walk[0].period

    @property
    def lag(self) -> int:
        """Tiles between an exchanged partial result and its total."""
        return self.totals.lag if isinstance(self.totals, Exchanged) else 0

    @property
    def produced(self) -> Produced | None:
        """What the producers do, if there are any."""
        return self.totals if isinstance(self.totals, Produced) else None

    def per_thread(self, lanes: int) -> int:
        """Elements of a thread, which has some of so many lanes of a tile's rows."""
        return max(1, self.tile_rows * lanes // (WARP * self.launch.num_warps))

    @property
    def finishes(self) -> bool:
        """Whether a program has all rows of its columns, and the main kernel computes their totals."""
        return self.second.skippable and self.splits == self.group == self.period == 1

    @property
    def partials(self) -> int:
        """Partial results of each column, which are in memory; 0 where there are none."""
        return 0 if self.finishes else self.splits

    def number(self, name: str) -> Any:
        """The value of a field of one of the plan's records, or of a walk."""
        return getattr(self if name in _OF_WALKS else getattr(self, _OWNERS[name]), name)

    def changed(self, **values: Any) -> Plan:
        """The plan with other values of what `number` gives."""
        walk, records = list(self.walk), dict[str, Any]()
        for name, value in values.items():
            if name in _OF_WALKS:
                place, field = _OF_WALKS[name]
                walk[place] = dataclasses.replace(walk[place], **{field: value})
            else:
                owner = _OWNERS[name]
                record = records.get(owner, getattr(self, owner))
                records[owner] = dataclasses.replace(record, **{name: value})
        return dataclasses.replace(self, walk=tuple(walk), **records)

    def __str__(self) -> str:
        """A line for each axis, and for each record that is not what it is by default."""
        lines = [f"axis {place}: {axis}" for place, axis in enumerate(self.walk)]
        records = (f for f in dataclasses.fields(self)[1:] if getattr(self, f.name) != f.default)
        return "\n".join([*lines, *(f"{f.name}: {_told(getattr(self, f.name))}" for f in records)])


def _told(value: Any) -> str:
    """A record's class where it is one of several, and its fields."""
    if isinstance(value, tuple):
        return "; ".join(map(_told, value))
    numbers = ", ".join(f"{f.name} {getattr(value, f.name)}" for f in dataclasses.fields(value))
    named = isinstance(value, Exchanged | Produced | Applied | Workspace)
    return f"{type(value).__name__.lower()}, {numbers}" if named else numbers


_OF_WALKS = {
    "tile_rows": (0, "tile"),
    "splits": (0, "split"),
    "chunk": (-1, "tile"),
    "chunks": (-1, "unroll"),
}
_RECORDS = {"launch": Launch, "second": SecondStage, "totals": Exchanged, "order": TileOrder}
_OWNERS = {field.name: owner for owner, kind in _RECORDS.items() for field in dataclasses.fields(kind)}


def tiles_along(sizes: Sequence[int], extents: Sequence[int]) -> list[int]:
    """How many tiles of these extents there are along each axis."""
    return [-(-size // extent) for size, extent in zip(sizes, extents, strict=True)]


def in_tiles(sizes: Sequence[int], extents: Sequence[int], summed: Collection[int] = ()) -> tuple[Walk, ...]:
    """Walks with a program for each tile of these extents. `summed`: the places of the axes along which
    partial results are added up."""
    return tuple(
        Walk(tile=extent, **{"split" if place in summed else "grid": tiles})
        for place, (tiles, extent) in enumerate(zip(tiles_along(sizes, extents), extents, strict=True))
    )


def is_power_of_2(n: int) -> bool:
    return n >= 1 and n & (n - 1) == 0


def next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def shifted(power: int, by: int) -> int:
    """A power of two, doubled or halved `by` times; half of 1 is 0, which no plan may have."""
    return power << by if by >= 0 else power >> -by
