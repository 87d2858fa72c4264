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
from ..transform.same_bits import same_bits_sooner
from ..transform.sooner import compute_sooner
from ..transform.staged import staged
from ..transform.tile_split import split_spanning
from .strategy import Strategy


def _ends_within_blocks(program: LoopProgram) -> None:
    if not program.blocked or program.over_slabs:
        raise Decline(DeclineReason.AXIS_CLASS, "a reduction spans more than a tile")


def _transformed(program: LoopProgram, device: DeviceInfo) -> LoopProgram:
    divided = split_spanning(with_producers(program))
    return compute_sooner(same_bits_sooner(divided, device.saturates, device.runs_ptx))


TILE = Strategy(
    "blocks in a tile",
    rank=50,
    choose=tile.choose,
    generate=functools.partial(generate, tile_kernel),
    applies=_ends_within_blocks,
    transform=_transformed,
    form=Form.BLOCKED,
    facts=tile.facts_of_tile,
    place=lambda loops, plan: staged(loops, tile.staged_results(loops, plan)),
    in_place=lambda loops: False,  # a value is exchanged between threads before it is stored
    predict=tile.expected_of_tile,
)
