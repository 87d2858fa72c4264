"""The order of a thread's elements in its registers.

A thread of a transposed store has several rows of each of its columns. Triton casts neighbours in registers
two at a time, and these are neighbours along a row, so that each byte of a column is then picked out of a
word by itself. Elements are therefore put in the order of the columns before the cast, which takes no
instruction: it only renames registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from .kernel_text import permuted, reshaped

WORD = 4  # bytes of a register
# Splitting and joining a dim of 2 elements leaves the joined dim innermost in registers.
HELPER = """\
@triton.jit
def rows_innermost(value):
    even, odd = tl.split(value)
    first, second = tl.split(even)
    third, fourth = tl.split(odd)
    return tl.join(tl.join(first, third), tl.join(second, fourth))


"""


def along_columns(value: str, shape: Sequence[int], place: int) -> str:
    """Triton text: `value`, a tensor of this shape, with words of elements next to each other along the dim
    at `place`, whose size is a multiple of `WORD`. Needs `HELPER` in the kernel's module."""
    before, rows, after = shape[:place], shape[place], shape[place + 1 :]
    rank, inner = len(shape) + 2, (place + 1, place + 2)
    outer = [i for i in range(rank) if i not in inner]
    last = permuted(reshaped(value, [*before, rows // WORD, 2, 2, *after]), [*outer, *inner[::-1]])
    back = [[*outer, *inner].index(i) for i in range(rank)]  # `rows_innermost` exchanges the last two dims
    return reshaped(permuted(f"rows_innermost({last})", back), shape)
