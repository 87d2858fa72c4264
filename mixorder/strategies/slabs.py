"""Two passes over slabs: sums of parts, a little arithmetic on their totals, and every element again."""

from __future__ import annotations

from ..codegen.slabs import slab_kernels
from ..errors import Decline, DeclineReason
from ..ir.program import LoopProgram
from ..ir.verify import Form
from ..schedule import slabs
from ..transform.slabs import reduce_then_apply
from .strategy import Strategy


def _is_over_slabs(program: LoopProgram) -> None:
    if not program.over_slabs:
        raise Decline(DeclineReason.AXIS_CLASS, "no sums of slabs")


SLABS = Strategy(
    "reduce, then apply",
    rank=60,
    choose=slabs.choose,
    generate=slab_kernels,
    applies=_is_over_slabs,
    transform=lambda program, device: reduce_then_apply(program),
    form=Form.SLABS,
    facts=slabs.facts_of_slabs,
    place=slabs.placed,
    predict=slabs.expected_of_slabs,
)
