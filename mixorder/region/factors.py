"""Factors of a flat index: how nodes that see the same elements in other shapes and orders are related.

The elements of a space are numbered. A `Factor` is `number // stride % size`, such as the row of an element,
the block of its row, or its place within that block. The index along a dim of a tensor is a `Run` of factors;
a view divides and joins them, a permutation changes their order. Sizes may be symbolic. Plain numbers, no
graph.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from .sizes import Size, product, ratio


@dataclasses.dataclass(frozen=True)
class Factor:
    """`number // stride % size` of an element's number."""

    stride: Size
    size: Size

    @property
    def end(self) -> Size:
        """The stride of the factor that follows without a gap."""
        return product((self.stride, self.size))

    def begins(self, stride: Size) -> bool:
        """Whether a part of it begins at a stride, which is one of a common refinement."""
        return ratio(stride, self.stride) is not None and ratio(stride, self.end) is None

    def covers(self, factor: Factor) -> bool:
        """Whether another factor is a part of it."""
        return ratio(factor.stride, self.stride) is not None and ratio(self.end, factor.end) is not None


Run: TypeAlias = tuple[Factor, ...]
"""The index along one dim: its factors, outermost first; empty for what is the same for all elements."""
Order: TypeAlias = tuple[Run, ...]
"""The index of a tensor's element: a run for each dim."""


def joined(factors: Iterable[Factor]) -> Run:
    """The fewest factors with the same index."""
    run: list[Factor] = []
    for factor in factors:
        if factor.size == 1:
            continue
        if run and run[-1].stride == factor.end:
            factor = Factor(factor.stride, product((run.pop().size, factor.size)))
        run.append(factor)
    return tuple(run)


def flat(order: Order) -> Run:
    """The row-major index of a tensor's element."""
    return joined(itertools.chain.from_iterable(order))


def divided(factors: Run, shape: Sequence[Size]) -> Order | None:
    """A flat index as one of `shape`, row major; None if a dim begins within a factor that it does not
    divide, or there are no elements."""
    left, dims = [factor for factor in factors if factor.size != 1], list[Run]()
    if 0 in shape or any(factor.size == 0 for factor in factors):
        return None
    for n in reversed(shape):
        run: list[Factor] = []
        while n != 1:
            if not left:
                return None
            factor = left.pop()
            if (rest := ratio(n, factor.size)) is not None:
                n = rest
            elif (rest := ratio(factor.size, n)) is not None:
                left.append(Factor(product((factor.stride, n)), rest))
                factor, n = Factor(factor.stride, n), 1
            else:
                return None
            run.insert(0, factor)
        dims.append(joined(run))
    return None if left else tuple(reversed(dims))


def broadcast(order: Order, shape: Sequence[Size]) -> Order:
    """The index of an operand of `shape` that a pointwise result at `order` reads."""
    return tuple(
        () if n == 1 else run for n, run in zip(shape, order[len(order) - len(shape) :], strict=True)
    )


def are_disjoint(factors: Sequence[Factor]) -> bool:
    """Whether no two factors share a part, so that each combination of their values is one element's."""
    return all(
        ratio(b.stride, a.end) is not None or ratio(a.stride, b.end) is not None
        for a, b in itertools.combinations(factors, 2)
    )


def boundaries(factors: Iterable[Factor]) -> set[Size]:
    """The strides at which factors begin and end."""
    return {at for factor in factors for at in (factor.stride, factor.end)}


def spanned(factors: Sequence[Factor]) -> Size:
    """How many elements differ in some of the factors only; they have a common refinement."""
    ends = ladder(boundaries(factors)) or []
    spanned = {i for factor in factors for i in steps(factor, ends)} if ends else set()
    return product(ratio(ends[i + 1], ends[i]) or 1 for i in spanned)


def steps(factor: Factor, ends: Sequence[Size]) -> range:
    """The steps of a ladder, by number, that a factor is made of."""
    return range(ends.index(factor.stride), ends.index(factor.end))


def ladder(cuts: Iterable[Size]) -> list[Size] | None:
    """Strides in ascending order, where each divides the next; None where they are no such chain."""
    strides: list[Size] = []
    for cut in cuts:
        place = next((i for i, stride in enumerate(strides) if ratio(stride, cut) is not None), len(strides))
        strides.insert(place, cut)
    return strides if all(ratio(high, low) for low, high in zip(strides, strides[1:], strict=False)) else None
