"""Compute the same bits by fewer instructions, or by instructions that a GPU runs side by side."""

from __future__ import annotations

from ..ir.program import LoopProgram
from .branches import without_branches
from .few_bits import divide_by_few_bits
from .powers_of_two import multiply_by_reciprocals
from .quotients import divide_by_blocks
from .rounding import round_at_once
from .saturation import without_clamps
from .single_precision import divide_in_float32


def same_bits_sooner(program: LoopProgram, saturates: bool, runs_ptx: bool) -> LoopProgram:
    """A program before its nests are merged. `saturates`: whether a device's casts to float8 do. `runs_ptx`:
    whether it is of NVIDIA."""
    program = multiply_by_reciprocals(divide_in_float32(program))
    if saturates:  # or a clamp before a cast to float8 may change something
        program = without_clamps(program)
    if not runs_ptx:
        return program
    program = divide_by_blocks(without_branches(program))
    if saturates:  # these GPUs have its instruction
        program = round_at_once(program)
    return divide_by_few_bits(program)
