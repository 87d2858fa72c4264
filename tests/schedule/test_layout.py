"""Elements that a thread moves at once, read off index maps."""

from __future__ import annotations

import pytest
import sympy

from mixorder.schedule.layout import per_access

K, X, Y = sympy.symbols("k x y", integer=True, nonnegative=True)
SIZES = ((X, 64), (Y, 48))


@pytest.mark.parametrize(
    ("index", "found"),
    [
        (48 * X + Y, (8, False)),
        (X + 64 * Y, (8, True)),
        (50 * X + Y, (2, False)),  # rows begin at every even element
        (49 * X + Y, (1, False)),
        (48 * X + 2 * Y, (1, False)),
        (49 * K + 2401 * 32 * X + Y, (1, False)),  # a batch whose rows are 49 elements long
        (52 * K + 2496 * X + Y, (4, False)),
        (3072 * K + 48 * X + Y, (8, False)),
        (100 * K + X + 64 * Y, (4, True)),
    ],
)
def test_elements_of_an_access(index: sympy.Expr, found: tuple[int, bool]) -> None:
    assert per_access(index, SIZES, 2) == found
