"""The most registers that a thread of a tile gets: rules, each with the times that it changes.

A limit lets more programs run at once. ptxas takes all that a limit allows, and spills where it needs more.
"""

from __future__ import annotations

from .tile_facts import TileFacts

MANY, FEW = 64, 32  # elements of a thread
# Registers of a thread. Of blocks of 128, so that 12 warps fit a multiprocessor: 1x128 both in place 90 us
# without a limit, 83 with. Of three loads, H200, us with 96, 128 and no limit: dSwiGLU 194, 207, 203; dGeGLU
# 214, 228, 235; a residual and a gate 175, 222, 184. With more to hold, 96 spills: dSwiGLU and sums of its
# results 224, 211, 230, its results in bf16 as well 283, 270, 276. With little computed, all is loaded at
# once: dReGLU 215, 178, 187. In place: 192, 199, 182. Kernels that need fewer take all of them, too: dGELU
# 169 without a limit, 177 with one of 128.
REGISTERS_OF_MANY, REGISTERS_OF_THREE, REGISTERS_OF_MORE = 168, 96, 128
# Of two loads, H200, us without a limit and with 72: dGELU by tanh 130.9 and 128.6, and 127.4 and 125.2
# without a sum; by erf 160.1 and 158.3, and 159.5 and 155.9. With 79 instructions, dMish needs 128.
REGISTERS_OF_TWO, MOST_OF_TWO = 72, 48
MUCH = 24  # instructions for an element; of these, 19 at most are best with the larger limit, 31 at least not


def most_registers(facts: TileFacts, own: int) -> int:
    """The most that a thread with `own` elements gets; 0 where the compiler decides."""
    if own > MANY and facts.reductions:
        return REGISTERS_OF_MANY
    only_casts = facts.store_bytes == 2 * facts.turned
    if facts.loads == 2 and facts.heavy and only_casts and facts.instructions <= MOST_OF_TWO:
        return REGISTERS_OF_TWO
    if facts.loads != 3 or facts.light or not facts.turned:
        return 0
    alone = only_casts and not facts.summed and facts.instructions >= MUCH
    fits = own <= FEW and (facts.turned == 1 or alone)
    return REGISTERS_OF_THREE if fits else REGISTERS_OF_MORE
