"""Compute the same bits by fewer instructions, or by instructions that a GPU runs side by side."""

from __future__ import annotations

from ..ir.program import LoopProgram
from ..ir.rewriting import Rule, rewritten
from .branches import without_branches
from .few_bits import divide_by_few_bits
from .half_precision import without_rounding
from .powers_of_two import multiply_by_reciprocals
from .quotients import divide_by_blocks
from .rounding import round_at_once
from .saturation import without_clamp
from .single_precision import divide_in_float32


def simplify_exactly(program: LoopProgram, saturates: bool, runs_ptx: bool) -> LoopProgram:
    """A program whose statements are not in order yet. `saturates`: whether a device's casts to float8 do.
    `runs_ptx`: whether it is of NVIDIA."""
    rules: list[Rule] = [without_rounding, divide_in_float32, multiply_by_reciprocals]
    if saturates:  # or a clamp before a cast to float8 may change something
        rules.append(without_clamp)
    if runs_ptx:
        rules += [without_branches, divide_by_blocks]
        if saturates:  # these GPUs have its instruction
            rules.append(round_at_once)
        rules.append(divide_by_few_bits)
    return rewritten(program, *rules)
