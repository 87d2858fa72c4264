"""The shared iteration space of a region, as classified axes.

Takes what reductions reduce, as runs of factors of one space; gives a `Space`: the coarsest list of axes in
memory order in which every run is some of the axes, each axis in one class by who reduces it. Plain numbers,
no graph.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from ..errors import Decline, DeclineReason
from ..ir.program import AxisClass
from .factors import Factor, Run, boundaries, divided, joined, ladder, steps
from .sizes import Size, product, ratio

ROW, COLUMN, BATCH, COMMON = AxisClass.ROW, AxisClass.COLUMN, AxisClass.BATCH, AxisClass.COMMON
_KINDS = {(False, True): ROW, (True, False): COLUMN, (False, False): BATCH, (True, True): COMMON}
"""The class of an axis, by whether inner and outer reductions run over it."""


@dataclasses.dataclass(frozen=True)
class Reduced:
    """One reduction: the shape of its operand, and the dims that it reduces, ascending."""

    shape: tuple[Size, ...]
    dims: tuple[int, ...]

    @functools.cached_property
    def run(self) -> Run | None:
        """The factors that it reduces of its operand's elements; None if that has none."""
        order = divided((Factor(1, product(self.shape)),), self.shape)
        return None if order is None else joined(factor for d in self.dims for factor in order[d])


@dataclasses.dataclass(frozen=True)
class Space:
    """Axes in memory order, outermost first: sizes and classes. Neighbours of a pair's differ in class."""

    axes: tuple[tuple[Size, AxisClass], ...]

    def run(self, *kinds: AxisClass) -> Run:
        """The axes of some classes, as factors of the elements' numbers."""
        stride, factors = product(()), list[Factor]()
        for size, kind in reversed(self.axes):
            factor = Factor(stride, size)
            factors += [factor] if kind in kinds else []
            stride = factor.end
        return joined(reversed(factors))

    def size(self, *kinds: AxisClass) -> Size:
        return product(size for size, kind in self.axes if kind in kinds)

    @property
    def numel(self) -> Size:
        return product(size for size, _ in self.axes)

    @property
    def rows(self) -> Size:
        """Elements that one outer result reduces, common axes aside."""
        return self.size(ROW)

    @property
    def cols(self) -> Size:
        """Elements that one inner result reduces."""
        return self.size(COLUMN, COMMON)

    @property
    def batch(self) -> Size:
        return self.size(BATCH)

    @property
    def inner_kind(self) -> AxisClass:
        """The class of the axes that the inner reduction runs over: columns, or common axes."""
        return COMMON if any(kind is COMMON for _, kind in self.axes) else COLUMN

    def __str__(self) -> str:
        plain = (ROW, COLUMN)
        if tuple(kind for _, kind in self.axes) == plain:
            return "x".join(str(size) for size, _ in self.axes)
        return " x ".join(f"{kind.value} {size}" for size, kind in self.axes)


def is_outer_like(reduced: Reduced) -> bool:
    """Whether a reduction can be a pair's outer one: it reduces the first dim, or does not reduce the last.

    Dims of size 1 count only where no other dim is reduced, or all others are.
    """
    long = [d for d, n in enumerate(reduced.shape) if n != 1]
    some = [d for d in long if d in reduced.dims]
    decisive = long if some and len(some) < len(long) else list(range(len(reduced.shape)))
    if not decisive or not reduced.dims:
        return False
    return decisive[-1] not in reduced.dims or (
        decisive[0] in reduced.dims and any(d not in reduced.dims for d in decisive)
    )


def is_inner_like(reduced: Reduced) -> bool:
    """Whether a reduction can be a pair's inner one: it reduces the last dim, where memory is contiguous."""
    return bool(reduced.dims) and len(reduced.dims) < len(reduced.shape) and not is_outer_like(reduced)


def space_of(numel: Size, inner: Iterable[Run], outer: Iterable[Run], cuts: Iterable[Size] = ()) -> Space:
    """The space of so many elements in which inner and outer reductions run over these factors. `cuts`: where
    an axis begins besides. Raises `Decline` where the factors have no common refinement."""
    sides = [[factor for run in runs for factor in run] for runs in (inner, outer)]
    ends = ladder({1, numel, *cuts, *boundaries(sides[0]), *boundaries(sides[1])})
    if ends is None:
        raise Decline(DeclineReason.AXIS_CLASS, "the reductions' shapes cannot be reshaped into one")
    by_inner, by_outer = ({i for factor in side for i in steps(factor, ends)} for side in sides)
    axes = [
        (ratio(high, low) or 0, _KINDS[i in by_inner, i in by_outer])
        for i, (low, high) in enumerate(zip(ends, ends[1:], strict=False))
    ]
    return Space(tuple(reversed(axes)))


def classify(inner: Reduced, outer: Reduced) -> Space:
    """The space of a pair. Raises `Decline` where its axes do not make two-dimensional tiles."""
    numel = product(inner.shape)
    if inner.run is None or outer.run is None or product(outer.shape) != numel:
        raise Decline(DeclineReason.AXIS_CLASS, "the reductions' shapes cannot be reshaped into one")
    return _checked(list(space_of(numel, [inner.run], [outer.run]).axes))


def fits(space: Space, inner: Reduced | None, outer: Reduced | None) -> bool:
    """Whether two reductions make a pair of just this space."""
    if inner is None or outer is None:
        return False
    return reduces(space, inner, (COLUMN, COMMON)) and reduces(space, outer, (ROW, COMMON))


def reduces(space: Space, what: Reduced, kinds: tuple[AxisClass, ...]) -> bool:
    """Whether a reduction of the space's elements is over all axes of `kinds`, and over no others."""
    return product(what.shape) == space.numel and what.run == space.run(*kinds)


def unpaired_space(outer: Reduced) -> Space | None:
    """The space of an outer reduction over leading dims with no inner one beside it. None where the number of
    columns is symbolic, or 1."""
    count = len(outer.dims)
    cols = product(outer.shape[count:])
    if outer.dims != tuple(range(count)) or not isinstance(cols, int) or cols < 2:
        return None
    return Space(((product(outer.shape[:count]), ROW), (cols, COLUMN)))


def _checked(axes: list[tuple[Size, AxisClass]]) -> Space:
    kinds = [kind for _, kind in axes]
    # An axis of size 1 is not seen in the products of sizes.
    if ROW not in kinds:
        axes = [(1, ROW), *axes]
    if COLUMN not in kinds and COMMON not in kinds:
        axes = [*axes, (1, COLUMN)]
    kinds = [kind for _, kind in axes]
    if COLUMN in kinds and COMMON in kinds:
        raise Decline(DeclineReason.AXIS_CLASS, "both reductions reduce an axis, only the inner one another")
    if any(kind in (COLUMN, COMMON) and not isinstance(size, int) for size, kind in axes):
        raise Decline(DeclineReason.DYNAMIC_SHAPE, "the inner reduction runs over a symbolic size")
    if kinds[-1] not in (COLUMN, COMMON):
        raise Decline(DeclineReason.AXIS_CLASS, "the inner reduction does not reduce the innermost axis")
    return Space(tuple(axes))
