"""The most registers that a thread of a tile gets: rules, each with the times that it changes.

A limit lets more programs run at once. ptxas takes all that a limit allows, and spills where it needs more.
"""

from __future__ import annotations

from .tile_facts import TileFacts

MANY, FEW = 64, 32  # elements of a thread
# Registers of a thread. Of blocks of 128, so that 12 warps fit a multiprocessor: 1x128 both in place 90 us
# without a limit, 83 with.
REGISTERS_OF_MANY = 168
# Where a thread computes much, more programs gain more than a few spilled registers cost; a kernel that
# would spill many is compiled with more (`inductor.launch_options.fit`).
FEWEST = 72
# Instructions for an element. With fewer, two results of two tensors (14): 156 us, and 161 with a limit; with
# more, MXFP4 (59): 213.6 and 215.5, dMish (81): 224 and 228.
MUCH, MOST = 24, 56


def most_registers(facts: TileFacts, elements: int) -> int:
    """The most that a thread with so many `elements` gets; 0 where the compiler decides."""
    if elements > MANY and facts.reductions:
        return REGISTERS_OF_MANY
    if facts.light or not facts.tensors.transposed:
        return 0
    return FEWEST if elements <= FEW and MUCH <= facts.instructions <= MOST else 0
