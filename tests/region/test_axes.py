"""Who reduces which axis: plain shapes in, a classified space or a reason out."""

from __future__ import annotations

from typing import Any

import pytest
import sympy

from mixorder.errors import Decline, DeclineReason
from mixorder.ir.program import AxisClass
from mixorder.region.axes import (
    Reduced,
    Space,
    classify,
    is_inner_like,
    is_outer_like,
    space_of,
    unpaired_space,
)
from mixorder.region.factors import Factor
from mixorder.region.sizes import product, ratio

ROW, COLUMN, BATCH, COMMON = AxisClass.ROW, AxisClass.COLUMN, AxisClass.BATCH, AxisClass.COMMON
S, T = (sympy.Symbol(name, integer=True, positive=True) for name in "st")


# Products and ratios.


@pytest.mark.parametrize(
    ("whole", "part", "quotient"),
    [
        (24, 6, 4),
        (6, 6, 1),
        (0, 6, 0),
        (24 * S, 6, 4 * S),
        (24 * S, 6 * S, 4),
        (S * T, T, S),
        (S * S, S, S),
        (2 * S + 2 * T, 2, S + T),
        (sympy.expand((S + T) * S), S, S + T),
        (sympy.expand((S + T) * 16), S + T, 16),
    ],
)
def test_ratio(whole: Any, part: Any, quotient: Any) -> None:
    found = ratio(whole, part)
    assert found == quotient and isinstance(found, int) == isinstance(quotient, int)


@pytest.mark.parametrize(("whole", "part"), [(24, 5), (6, 12), (6, 0), (S, 2), (S, T), (2, S), (S + T, S)])
def test_what_does_not_divide_for_all_values_has_no_ratio(whole: Any, part: Any) -> None:
    assert ratio(whole, part) is None


# Sides.


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((6, 4), (1,)),
        ((2, 3, 4), (2,)),
        ((2, 3, 4), (1, 2)),
        ((6, 1), (1,)),
        ((6, 1, 4), (1, 2)),
        ((S, 4), (1,)),
    ],
)
def test_inner_like(shape: Any, dims: Any) -> None:
    assert is_inner_like(Reduced(shape, dims)) and not is_outer_like(Reduced(shape, dims))


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((6, 4), (0,)),
        ((2, 3, 4), (0, 1)),
        ((2, 3, 4), (1,)),
        ((3, 6, 5, 7), (0, 2, 3)),
        ((2, 3, 4), (0, 2)),
        ((1, 4), (0,)),
        ((6, 1), (0,)),
        ((S, 4), (0,)),
    ],
)
def test_outer_like(shape: Any, dims: Any) -> None:
    assert is_outer_like(Reduced(shape, dims)) and not is_inner_like(Reduced(shape, dims))


@pytest.mark.parametrize(("shape", "dims"), [((6, 4), (0, 1)), ((24,), (0,)), ((6, 4), ()), ((), ())])
def test_a_total_and_nothing_are_on_no_side(shape: Any, dims: Any) -> None:
    assert not is_inner_like(Reduced(shape, dims)) and not is_outer_like(Reduced(shape, dims))


# Classes: (inner shape, inner dims), (outer shape, outer dims), axes.

PAIRS = {
    "plain": (((6, 4), (1,)), ((6, 4), (0,)), ((6, ROW), (4, COLUMN))),
    "leading dims are one axis": (((2, 3, 4), (2,)), ((2, 3, 4), (0, 1)), ((6, ROW), (4, COLUMN))),
    "trailing dims are one axis": (((6, 2, 4), (1, 2)), ((6, 2, 4), (0,)), ((6, ROW), (8, COLUMN))),
    "two views of the rows": (((2, 3, 4), (2,)), ((6, 4), (0,)), ((6, ROW), (4, COLUMN))),
    "finer outside": (((6, 8), (1,)), ((6, 2, 4), (0,)), ((6, ROW), (8, COLUMN))),
    "weight per head": (
        ((2, 3, 5, 4), (3,)), ((2, 3, 5, 4), (0, 1)), ((6, ROW), (5, BATCH), (4, COLUMN)),
    ),
    "weight per head, heads first": (
        ((2, 5, 3, 4), (3,)), ((2, 5, 3, 4), (0, 2)), ((2, ROW), (5, BATCH), (3, ROW), (4, COLUMN)),
    ),
    "shared by the heads": (((2, 3, 5, 4), (3,)), ((2, 3, 5, 4), (0, 1, 2)), ((30, ROW), (4, COLUMN))),
    "batch first": (((2, 3, 4), (2,)), ((2, 3, 4), (1,)), ((2, BATCH), (3, ROW), (4, COLUMN))),
    "convolution": (
        ((3, 6, 5, 7), (2, 3)), ((3, 6, 5, 7), (0, 2, 3)), ((3, ROW), (6, BATCH), (35, COMMON)),
    ),
    "batch by a view": (((512, 256), (1,)), ((256, 512), (0,)), ((256, ROW), (2, BATCH), (256, COLUMN))),
    "batch of norms": (((2, 3, 4, 5), (1, 3)), ((2, 3, 4, 5), (0, 2)), None),
    "one row": (((1, 4), (1,)), ((1, 4), (0,)), ((1, ROW), (4, COLUMN))),
    "one column": (((6, 1), (1,)), ((6, 1), (0,)), ((6, ROW), (1, COLUMN))),
    "dims of size 1": (((6, 1, 4), (1, 2)), ((1, 6, 4), (0, 1)), ((6, ROW), (4, COLUMN))),
    "symbolic rows": (((S, 4), (1,)), ((S, 4), (0,)), ((S, ROW), (4, COLUMN))),
    "two symbols": (((S, T, 4), (2,)), ((sympy.expand(S * T), 4), (0,)), ((S * T, ROW), (4, COLUMN))),
    "two symbols, swapped": (((S, T, 4), (2,)), ((T, S, 4), (0, 1)), ((S * T, ROW), (4, COLUMN))),
    "a sum of symbols": (((S + T, 4), (1,)), ((S + T, 4), (0,)), ((S + T, ROW), (4, COLUMN))),
    "symbolic rows around heads": (
        ((S, 5, T, 4), (3,)), ((S, 5, T, 4), (0, 2)), ((S, ROW), (5, BATCH), (T, ROW), (4, COLUMN)),
    ),
    "symbolic batch first": (((S, 3, 4), (2,)), ((S, 3, 4), (1,)), ((S, BATCH), (3, ROW), (4, COLUMN))),
    "symbolic batch and rows": (((S, T, 4), (2,)), ((S, T, 4), (0,)), ((S, ROW), (T, BATCH), (4, COLUMN))),
    "symbolic batch of images": (
        ((S, 6, 35), (2,)), ((S, 6, 5, 7), (0, 2, 3)), ((S, ROW), (6, BATCH), (35, COMMON)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_classes(name: str) -> None:
    inner, outer, axes = PAIRS[name]
    if axes is None:
        axes = ((2, ROW), (3, COLUMN), (4, ROW), (5, COLUMN))
    space = classify(Reduced(*inner), Reduced(*outer))
    assert space == Space(axes)
    assert space.numel == product(inner[0])
    assert all(a[1] is not b[1] for a, b in zip(space.axes, space.axes[1:], strict=False))


# An outer reduction with no inner one beside it.


@pytest.mark.parametrize(
    ("shape", "dims", "axes"),
    [
        ((6, 2048), (0,), ((6, ROW), (2048, COLUMN))),
        ((2, 3, 100), (0, 1), ((6, ROW), (100, COLUMN))),
        ((6, 4, 25), (0,), ((6, ROW), (100, COLUMN))),
        ((S, 8192), (0,), ((S, ROW), (8192, COLUMN))),
    ],
)
def test_unpaired_space(shape: Any, dims: Any, axes: Any) -> None:
    assert unpaired_space(Reduced(shape, dims)) == Space(axes)


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((6, S), (0,)),
        ((6, 1), (0,)),
        ((2, 3, 4), (1,)),
        ((2, 3, 4), (0, 2)),
        ((6, 4), (0, 1)),
    ],
)
def test_columns_that_make_no_space(shape: Any, dims: Any) -> None:
    """A symbolic number of them, a single one; rows that are not all leading dims."""
    assert unpaired_space(Reduced(shape, dims)) is None


# Refusals.

REFUSED = {
    "no common refinement": (((6, 4), (1,)), ((4, 6), (0,)), DeclineReason.AXIS_CLASS),
    "symbols that need not divide": (((S, 4), (1,)), ((T, 4), (0,)), DeclineReason.AXIS_CLASS),
    "column and common": (((2, 3, 4), (1, 2)), ((2, 3, 4), (0, 1)), DeclineReason.AXIS_CLASS),
    "common and column": (((2, 3, 4), (1, 2)), ((2, 3, 4), (0, 2)), DeclineReason.AXIS_CLASS),
    "innermost axis is a row": (((2, 3, 4), (1,)), ((2, 3, 4), (0, 2)), DeclineReason.AXIS_CLASS),
    "innermost axis is batch": (((2, 3, 4), (1,)), ((2, 3, 4), (0,)), DeclineReason.AXIS_CLASS),
    "symbolic columns": (((6, S), (1,)), ((6, S), (0,)), DeclineReason.DYNAMIC_SHAPE),
    "symbolic rows and columns": (((S, T), (1,)), ((S, T), (0,)), DeclineReason.DYNAMIC_SHAPE),
    "symbolic common axis": (((2, 3, S), (2,)), ((2, 3, S), (0, 2)), DeclineReason.DYNAMIC_SHAPE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    inner, outer, reason = REFUSED[name]
    with pytest.raises(Decline) as caught:
        classify(Reduced(*inner), Reduced(*outer))
    assert caught.value.reason is reason and caught.value.detail


# One row or column fits both ways, and so does a common axis; of symbols it depends.
ONE_WAY = [n for n in PAIRS if not any(word in n for word in ("one", "convolution", "images", "symbol"))]


@pytest.mark.parametrize("name", ONE_WAY)
def test_the_other_way_round_the_innermost_axis_is_not_the_inner_ones(name: str) -> None:
    inner, outer, _ = PAIRS[name]
    with pytest.raises(Decline) as caught:
        classify(Reduced(*outer), Reduced(*inner))
    assert caught.value.reason is DeclineReason.AXIS_CLASS


# Reductions over sets of axes: a space of N samples, G groups of C channels, and P pixels.

N, G, C, P = 8, 4, 5, 9
SAMPLES, CHANNELS, PIXELS = Factor(G * C * P, N), Factor(P, C), Factor(1, P)


@pytest.mark.parametrize(
    ("inner", "outer", "axes"),
    [
        ([(CHANNELS, PIXELS)], [(SAMPLES, PIXELS)], (ROW, BATCH, COLUMN, COMMON)),  # group norm
        ([(PIXELS,), (CHANNELS,)], [(SAMPLES,)], (ROW, BATCH, COLUMN, COLUMN)),  # by partial sums of pixels
        ([], [(SAMPLES, PIXELS)], (ROW, BATCH, ROW)),  # batch norm
    ],
)
def test_reductions_over_sets_of_axes(inner: Any, outer: Any, axes: Any) -> None:
    space = space_of(N * G * C * P, inner, outer)
    assert tuple(kind for _, kind in space.axes) == axes and space.numel == N * G * C * P


def test_axes_without_a_common_refinement() -> None:
    with pytest.raises(Decline):
        space_of(24, [(Factor(1, 4),)], [(Factor(6, 4),)])
