"""The shared iteration space of a pair, as classified axes.

Takes the shapes that a pair's reductions run over and the dims that they reduce; gives a `Space`: the
coarsest list of axes in memory order in which every dim of those shapes is a run of axes, each axis in one
class by who reduces it. Plain numbers, no graph.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import sympy

from ..errors import Decline, DeclineReason
from ..inductor.symbols import canonical
from ..ir.program import AxisClass

Size: TypeAlias = int | sympy.Expr

ROW, COLUMN, BATCH, COMMON = AxisClass.ROW, AxisClass.COLUMN, AxisClass.BATCH, AxisClass.COMMON


def product(sizes: Iterable[Size]) -> Size:
    total = math.prod(sizes)
    return total if isinstance(total, int) else plain(total)


def plain(size: sympy.Expr) -> Size:
    """A size as an int if it is one, else in the form that all equal ones have."""
    if not size.is_Integer:
        size = canonical(size)
    return int(size) if size.is_Integer else size


@functools.lru_cache(maxsize=4096)
def ratio(whole: Size, part: Size) -> Size | None:
    """`whole / part` where that is an integer for all values of the symbols, else None."""
    if isinstance(whole, int) and isinstance(part, int):
        return whole // part if part and whole % part == 0 else None
    quotient = sympy.cancel(sympy.sympify(whole) / part)
    numerator, denominator = sympy.fraction(quotient)
    if denominator != 1:
        return None
    return int(numerator) if numerator.is_Integer else numerator


@dataclasses.dataclass(frozen=True)
class Reduced:
    """One reduction: the shape of its operand, and the dims that it reduces, ascending."""

    shape: tuple[Size, ...]
    dims: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Space:
    """Axes in memory order, outermost first: sizes and classes. Neighbours differ in class."""

    axes: tuple[tuple[Size, AxisClass], ...]

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


def classify(inner: Reduced, outer: Reduced) -> Space:
    """The space of a pair. Raises `Decline` where its axes do not make two-dimensional tiles."""
    cuts = _common_cuts((inner.shape, outer.shape))
    bounds = list(zip(cuts, cuts[1:], strict=False))
    by_inner = _reduced_bounds(inner, cuts)
    by_outer = _reduced_bounds(outer, cuts)
    axes: list[tuple[Size, AxisClass]] = []
    for low, high in bounds:
        size = ratio(high, low)
        assert size is not None
        kind = {
            (False, True): ROW,
            (True, False): COLUMN,
            (False, False): BATCH,
            (True, True): COMMON,
        }[(low, high) in by_inner, (low, high) in by_outer]
        if axes and axes[-1][1] is kind:
            axes[-1] = (product((axes[-1][0], size)), kind)
        else:
            axes.append((size, kind))
    return _checked(axes)


def fits(space: Space, inner: Reduced | None, outer: Reduced | None) -> bool:
    """Whether two reductions make a pair of just this space."""
    if inner is None or outer is None:
        return False
    try:
        return classify(inner, outer) == space
    except Decline:
        return False


@functools.lru_cache(maxsize=4096)
def reduces(space: Space, what: Reduced, kinds: tuple[AxisClass, ...]) -> bool:
    """Whether a reduction of the space's elements is over all axes of `kinds`, and over no others."""
    shape = tuple(size for size, _ in space.axes)
    try:
        cuts = _common_cuts((shape, what.shape))
    except Decline:
        return False
    wanted = Reduced(shape, tuple(i for i, (_, kind) in enumerate(space.axes) if kind in kinds))
    return _reduced_bounds(wanted, cuts) == _reduced_bounds(what, cuts)


def columns_alone(outer: Reduced) -> Space | None:
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
        raise Decline(DeclineReason.AXIS_CLASS, "both reductions reduce an axis, the inner one also another")
    if any(kind in (COLUMN, COMMON) and not isinstance(size, int) for size, kind in axes):
        raise Decline(DeclineReason.DYNAMIC_SHAPE, "what the inner reduction reduces has a symbolic size")
    if kinds[-1] not in (COLUMN, COMMON):
        raise Decline(DeclineReason.AXIS_CLASS, "the innermost axis is not the inner reduction's")
    return Space(tuple(axes))


def _common_cuts(shapes: Iterable[Sequence[Size]]) -> list[Size]:
    """Positions in the flat index at which a dim of some shape begins or ends, outermost first."""
    cuts: list[Size] = []
    for shape in shapes:
        for cut in _cuts(shape):
            if cut in cuts:
                continue
            place = next((i for i, other in enumerate(cuts) if ratio(other, cut) is not None), len(cuts))
            cuts.insert(place, cut)
    if any(ratio(high, low) is None for low, high in zip(cuts, cuts[1:], strict=False)):
        raise Decline(DeclineReason.AXIS_CLASS, "the reductions' shapes cannot be reshaped into one")
    return cuts


def _cuts(shape: Sequence[Size]) -> list[Size]:
    """Products of leading sizes: [1, d0, d0 * d1, ...]."""
    cuts: list[Size] = [1]
    for size in shape:
        cuts.append(product((cuts[-1], size)))
    return cuts


def _reduced_bounds(reduced: Reduced, cuts: list[Size]) -> set[tuple[Size, Size]]:
    """The intervals of `cuts` that lie in reduced dims."""
    own = _cuts(reduced.shape)
    found: set[tuple[Size, Size]] = set()
    for d in reduced.dims:
        first, last = cuts.index(own[d]), cuts.index(own[d + 1])
        found.update(zip(cuts[first:last], cuts[first + 1 : last + 1], strict=True))
    return found
