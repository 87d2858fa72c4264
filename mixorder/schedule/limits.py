"""What a program can hold: registers of a thread by estimate, warps, stages."""

from __future__ import annotations

import dataclasses
import math

from ..ir.hardware import MAX_REGISTERS
from .facts import REGISTER_OVERHEAD, RowFacts

NOT_SPILLED = 279  # estimated registers in chunks, up to which at most 4 words were spilled
# Per element; GELU by tanh has 35, by erf 50.
BUSY_INSTRUCTIONS = 30
# Registers of a thread for accumulators and vectors of columns where elements take so many instructions. Each
# one more leaves so many others without one. sm_90, three maxima of dSwiGLU, 224 of these: 585 registers for
# 264 that were estimated. With few instructions, 4 others with 160 have what was estimated, or less.
MOST_KEPT, DISPLACED = 156, 4
MAX_STAGES = 5  # with one program per multiprocessor; one fewer with several


@dataclasses.dataclass(frozen=True)
class Tile:
    """A tile of whole rows, and the warps and stages of its program."""

    xblock: int
    num_warps: int
    num_stages: int


def registers_of(facts: RowFacts, elements: int, chunks: int) -> int:
    """Estimated registers of a thread with `elements` elements.

    Compiled for sm_90 (RMSNorm and LayerNorm with up to 5 summed gradients, 2 residuals and a bias gradient,
    fp32 and bf16, 16 and 32 elements per thread): with W words per element, ptxas took about
    (W + 1) * elements + 24; summed gradients and residuals changed nothing. With chunks, the elements of one
    chunk take a further word for each 4 bytes that stream in (H200, LayerNorm and residual, 32768x5120 bf16:
    5 chunks, estimated at 280, spill two words and reach 73% of the limit; 3 chunks 96%).
    """
    computed = 1 if chunks == 1 else math.ceil(facts.load_bytes / 4)
    busy = facts.instructions >= BUSY_INSTRUCTIONS
    displaced = DISPLACED * max(0, facts.held.of_columns * elements - MOST_KEPT) if busy else 0
    return facts.held.words * elements + computed * -(-elements // chunks) + REGISTER_OVERHEAD + displaced


def spilled(facts: RowFacts, elements: int, chunks: int) -> int:
    """Estimated words of a thread with `elements` elements that find no register."""
    most = MAX_REGISTERS if chunks == 1 else NOT_SPILLED
    return max(0, registers_of(facts, elements, chunks) - most)


# Elements of 6 bytes (bf16 and a residual) get tiles as large as elements of 4 bytes.
ROUNDING = 1.25


def elements_of(budget: float, each: int) -> int:
    """The power of two that is nearest to the elements of `each` bytes in a budget of bytes."""
    return 1 << max(0, round(math.log2(ROUNDING * budget / max(1, each))))


def floor_power_of_2(n: int) -> int:
    """The largest power of two that is at most `n`; at least 1."""
    return 1 << max(0, n.bit_length() - 1)
