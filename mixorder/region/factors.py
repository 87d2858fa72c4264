"""Factors of a flat index: how nodes that see the same elements in other shapes and orders are related.

The elements of a space are numbered. A `Factor` is `number // stride % size`, such as the row of an element,
the block of its row, or its place within that block. The index along a dim of a tensor is a `Run` of factors;
a view divides and joins them, a permutation changes their order. Plain numbers, no graph.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from .axes import Size


@dataclasses.dataclass(frozen=True)
class Factor:
    """`number // stride % size` of an element's number."""

    stride: int
    size: int

    @property
    def end(self) -> int:
        """The stride of the factor that follows without a gap."""
        return self.stride * self.size


Run: TypeAlias = tuple[Factor, ...]
"""The index along one dim: its factors, outermost first; empty for what is the same for all elements."""
Order: TypeAlias = tuple[Run, ...]
"""The index of a tensor's element: a run for each dim."""


def joined(factors: Iterable[Factor]) -> Run:
    """The fewest factors with the same index."""
    found: list[Factor] = []
    for factor in factors:
        if factor.size == 1:
            continue
        if found and found[-1].stride == factor.end:
            factor = Factor(factor.stride, found.pop().size * factor.size)
        found.append(factor)
    return tuple(found)


def flat(order: Order) -> Run:
    """The row-major index of a tensor's element."""
    return joined(itertools.chain.from_iterable(order))


def divided(factors: Run, shape: Sequence[Size]) -> Order | None:
    """A flat index as one of `shape`, row major; None if a dim begins within a factor that it does not
    divide, a size is symbolic, or there are no elements."""
    left, dims = list(factors), list[Run]()
    if 0 in shape or any(factor.size == 0 for factor in factors):
        return None
    for n in reversed(shape):
        run: list[Factor] = []
        if not isinstance(n, int):
            return None
        while n > 1:
            if not left:
                return None
            factor = left.pop()
            if n % factor.size == 0:
                n //= factor.size
            elif factor.size % n == 0:
                left.append(Factor(factor.stride * n, factor.size // n))
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


def boundaries(factors: Iterable[Factor]) -> set[int]:
    """The strides at which factors begin and end."""
    return {at for factor in factors for at in (factor.stride, factor.end)}


def spanned(factors: Sequence[Factor]) -> int:
    """How many elements differ in some of the factors only; they have a common refinement."""
    cuts = sorted(boundaries(factors))
    pairs = zip(cuts, cuts[1:], strict=False)
    return math.prod(
        high // low for low, high in pairs if any(f.stride <= low and high <= f.end for f in factors)
    )
