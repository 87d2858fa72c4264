"""What three passes over reduction groups cannot compute."""

from __future__ import annotations

import pytest
import sympy
from graphs import f32

from mixorder.errors import Decline, DeclineReason
from mixorder.ir.program import (
    Axis,
    AxisClass,
    Buffer,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    Nest,
    Reduce,
    Ref,
    Statement,
    Store,
)
from mixorder.ir.reductions import SUM
from mixorder.transform.reduction_groups import two_pass

ROWS, COLS = sympy.Integer(64), sympy.Integer(16)
x, y = sympy.symbols("x y", integer=True, nonnegative=True)


def total(name: str, value: str) -> Reduce:
    return Reduce(name, SUM, Ref(value), (x,), f32, f32)


def less(name: str, value: str, other: str) -> Compute:
    return Compute(name, "sub", (Ref(value), Ref(other)), (), f32)


def program(*stored: str) -> LoopProgram:
    """Elements less a first sum, less the sum of that, and the sum of this; those that are named are stored,
    and elements that need the first sum only."""
    values: list[Statement] = [
        Load("a", "in0", COLS * x + y, f32),
        *(total("first", "a"), less("b", "a", "first")),
        *(total("second", "b"), less("c", "b", "second")),
        total("third", "c"),
    ]
    buffers, stores = [Buffer("in0", BufferRole.INPUT, f32, (ROWS, COLS), (COLS, sympy.S.One))], []
    for i, name in enumerate(("b", *stored)):
        full = name in ("b", "c")
        shape, strides = ((ROWS, COLS), (COLS, sympy.S.One)) if full else ((COLS,), (sympy.S.One,))
        buffers.append(Buffer(f"out{i}", BufferRole.OUTPUT, f32, shape, strides))
        stores.append(Store(f"out{i}", COLS * x + y if full else y, Ref(name)))
    needed = {name: i for i, name in enumerate(("first", "b", "second", "c", "third"))}
    last = max(needed[name] for name in ("b", *stored))
    body = [s for s in values if needed.get(getattr(s, "name", ""), -1) <= last]
    loops = Axis(x, ROWS, AxisClass.ROW), Axis(y, COLS, AxisClass.COLUMN)
    return LoopProgram(
        tuple(buffers), (Nest(loops, (*body, *stores)),), tile_local=True, over_reduction_groups=True
    )


@pytest.mark.parametrize("stored", ["c", "third"])
def test_what_needs_the_total_of_the_last_pass(stored: str) -> None:
    with pytest.raises(Decline, match="three passes") as caught:
        two_pass(program(stored))
    assert caught.value.reason is DeclineReason.AXIS_CLASS


def test_a_sum_of_the_last_pass() -> None:
    assert len(two_pass(program("second")).nests) == 4
