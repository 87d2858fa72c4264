"""Reductions over rows that lie in several lanes of a warp, in a tile.

Triton exchanges a thread's partial results by shuffles: of 8 columns over 8 lanes, 24 shuffles and as many
operations in each thread, and all 8 lanes have the same result. Here a thread gets all partial results of one
column instead, through shared memory. It combines these by itself, and what is computed from the result,
such as the scale of a block, is computed once. Instructions of a thread with 32 elements: dGELU with MXFP8
both ways 1448, so 1360.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

# Triton gives the operand of a split a layout in which a thread has both parts. The layout of the result
# would be carried on to what is computed from it, in all lanes again. A reduction of one element keeps it.
KEPT = """\
@triton.jit
def only(a, b):
    return a


"""


def helper(name: str, lanes: int, combine: Callable[[str, str], str]) -> str:
    """The text of the function `name`, which combines the last dims of a tensor, each of size 2."""
    lines = ["@triton.jit", f"def {name}(value):"]
    for step in range(int(math.log2(lanes))):
        lines += [f"    even, odd = tl.split({'value' if step == 0 else combine('even', 'odd')})"]
    return "\n".join([*lines, f"    return {combine('even', 'odd')}"]) + "\n\n\n"


def partials(value: str, shape: Sequence[int], place: int, each: int) -> str:
    """A tensor of this shape with two dims for the one at `place`: lanes, and the `each` rows of a thread."""
    return f"tl.reshape({value}, {_text([*shape[:place], shape[place] // each, each, *shape[place + 1 :]])})"


def over_lanes(name: str, value: str, shape: Sequence[int], place: int, *, kept: bool) -> str:
    """Partial results of this shape, whose dim at `place` is the lanes, combined by the function `name`; that
    dim has size 1 then. `kept`: needs `KEPT` in the kernel's module."""
    outer = [i for i in range(len(shape)) if i != place]
    columns = math.prod(shape[i] for i in outer)
    halves = [2] * int(math.log2(shape[place]))
    last = f"tl.permute({value}, ({', '.join(map(str, [*outer, place]))}))"
    text = f"{name}(tl.reshape({last}, {_text([columns, *halves])}))"
    if kept:
        text = f"tl.reduce(tl.reshape({text}, [{columns}, 1]), 1, only)"
    return f"tl.reshape({text}, {_text([1 if i == place else n for i, n in enumerate(shape)])})"


def _text(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
