"""The most registers that a thread of a tile gets.

A limit lets more programs run at once. ptxas takes all that a limit allows, and spills where it needs more.
"""

from __future__ import annotations

from .tile_facts import TileFacts


def most_registers(facts: TileFacts, elements: int) -> int:
    """The most that a thread with so many `elements` gets; 0 where the compiler decides."""
    if elements > 64 and facts.reductions:
        return 168  # so that 12 warps fit a multiprocessor
    if facts.light or not facts.tensors.transposed:
        return 0
    # Where a thread computes much, but not most of the time, more programs gain more than a few spilled
    # registers cost; a kernel that would spill many is compiled with more (`inductor.launch_options.fit`).
    return 72 if elements <= 32 and 24 <= facts.instructions <= 56 else 0
