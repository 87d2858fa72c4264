"""Several programs share a row and exchange their parts of its reductions."""

from __future__ import annotations

import functools

from ..codegen.cooperative import cooperative_kernel
from ..codegen.kernel import generate
from ..ir.program import Exchange, LoopProgram
from ..ir.verify import Form
from ..schedule import cooperative
from ..schedule.plan import Plan
from ..transform.cooperative import check_shareable, cut_into_phases, with_mailbox
from .strategy import Strategy


def _exchanges(loops: LoopProgram) -> bool:
    """Whether programs wait for each other, so that one that has waited too long starts again."""
    return any(isinstance(s, Exchange) for s in loops.nests[0].body)


def _described(plan: Plan) -> str:
    rows = "a row" if plan.tile_rows == 1 else f"{plan.tile_rows} rows"
    return f"{plan.group} programs to {rows}"


COOPERATIVE = Strategy(
    "cooperative",
    rank=30,
    choose=cooperative.choose,
    starts=lambda facts, device, _: iter(cooperative.layouts(facts, device) if device.exchanges else ()),
    generate=functools.partial(generate, cooperative_kernel),
    applies=check_shareable,
    transform=lambda merged, device: cut_into_phases(merged),
    form=Form.COOPERATIVE,
    place=lambda loops, plan: with_mailbox(loops, plan.group, plan.tile_rows * plan.period),
    describe=_described,
    in_place=lambda loops: not _exchanges(loops),  # another turn would read what the first has written
)
