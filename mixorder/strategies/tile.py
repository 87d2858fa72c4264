"""A program has whole blocks of rows and columns, in which its reductions end, or transposes a tile."""

from __future__ import annotations

import functools

from ..codegen.kernel import generate
from ..codegen.tile import tile_kernel
from ..errors import Decline, DeclineReason
from ..ir.program import LoopProgram
from ..ir.verify import Form
from ..schedule import tile
from ..schedule.device import DeviceInfo
from ..transform.producers import with_producers
from ..transform.register_scheduling import schedule_for_registers
from ..transform.same_bits import simplify_exactly
from ..transform.staged import staged
from ..transform.tile_split import split_spanning
from .strategy import Strategy


def _ends_within_blocks(program: LoopProgram) -> None:
    if not program.tile_local or program.over_reduction_groups:
        raise Decline(DeclineReason.AXIS_CLASS, "a reduction spans more than a tile")


def _transformed(program: LoopProgram, device: DeviceInfo) -> LoopProgram:
    divided = split_spanning(with_producers(program))
    return schedule_for_registers(simplify_exactly(divided, device.saturates, device.runs_ptx))


TILE = Strategy(
    "blocks in a tile",
    rank=50,
    choose=tile.choose,
    generate=functools.partial(generate, tile_kernel),
    applies=_ends_within_blocks,
    transform=_transformed,
    form=Form.TILE_LOCAL,
    facts=tile.facts_of_tile,
    place=lambda loops, plan: staged(loops, tile.staged_results(loops, plan)),
    in_place=lambda loops: False,  # a value is exchanged between threads before it is stored
    predict=tile.expected_of_tile,
)
