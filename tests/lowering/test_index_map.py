"""A point of one shape as an index of another: the same element, and no division where none is needed."""

from __future__ import annotations

import itertools
import math

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from mixorder.lowering.index_map import delinearize, index_behind, reshape_index
from mixorder.region.factors import Factor

X, Y = sympy.symbols("x y", integer=True, nonnegative=True)
FACTORS = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=5)


def grouped(factors: list[int], cuts: list[int]) -> list[int]:
    """A shape with as many elements: neighbouring factors multiplied together."""
    ends = sorted({min(c, len(factors)) for c in cuts} | {len(factors)})
    starts = [0, *ends[:-1]]
    return [math.prod(factors[a:b]) for a, b in zip(starts, ends, strict=True)]


def flat(index: tuple[int, ...], shape: list[int]) -> int:
    at = 0
    for i, n in zip(index, shape, strict=True):
        assert 0 <= i < n
        at = at * n + i
    return at


@settings(max_examples=60, deadline=None)
@given(FACTORS, st.lists(st.integers(0, 5), max_size=3), st.lists(st.integers(0, 5), max_size=3))
def test_the_element_is_the_same(factors: list[int], one: list[int], other: list[int]) -> None:
    shape, axes = grouped(factors, one), grouped(factors, other)
    symbols = sympy.symbols(f"a:{len(axes)}", integer=True, nonnegative=True)
    found = reshape_index(shape, list(zip(axes, symbols, strict=True)))
    assert len(found) == len(shape)
    for point in itertools.product(*map(range, axes)):
        values = dict(zip(symbols, point, strict=True))
        index = tuple(int(sympy.sympify(e).subs(values)) for e in found)
        assert flat(index, shape) == flat(point, axes)


@pytest.mark.parametrize(
    ("shape", "axes", "index"),
    [
        ([6, 4], [(6, X), (4, Y)], (X, Y)),
        ([6, 1, 4], [(6, X), (4, Y)], (X, 0, Y)),
        ([24], [(6, X), (4, Y)], (4 * X + Y,)),
        ([2, 3, 4], [(6, X), (4, Y)], (FloorDiv(X, 3), ModularIndexing(X, 1, 3), Y)),
    ],
)
def test_only_what_does_not_match_is_divided(shape: object, axes: object, index: object) -> None:
    assert reshape_index(shape, axes) == index  # type: ignore[arg-type]


def test_a_flat_index_per_dim() -> None:
    assert delinearize(X, [2, 3, 4]) == (FloorDiv(X, 12), ModularIndexing(X, 4, 3), ModularIndexing(X, 1, 4))


def test_behind_a_permutation() -> None:
    """Of 2 x 3 x 4 elements the first two dims swapped, and then as one dim."""
    place = (Factor(4, 3), Factor(12, 2), Factor(1, 4))
    for a, b, c in itertools.product(range(2), range(3), range(4)):
        at = index_behind([(6, sympy.Integer(a * 3 + b)), (4, sympy.Integer(c))], place, (6, 4))
        assert tuple(map(int, at)) == (b * 2 + a, c)
