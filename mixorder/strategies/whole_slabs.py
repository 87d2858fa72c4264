"""A program keeps whole slabs in registers, from their first reduction to their last."""

from __future__ import annotations

import dataclasses

from ..codegen.slabs import whole_slab_kernels
from ..ir.verify import Form
from ..schedule import whole_slabs
from ..transform.whole_slabs import within_a_tile
from .slabs import SLABS

WHOLE_SLABS = dataclasses.replace(
    SLABS,
    name="whole slabs",
    rank=65,
    choose=whole_slabs.choose,
    generate=whole_slab_kernels,
    transform=lambda program, device: within_a_tile(program),
    form=Form.WHOLE_SLABS,
    facts=whole_slabs.facts_of_whole_slabs,
    place=lambda loops, plan: loops,
    predict=whole_slabs.expected_of_whole_slabs,
)
