"""Two passes over reduction groups: sums of parts, arithmetic on their totals, and every element again."""

from __future__ import annotations

from ..codegen.reduction_groups import two_pass_kernels
from ..errors import Decline, DeclineReason
from ..ir.program import LoopProgram
from ..ir.verify import Form
from ..schedule import reduction_groups
from ..transform.reduction_groups import two_pass
from .strategy import Strategy


def _is_over_reduction_groups(program: LoopProgram) -> None:
    if not program.over_reduction_groups:
        raise Decline(DeclineReason.AXIS_CLASS, "no sums of reduction groups")


TWO_PASS = Strategy(
    "two-pass",
    rank=60,
    choose=reduction_groups.choose,
    generate=two_pass_kernels,
    applies=_is_over_reduction_groups,
    transform=lambda program, device: two_pass(program),
    form=Form.TWO_PASS,
    facts=reduction_groups.facts_of_reduction_groups,
    place=reduction_groups.placed,
    predict=reduction_groups.expected_of_reduction_groups,
)
