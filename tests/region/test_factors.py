"""Factors of a flat index, against indices that are counted out."""

from __future__ import annotations

import itertools
import math

import pytest

from mixorder.region.factors import Factor, Order, boundaries, broadcast, divided, flat, joined, spanned

SHAPES = [(8, 12), (96,), (2, 4, 12), (8, 3, 4), (2, 4, 3, 4), (1, 8, 1, 12), (24, 4), (4, 24)]


def numbers(order: Order, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The index into `shape` of each element, by its number."""
    found = []
    for number in range(math.prod(shape)):
        index = []
        for run in order:
            at = 0
            for factor in run:
                at = at * factor.size + number // factor.stride % factor.size
            index.append(at)
        found.append(tuple(index))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_major_tensor_is_one_factor(shape: tuple[int, ...]) -> None:
    order = divided((Factor(1, 96),), shape)
    assert order is not None and flat(order) == (Factor(1, 96),)
    assert numbers(order, shape) == list(itertools.product(*map(range, shape)))


@pytest.mark.parametrize("shape", [(12, 8), (12, 2, 4), (3, 4, 8), (3, 32), (48, 2)])
def test_a_view_behind_a_transposition(shape: tuple[int, ...]) -> None:
    """Element `number` of an 8 x 12 tensor is at column * 8 + row of the transposed one."""
    order = divided((Factor(1, 12), Factor(12, 8)), shape)
    places = [number % 12 * 8 + number // 12 for number in range(96)]
    assert order is not None
    for place, index in zip(places, numbers(order, shape), strict=True):
        assert place == sum(i * math.prod(shape[d + 1 :]) for d, i in enumerate(index))


@pytest.mark.parametrize("shape", [(5, 8), (96, 2), (7,), (9, 10)])
def test_a_shape_that_cuts_through_a_factor(shape: tuple[int, ...]) -> None:
    assert divided((Factor(1, 12), Factor(12, 8)), shape) is None


@pytest.mark.parametrize("shape", [(5, 0), (0,), (2, 3)])
def test_no_elements_have_no_factors(shape: tuple[int, ...]) -> None:
    assert divided((Factor(1, 0),), shape) is None and divided((Factor(1, 6),), (0, 6)) is None


def test_joined_where_one_follows_the_other() -> None:
    assert joined((Factor(12, 8), Factor(1, 12))) == (Factor(1, 96),)
    assert joined((Factor(1, 12), Factor(12, 8))) == (Factor(1, 12), Factor(12, 8))
    assert joined((Factor(12, 8), Factor(4, 1), Factor(1, 4))) == (Factor(12, 8), Factor(1, 4))


def test_an_operand_that_broadcasts() -> None:
    order = (Factor(12, 8),), (Factor(4, 3),), (Factor(1, 4),)
    assert broadcast(order, (3, 1)) == ((Factor(4, 3),), ())
    assert broadcast(order, (8, 1, 4)) == (order[0], (), order[2])
    assert boundaries(flat(broadcast(order, (8, 1, 4)))) == {1, 4, 12, 96}


def test_the_elements_that_some_factors_span() -> None:
    assert spanned([Factor(1, 32), Factor(4096, 32)]) == 1024
    assert spanned([Factor(1, 32), Factor(1, 128)]) == 128
    assert spanned([Factor(4096, 32), Factor(4096, 32), Factor(1, 4)]) == 128


def test_a_single_element_has_no_factors() -> None:
    assert divided((Factor(1, 1),), (1, 1)) == ((), ())
