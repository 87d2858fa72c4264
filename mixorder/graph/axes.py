"""The shared iteration space of a pair, as classified axes.

Takes the shapes that a pair's reductions run over and the dims that they reduce; gives a `Space`: the
coarsest list of axes in memory order in which every dim of those shapes is a run of axes, each axis in one
class by who reduces it. Plain numbers, no graph.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from ..errors import Decline, DeclineReason
from ..loops.ir import AxisClass

ROW, COLUMN, KEPT, COMMON = AxisClass.ROW, AxisClass.COLUMN, AxisClass.KEPT, AxisClass.COMMON


@dataclasses.dataclass(frozen=True)
class Reduced:
    """What one reduction does to its source: the source's shape and the dims reduced, ascending."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Space:
    """Axes in memory order, outermost first: sizes and classes. Neighbours differ in class."""

    axes: tuple[tuple[int, AxisClass], ...]

    def size(self, *kinds: AxisClass) -> int:
        return math.prod(size for size, kind in self.axes if kind in kinds)

    @property
    def numel(self) -> int:
        return math.prod(size for size, _ in self.axes)

    @property
    def rows(self) -> int:
        """Elements that one outer result reduces, common axes aside."""
        return self.size(ROW)

    @property
    def cols(self) -> int:
        """Elements that one inner result reduces."""
        return self.size(COLUMN, COMMON)

    @property
    def kept(self) -> int:
        return self.size(KEPT)

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
    """Whether a reduction can be a pair's outer one: it reduces the first dim, or spares the last one.

    Dims of size 1 decide only where they are all that is reduced, or all that is spared.
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
    axes: list[tuple[int, AxisClass]] = []
    for low, high in bounds:
        kind = {
            (False, True): ROW,
            (True, False): COLUMN,
            (False, False): KEPT,
            (True, True): COMMON,
        }[(low, high) in by_inner, (low, high) in by_outer]
        if axes and axes[-1][1] is kind:
            axes[-1] = (axes[-1][0] * (high // low), kind)
        else:
            axes.append((high // low, kind))
    return _checked(axes)


def _checked(axes: list[tuple[int, AxisClass]]) -> Space:
    kinds = [kind for _, kind in axes]
    # An axis of size 1 leaves no trace in the shapes' products.
    if ROW not in kinds:
        axes = [(1, ROW), *axes]
    if COLUMN not in kinds and COMMON not in kinds:
        axes = [*axes, (1, COLUMN)]
    kinds = [kind for _, kind in axes]
    if COLUMN in kinds and COMMON in kinds:
        raise Decline(DeclineReason.AXIS_CLASS, "both sides reduce one axis, and the inner one another")
    if kinds[-1] not in (COLUMN, COMMON):
        raise Decline(DeclineReason.AXIS_CLASS, "the innermost axis is not the inner reduction's")
    return Space(tuple(axes))


def _common_cuts(shapes: Iterable[Sequence[int]]) -> list[int]:
    """Positions in the flat index at which a dim of some shape begins or ends, outermost first."""
    cuts: set[int] = set()
    for shape in shapes:
        cuts.update(_cuts(shape))
    ordered = sorted(cuts)
    if any(high % low for low, high in zip(ordered, ordered[1:], strict=False)):
        raise Decline(DeclineReason.AXIS_CLASS, "the two sides see shapes with no common refinement")
    return ordered


def _cuts(shape: Sequence[int]) -> list[int]:
    """Products of leading sizes: [1, d0, d0 * d1, ...]."""
    cuts = [1]
    for size in shape:
        cuts.append(cuts[-1] * size)
    return cuts


def _reduced_bounds(reduced: Reduced, cuts: list[int]) -> set[tuple[int, int]]:
    """The intervals of `cuts` that lie in reduced dims."""
    own = _cuts(reduced.shape)
    spans = [(own[d], own[d + 1]) for d in reduced.dims]
    return {
        (low, high)
        for low, high in zip(cuts, cuts[1:], strict=False)
        if any(start <= low and high <= end for start, end in spans)
    }
