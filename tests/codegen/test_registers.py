"""The order of a thread's elements: the same tensor, whatever its rank."""

from __future__ import annotations

import types

import numpy as np
import pytest

from mixorder.codegen.registers import HELPER, along_columns

TL = types.SimpleNamespace(
    reshape=lambda x, shape: x.reshape(shape),
    permute=lambda x, order: x.transpose(order),
    split=lambda x: (x[..., 0], x[..., 1]),
    join=lambda one, other: np.stack([one, other], -1),
)


@pytest.mark.parametrize(
    ("shape", "place"),
    [((2, 32, 2, 32), 1), ((32, 4, 8), 0), ((4, 8, 16), 2), ((64, 64), 0), ((64, 64), 1), ((4, 2), 0)],
)
def test_the_elements_stay_where_they_are(shape: tuple[int, ...], place: int) -> None:
    names = {"tl": TL, "x": np.arange(np.prod(shape)).reshape(shape)}
    exec(HELPER.replace("@triton.jit\n", ""), names)
    assert (eval(along_columns("x", shape, place), names) == names["x"]).all()


def test_four_elements_of_a_column_are_innermost() -> None:
    """Splitting takes the last dim apart, and joining makes it the innermost one in registers."""
    seen = []
    names = {
        "tl": types.SimpleNamespace(
            **{**vars(TL), "join": lambda a, b: seen.append((a, b)) or np.stack([a, b], -1)}
        ),
        "x": np.arange(64).reshape(8, 8),
    }
    exec(HELPER.replace("@triton.jit\n", ""), names)
    eval(along_columns("x", (8, 8), 0), names)
    (*_, (low, high)) = seen
    assert (high - low == 8).all()  # the next row
