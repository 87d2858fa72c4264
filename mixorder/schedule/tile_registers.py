"""The most registers that a thread of a tile gets: rules, each with the times that it changes.

A limit lets more programs run at once. ptxas takes all that a limit allows, and spills where it needs more.
"""

from __future__ import annotations

from .tile_facts import TileFacts

MANY, FEW = 64, 32  # elements of a thread
# Registers of a thread. Of blocks of 128, so that 12 warps fit a multiprocessor: 1x128 both in place 90 us
# without a limit, 83 with.
REGISTERS_OF_MANY = 168
# Where a thread computes much, more programs gain more than a few spilled registers cost; a kernel that would
# spill many is compiled with more (`inductor.launch_options.fit`). H200, MXFP8 both ways, us without a limit
# and so: dGELU 139 and 130, with its results in bfloat16 as well 169 and 155; SiLU 117 and 103; dSwiGLU 202
# and 190; dGeGLU 225 and 205 (with 96 202). Others lose 2% at most: GELU 103.8 and 105.0, dMish 224 and 228,
# MXFP4 213.6 and 215.5.
FEWEST = 72
MUCH = 24  # instructions for an element. With 14, two results of two tensors: 156 us, and 161 with a limit.
# Of three loads and less to compute: dReGLU 178 us, with 96 215, without a limit 187.
REGISTERS_OF_THREE = 128


def most_registers(facts: TileFacts, own: int) -> int:
    """The most that a thread with `own` elements gets; 0 where the compiler decides."""
    if own > MANY and facts.reductions:
        return REGISTERS_OF_MANY
    if facts.light or not facts.turned:
        return 0
    if own <= FEW and facts.instructions >= MUCH:
        return FEWEST
    return REGISTERS_OF_THREE if facts.loads == 3 else 0
