"""Between which numbers the integers of a nest lie, whatever is read.

A float counts as the integer that has its bits. Bits below zero are those of a float whose sign is set. Bits
above `INFINITE` are those of NaN. An integer that may overflow has the whole range of its dtype, and so has
all that is not computed by the ops below.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from ..ir.dtypes import BOOL, INTEGERS
from ..ir.program import Compute, Reduce, Ref, Value

MANTISSA_BITS = 23
INFINITE = 255 << MANTISSA_BITS
"""The bits of an infinite float32."""


class Interval(NamedTuple):
    """The least and the greatest that a value may be."""

    lo: int
    hi: int

    @property
    def number(self) -> int | None:
        """The only value that it may be."""
        return self.lo if self.lo == self.hi else None

    def within(self, other: Interval) -> bool:
        return other.lo <= self.lo and self.hi <= other.hi

    def plus(self, number: int) -> Interval:
        return Interval(self.lo + number, self.hi + number)


def whole(dtype: torch.dtype) -> Interval:
    """What a dtype can hold."""
    if dtype == BOOL:
        return Interval(0, 1)
    if dtype.is_floating_point:
        half = 1 << (8 * dtype.itemsize - 1)
        return Interval(-half, half - 1)
    limits = torch.iinfo(dtype)
    return Interval(limits.min, limits.max)


def bits_of(value: float) -> int:
    """The bits of a number that is rounded to float32."""
    (bits,) = struct.unpack("<i", struct.pack("<f", ctypes.c_float(value).value))
    return int(bits)


def interval_of(stmt: Value, known: Mapping[str, Interval], dtypes: Mapping[str, torch.dtype]) -> Interval:
    """The interval of a statement's result. `known` and `dtypes` have those of its operands."""
    full, found = whole(stmt.dtype), None
    if isinstance(stmt, Reduce):
        if stmt.kind.selects:
            found = _selected(stmt.dtype, known[stmt.value.name], known[stmt.value.name])
    elif isinstance(stmt, Compute):
        if stmt.op == "constant":
            found = _constant(stmt.args[0], stmt.dtype)
        elif stmt.op in CASTS:
            if stmt.args[1] == stmt.dtype:
                value = stmt.args[0].name
                found = CASTS[stmt.op](dtypes[value], stmt.dtype, known[value])
        elif stmt.op in _OPS and all(isinstance(a, Ref) for a in stmt.args):
            found = _OPS[stmt.op](stmt.dtype, *(known[a.name] for a in stmt.args))
    return found if found is not None and found.within(full) else full


def _constant(value: Any, dtype: torch.dtype) -> Interval | None:
    if dtype == torch.float32 and isinstance(value, int | float) and value == value:  # not NaN
        bits = bits_of(value)
        return Interval(bits, bits)
    if dtype in (INTEGERS | {BOOL}) and isinstance(value, int):
        return Interval(int(value), int(value))
    return None


def _cast(source: torch.dtype, to: torch.dtype, value: Interval) -> Interval | None:
    """Of an integer, the same number. Of a float, a float of the same sign, or any integer."""
    if source.is_floating_point and to.is_floating_point:
        return _positive(to) if value.lo >= 0 else None
    return None if source.is_floating_point or to.is_floating_point else value


def _bitcast(source: torch.dtype, to: torch.dtype, value: Interval) -> Interval | None:
    return value if whole(source) == whole(to) else None


def _selected(dtype: torch.dtype, *among: Interval) -> Interval | None:
    """One of several values. If one of them is NaN, a float may be another NaN, without a sign."""
    if dtype.is_floating_point:
        return _positive(dtype) if all(value.lo >= 0 for value in among) else None
    return Interval(min(value.lo for value in among), max(value.hi for value in among))


def _positive(dtype: torch.dtype) -> Interval:
    return Interval(0, whole(dtype).hi)


def _abs(dtype: torch.dtype, value: Interval) -> Interval | None:
    return _positive(dtype) if dtype.is_floating_point else None


def _where(dtype: torch.dtype, _: Interval, one: Interval, other: Interval) -> Interval:
    return Interval(min(one.lo, other.lo), max(one.hi, other.hi))  # the same bits, of a float too


def _maximum(dtype: torch.dtype, a: Interval, b: Interval) -> Interval | None:
    if dtype.is_floating_point:
        return _selected(dtype, a, b)
    return Interval(max(a.lo, b.lo), max(a.hi, b.hi))


def _minimum(dtype: torch.dtype, a: Interval, b: Interval) -> Interval | None:
    if dtype.is_floating_point:
        return _selected(dtype, a, b)
    return Interval(min(a.lo, b.lo), min(a.hi, b.hi))


def _add(dtype: torch.dtype, a: Interval, b: Interval) -> Interval | None:
    return None if dtype.is_floating_point else Interval(a.lo + b.lo, a.hi + b.hi)


def _sub(dtype: torch.dtype, a: Interval, b: Interval) -> Interval | None:
    return None if dtype.is_floating_point else Interval(a.lo - b.hi, a.hi - b.lo)


def _and(dtype: torch.dtype, a: Interval, b: Interval) -> Interval | None:
    """At most each operand that is not below zero."""
    limits = [value.hi for value in (a, b) if value.lo >= 0]
    return Interval(0, min(limits)) if limits else None


def _shift(dtype: torch.dtype, by: Interval) -> int | None:
    """By how many bits an integer is shifted."""
    count = by.number
    return count if count is not None and 0 <= count < 8 * dtype.itemsize else None


def _left(dtype: torch.dtype, value: Interval, by: Interval) -> Interval | None:
    count = _shift(dtype, by)
    return None if count is None else Interval(value.lo << count, value.hi << count)


def _right(dtype: torch.dtype, value: Interval, by: Interval) -> Interval | None:
    count = _shift(dtype, by)
    return None if count is None else Interval(value.lo >> count, value.hi >> count)


CASTS: dict[str, Callable[..., Interval | None]] = {"to_dtype": _cast, "to_dtype_bitcast": _bitcast}
_OPS: dict[str, Callable[..., Interval | None]] = {
    "abs": _abs,
    "where": _where,
    "maximum": _maximum,
    "minimum": _minimum,
    "add": _add,
    "sub": _sub,
    "bitwise_and": _and,
    "bitwise_left_shift": _left,
    "bitwise_right_shift": _right,
}
