"""The ways of running a merged program, one entry each. Nothing else in the package names one.

A strategy turns a merged program into the loops that its kernel runs, reads the facts of these loops, chooses
a schedule by them, and writes the main kernel. The pipeline takes the first of `STRATEGIES` that does not
decline; the tuner tries all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from .codegen.cooperative import cooperative_kernel
from .codegen.kernel import MainKernel, generate
from .codegen.persistent import persistent_kernel
from .codegen.source import KernelSource
from .codegen.tile import tile_kernel
from .errors import Decline, DeclineReason, GainsNothing, TooWide
from .ir.program import Exchange, LoopProgram
from .ir.verify import Form
from .schedule import cooperative, persistent, tile
from .schedule.constants import FITTED, Constants
from .schedule.cooperative_space import CooperativeSpace
from .schedule.device import DeviceInfo
from .schedule.facts import Facts, facts_of
from .schedule.persistent_space import PersistentSpace
from .schedule.plan import Plan
from .schedule.predicted import Expected, expected
from .schedule.space import Space
from .transform.column_blocks import check_divisible, in_blocks
from .transform.cooperative import check_shareable, cut_into_phases, with_mailbox
from .transform.short_sums import without_compensation
from .transform.staged import staged

TUNED_SPILL_FACTOR = 1.5  # times the device's registers that a timed row may take

# Rows of a program whose sums in fp32 are not compensated. In NumPy, sums of 16384 products with a total in
# fp64 have errors of 7.9e-8 with 16 rows, 1.0e-7 with 32; with one in fp32, as Inductor's, at least 9.6e-8.
# H200, two norms of 16384x6144: 16 rows 562, 458 and 640 us, 32 rows 513, 408 and 585.
SHORT_ROWS = 32

Choose = Callable[[Facts, DeviceInfo, int, Constants], Plan]
"""From facts, a device, rows per program (0: the best number) and constants; raises `Decline`."""


def _applies(program: LoopProgram) -> None:
    """Accepts every merged program."""


def _unchanged(program: LoopProgram) -> LoopProgram:
    return program


def _with_nothing_more(program: LoopProgram, schedule: Plan) -> LoopProgram:
    return program


@dataclasses.dataclass(frozen=True)
class Strategy:
    """One way of running a merged program; `meaning` says which, for the user.

    `applies` raises `Decline` for a merged program that cannot be run in this way. `transform` makes the
    loops, which then have `form`. `place` does what depends on the schedule: it adds buffers of its sizes.
    `starts` are schedules that a search begins from, in addition to the chosen one; `space` has those near
    one. `emit` writes the main kernel. `in_place`: whether an output of loops may reuse the memory of an
    input that is read before.
    `blocked`: whether it runs programs whose reductions end within blocks; it then runs no others.
    """

    name: str
    meaning: str
    choose: Choose
    starts: Callable[[Facts, DeviceInfo, int], Iterator[Plan]]
    space: Callable[[Facts, DeviceInfo, Plan, bool], Space]
    emit: MainKernel
    applies: Callable[[LoopProgram], None] = _applies
    transform: Callable[[LoopProgram], LoopProgram] = _unchanged
    form: Form = Form.MERGED
    facts: Callable[[LoopProgram], Facts] = facts_of
    place: Callable[[LoopProgram, Plan], LoopProgram] = _with_nothing_more
    describe: Callable[[Plan], str] = lambda schedule: ""
    in_place: Callable[[LoopProgram], bool] = lambda loops: True
    blocked: bool = False
    predict: Callable[..., Expected] = expected

    def generate(self, loops: LoopProgram, schedule: Plan, label: str) -> tuple[KernelSource, ...]:
        """The kernels of loops that `place` returned, in the order of their launches."""
        return generate(self.emit, loops, schedule, label)

    def is_titled(self, title: str) -> bool:
        """Whether `title` made a title."""
        return title.partition(", ")[0] == self.name

    def title(self, schedule: Plan) -> str:
        """The strategy with what a schedule determines, such as `cooperative, 8 programs to a row`."""
        return ", ".join(filter(None, (self.name, self.describe(schedule))))


def _more_spills(facts: Facts, device: DeviceInfo, split_size: int) -> Iterator[Plan]:
    """The schedule chosen if more spills are allowed than without timing."""
    yield persistent.choose(facts, device, split_size, spill_factor=TUNED_SPILL_FACTOR)


PERSISTENT = Strategy(
    "persistent",
    "a program keeps a row in registers from its first reduction to its last",
    choose=persistent.choose,
    starts=_more_spills,
    space=PersistentSpace,
    emit=persistent_kernel,
)
"""A program keeps a row in registers from its first reduction to its last."""


def _can_be_divided(program: LoopProgram) -> None:
    check_divisible(program)
    facts = facts_of(program)
    if persistent.block_of(facts) == facts.cols:
        raise Decline(DeclineReason.ROW_TOO_WIDE, f"no block of {facts.cols} columns has fewer idle lanes")


COLUMN_BLOCKS = dataclasses.replace(
    PERSISTENT,
    name="blocks of columns",
    meaning="a program has a part of the columns, since no reduction runs along a row",
    applies=_can_be_divided,
    transform=lambda merged: in_blocks(merged, persistent.block_of(facts_of(merged))),
)
"""A program has a part of the columns, where no reduction runs along a row."""


def _exchanges(loops: LoopProgram) -> bool:
    """Whether programs wait for each other, so that one that has waited too long starts again."""
    return any(isinstance(s, Exchange) for s in loops.nests[0].body)


COOPERATIVE = Strategy(
    "cooperative",
    "several programs share a row: each has a part of its columns, and they exchange partial results "
    "(`8 programs to 2 rows`: 8 programs share 2 rows at a time)",
    choose=cooperative.choose,
    starts=cooperative.starts,
    space=lambda facts, device, start, _: CooperativeSpace(facts, device, start),
    emit=cooperative_kernel,
    applies=check_shareable,
    transform=cut_into_phases,
    form=Form.COOPERATIVE,
    place=lambda loops, s: with_mailbox(loops, s.group, s.tile_rows * s.period),
    describe=lambda schedule: f"{schedule.group} programs to {_rows(schedule)}",
    in_place=lambda loops: not _exchanges(loops),  # another turn would read what the first has written
)
"""Several programs share a row and exchange their parts of its reductions."""


def _rows(schedule: Plan) -> str:
    return "a row" if schedule.tile_rows == 1 else f"{schedule.tile_rows} rows"


def _has_known_rows(program: LoopProgram) -> None:
    if not program.tile_axes[0].size.is_number:
        raise GainsNothing(DeclineReason.ROW_TOO_WIDE, "with other sizes, a program may have more rows")


def _choose_few_rows(
    facts: Facts, device: DeviceInfo, split_size: int = 0, constants: Constants = FITTED
) -> Plan:
    chosen = persistent.choose(facts, device, split_size, constants)
    if facts.rows <= SHORT_ROWS * chosen.splits:
        return chosen
    few = persistent.choose(facts, device, SHORT_ROWS, constants)
    if split_size or facts.rows > SHORT_ROWS * few.splits:
        raise TooWide(facts.held_words, f"plain sums in fp32 have at most {SHORT_ROWS} rows")
    return few


SHORT_SUMS = dataclasses.replace(
    PERSISTENT,
    name="short sums",
    meaning="as persistent, with so few rows to a program that rounding errors of its sums need no registers",
    choose=_choose_few_rows,
    starts=lambda facts, device, split_size: iter(()),
    space=lambda facts, device, start, _: PersistentSpace(facts, device, start, pinned=True),
    applies=_has_known_rows,
    transform=without_compensation,
)
"""A program keeps a row in registers, and has few rows, whose sums are not compensated."""


def _ends_within_blocks(program: LoopProgram) -> None:
    if not program.blocked:
        raise Decline(DeclineReason.AXIS_CLASS, "a reduction spans more than a tile")


TILE = Strategy(
    "blocks in a tile",
    "a program has whole blocks of rows and columns, and each reduction is within a block; without "
    "reductions, it transposes its tile between loading and storing it",
    choose=tile.choose,
    starts=tile.starts,
    space=lambda facts, device, start, _: tile.TileSpace(facts, device, start),
    emit=tile_kernel,
    applies=_ends_within_blocks,
    form=Form.BLOCKED,
    facts=tile.facts_of_tile,
    place=lambda loops, schedule: staged(loops, tile.staged_results(loops, schedule)),
    in_place=lambda loops: False,  # a value is exchanged between threads before it is stored
    blocked=True,
    predict=tile.expected_of_tile,
)
"""A program has whole blocks of rows and columns, in which its reductions end; or a tile that it turns."""

STRATEGIES = (COLUMN_BLOCKS, PERSISTENT, COOPERATIVE, SHORT_SUMS, TILE)
"""In the order in which they are tried."""
