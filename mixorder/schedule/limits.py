"""What a program can hold: registers of a thread by estimate, warps, stages."""

from __future__ import annotations

import dataclasses
import math

from ..ir.hardware import MAX_REGISTERS
from .facts import REGISTER_OVERHEAD, RowFacts

NOT_SPILLED = 279  # estimated registers in chunks, up to which at most 4 words were spilled
# Per element; GELU by tanh has 35, by erf 50.
BUSY_INSTRUCTIONS = 30
WARPS_PER_SM = 8  # at least, whatever the tiles of a multiprocessor hold
# At most. With many, a row spans few warps, and its reductions need few barriers.
ELEMENTS_PER_THREAD = 32
MAX_STAGES = 5  # with one program per multiprocessor; one fewer with several


@dataclasses.dataclass(frozen=True)
class Tile:
    """A tile of rows, each of so many lanes, the warps and stages of its program, and how many programs share
    a multiprocessor."""

    xblock: int
    lanes: int
    num_warps: int
    num_stages: int
    per_sm: int


def registers_of(facts: RowFacts, elements: int, chunks: int) -> int:
    """Estimated registers of a thread with `elements` elements.

    With W words per element, ptxas takes about (W + 1) * elements + 24. With chunks, the elements of one
    chunk take a further word for each 4 bytes that stream in. Where elements take many instructions, each
    register more for accumulators and vectors of columns leaves four others without one.
    """
    computed = 1 if chunks == 1 else math.ceil(facts.load_bytes / 4)
    busy = facts.instructions >= BUSY_INSTRUCTIONS
    displaced = 4 * max(0, facts.held.of_columns * elements - 156) if busy else 0
    return facts.held.words * elements + computed * -(-elements // chunks) + REGISTER_OVERHEAD + displaced


def spilled(facts: RowFacts, elements: int, chunks: int) -> int:
    """Estimated words of a thread with `elements` elements that find no register."""
    most = MAX_REGISTERS if chunks == 1 else NOT_SPILLED
    return max(0, registers_of(facts, elements, chunks) - most)


def elements_of(budget: float, each: int) -> int:
    """The power of two that is nearest to the elements of `each` bytes in a budget of bytes: elements of 6
    bytes (bf16 and a residual) get tiles as large as elements of 4 bytes."""
    return 1 << max(0, round(math.log2(1.25 * budget / max(1, each))))


def floor_power_of_2(n: int) -> int:
    """The largest power of two that is at most `n`; at least 1."""
    return 1 << max(0, n.bit_length() - 1)
