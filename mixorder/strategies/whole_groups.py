"""A program keeps whole reduction groups in registers, from their first reduction to their last."""

from __future__ import annotations

import dataclasses

from ..codegen.reduction_groups import whole_group_kernels
from ..ir.verify import Form
from ..schedule import whole_groups
from ..transform.whole_groups import within_a_tile
from .reduction_groups import TWO_PASS

WHOLE_GROUPS = dataclasses.replace(
    TWO_PASS,
    name="whole groups",
    rank=65,
    choose=whole_groups.choose,
    generate=whole_group_kernels,
    transform=lambda program, device: within_a_tile(program),
    form=Form.WHOLE_GROUPS,
    facts=whole_groups.facts_of_whole_groups,
    place=lambda loops, plan: loops,
    predict=whole_groups.expected_of_whole_groups,
)
