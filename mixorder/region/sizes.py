"""Sizes: ints, or expressions in a form that all equal ones have."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import TypeAlias

import sympy

from ..inductor.symbols import canonical

Size: TypeAlias = int | sympy.Expr


def product(sizes: Iterable[Size]) -> Size:
    total = math.prod(sizes)
    return total if isinstance(total, int) else plain(total)


def plain(size: sympy.Expr) -> Size:
    """A size as an int if it is one, else in the form that all equal ones have."""
    if not size.is_Integer:
        size = canonical(size)
    return int(size) if size.is_Integer else size


@functools.lru_cache(maxsize=4096)
def ratio(whole: Size, divisor: Size) -> Size | None:
    """`whole / divisor` where that is an integer for all values of the symbols, else None."""
    if isinstance(whole, int) and isinstance(divisor, int):
        return whole // divisor if divisor and whole % divisor == 0 else None
    quotient = sympy.cancel(sympy.sympify(whole) / divisor)
    numerator, denominator = sympy.fraction(quotient)
    if denominator != 1:
        return None
    return int(numerator) if numerator.is_Integer else numerator
