"""Index algebra of row-major shapes: an index of one shape as that of another with as many elements.

Sizes may be symbolic; indices are sympy expressions in Inductor's division functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import sympy

from ..inductor.symbols import FloorDiv, ModularIndexing
from ..region.factors import Run, boundaries, divided, ladder, steps
from ..region.sizes import Size, product, ratio

Index = tuple[sympy.Expr, ...]


def delinearize(at: sympy.Expr, shape: Sequence[Size]) -> Index:
    """Split a flat index over `shape` (row major) into one index per dim."""
    index: list[sympy.Expr] = []
    stride: Size = 1
    total = product(shape)
    for n in reversed(shape):
        end = product((stride, n))
        if n == 1:
            index.append(sympy.S.Zero)
        elif end == total:
            index.append(FloorDiv(at, stride) if stride != 1 else at)
        else:
            index.append(ModularIndexing(at, stride, n))
        stride = end
    return tuple(reversed(index))


def reshape_index(shape: Sequence[Size], axes: Sequence[tuple[Size, sympy.Expr]]) -> Index:
    """An index over `axes` (size, index) as an index over `shape`, with as many elements in the same order.

    Dims and axes are matched in the smallest groups of equal size, so that most groups need no division.
    """
    index: list[sympy.Expr] = []
    left = [(size, at) for size, at in axes if size != 1]
    dims: list[Size] = []
    group: list[tuple[Size, sympy.Expr]] = []
    for dim in shape:
        dims.append(dim)
        total = product(dims)
        # Add axes until the group is a multiple of the dims; then add dims until both have the same size.
        while left and (size := product(n for n, _ in group)) != total and ratio(size, total) is None:
            group.append(left.pop(0))
        if product(n for n, _ in group) == total:
            index.extend(_split_group(dims, group))
            dims, group = [], []
    if dims:
        index.extend(_split_group(dims, [*group, *left]))
    return tuple(index)


def index_behind(axes: Sequence[tuple[Size, sympy.Expr]], place: Run, shape: Sequence[Size]) -> Index:
    """The place of an element, by factors of the numbers that an index over `axes` gives, as an index over
    `shape`."""
    if (order := divided(place, shape)) is not None:
        place = tuple(itertools.chain.from_iterable(order))
    strides = list(itertools.accumulate((size for size, _ in reversed(axes)), _times, initial=1))
    cuts = {1, strides[-1], *boundaries(place)}
    ends = ladder(cuts.union(strides)) or ladder(cuts)  # cut where dims and axes begin: nothing is divided
    assert ends is not None
    sizes = [ratio(high, low) or 0 for low, high in zip(ends, ends[1:], strict=False)]
    places = list(zip(sizes, reversed(reshape_index(sizes[::-1], axes)), strict=True))
    return reshape_index(shape, [places[i] for factor in place for i in reversed(steps(factor, ends))])


def _times(left: Size, right: Size) -> Size:
    return product((left, right))


def _split_group(dims: list[Size], group: list[tuple[Size, sympy.Expr]]) -> Index:
    flat: sympy.Expr = sympy.S.Zero
    for size, at in group:
        flat = flat * size + at
    return delinearize(flat, dims)
