"""Leave out integer arithmetic that changes nothing, whatever is read.

The scale of a block in the MX formats is an exponent: a dozen instructions on integers, in each thread that
has elements of the block. Most guard against numbers that cannot occur, or undo each other. Which ones do is
read off the interval of each value (`transform.intervals`). Takes a program and returns one, whose results
are the same bit by bit. Only arithmetic in int32 is changed, and float32 whose bits are such integers.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import torch

from ..ir.dtypes import INTEGERS
from ..ir.program import Compute, LoopProgram, Nest, Ref, Statement, Value, live, operands
from ..ir.rewriting import reading
from .intervals import CASTS, INFINITE, MANTISSA_BITS, Interval, interval_of, whole

_INT, _FLOAT = torch.int32, torch.float32
_ONE = 1 << MANTISSA_BITS  # a float32's exponent of one, and the bits of the smallest normal one
_BITS_OF_1 = 127 << MANTISSA_BITS  # of 1.0
_NUMBERS = Interval(0, INFINITE)  # the bits of positive float32 but NaN
_NORMAL = Interval(_ONE, INFINITE - 1)
_MOVED = frozenset({"add", "sub", "maximum", "minimum"})

Found = Compute | Ref | None
"""What a statement may be instead: another one, a value that is there already, or nothing else."""


def simplify_ranges(program: LoopProgram) -> LoopProgram:
    """The program without integer arithmetic that changes nothing."""
    return dataclasses.replace(program, nests=tuple(map(_of_nest, program.nests)))


def _of_nest(nest: Nest) -> Nest:
    if nest.after:  # nothing follows the loops before programs are merged
        return nest
    while (simpler := _Simplified(nest)).changed:
        nest = simpler.nest
    return nest


class _Simplified:
    """A nest after each of its statements was looked at once. `changed`: whether any is another one now."""

    def __init__(self, nest: Nest) -> None:
        self.changed = False
        self._values: dict[str, Value] = {}
        self._known: dict[str, Interval] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._numbers: dict[int, Ref] = {}  # constants of int32
        self._same: dict[str, Ref] = {}
        self._uses = Counter(name for s in nest.statements for name in operands(s))
        self._names = {s.name for s in nest.statements if isinstance(s, Value)}
        self._body: list[Statement] = []
        self._current = ""
        for stmt in nest.preamble:
            self._learn(stmt)
        for stmt in nest.body:
            self._take(reading(stmt, self._same))
        self.nest = dataclasses.replace(nest, body=live(self._body)) if self.changed else nest

    def _take(self, stmt: Statement) -> None:
        if isinstance(stmt, Compute):
            self._current = stmt.name
            found = self._simplest(stmt)
            if found is not stmt:
                self.changed = True
            if isinstance(found, Ref):
                self._same[stmt.name] = found
                self._uses[found.name] += self._uses[stmt.name] - 1
                return
            stmt = dataclasses.replace(found, name=stmt.name)
        self._append(stmt)

    def _append(self, stmt: Statement) -> None:
        self._body.append(stmt)
        self._learn(stmt)

    def _learn(self, stmt: Statement) -> None:
        if not isinstance(stmt, Value):
            return
        self._values[stmt.name] = stmt
        self._known[stmt.name] = interval_of(stmt, self._known, self._dtypes)
        self._dtypes[stmt.name] = stmt.dtype
        number = self._known[stmt.name].number
        if isinstance(stmt, Compute) and stmt.op == "constant" and stmt.dtype == _INT and number is not None:
            self._numbers.setdefault(number, Ref(stmt.name))

    def _simplest(self, stmt: Compute) -> Compute | Ref:
        rule = _RULES.get((stmt.op, stmt.dtype))
        if rule is None or not (stmt.op in CASTS or _is_plain(stmt)):
            return stmt
        found = rule(self, stmt)
        if found is None:
            return stmt
        return found if isinstance(found, Ref) else self._simplest(found)

    # What rules are made of.

    def _value(self, found: Compute | Ref) -> Ref:
        """A value that a simpler statement needs."""
        if isinstance(found, Compute):
            found = self._simplest(found)
        if isinstance(found, Ref):
            return found
        stem = name = f"{self._current}.{found.op}"
        count = 1
        while name in self._names:
            count += 1
            name = f"{stem}{count}"
        self._names.add(name)
        self._append(dataclasses.replace(found, name=name))
        return Ref(name)

    def _constant(self, number: int) -> Ref:
        return self._numbers.get(number) or self._value(Compute("", "constant", (number, _INT), (), _INT))

    def _number(self, ref: Ref) -> int | None:
        return self._known[ref.name].number

    def _shifted(self, ref: Ref) -> tuple[Ref, Ref] | None:
        """What was shifted to the left, and by how much."""
        stmt = self._values[ref.name]
        if isinstance(stmt, Compute) and stmt.op == "bitwise_left_shift" and _is_plain(stmt):
            return stmt.args[0], stmt.args[1]
        return None

    def _cast_of(self, ref: Ref, op: str, dtype: torch.dtype) -> Ref | None:
        """The value of a dtype that a cast was made of."""
        stmt = self._values[ref.name]
        if not (isinstance(stmt, Compute) and stmt.op == op and stmt.args[1] == stmt.dtype):
            return None
        value: Ref = stmt.args[0]
        return value if self._dtypes[value.name] == dtype else None

    def _once(self, ref: Ref) -> bool:
        """Whether nothing else uses a value."""
        return self._uses[ref.name] == 1

    def _plus(self, value: Ref, number: int) -> Compute | Ref | None:
        if number == 0:
            return value
        if not _holds(abs(number)):
            return None
        return _int("add" if number > 0 else "sub", value, self._constant(abs(number)))

    # Rules.

    def _mask(self, stmt: Compute) -> Found:
        """A mask that has a one wherever the integer may have one."""
        for value, mask in (stmt.args, stmt.args[::-1]):
            ones = self._number(mask)
            if ones is None or ones & (ones + 1):
                continue
            if self._known[value.name].within(Interval(0, ones)):
                return value
        return None

    def _extreme(self, stmt: Compute) -> Found:
        """A maximum or a minimum of which one operand always is the result; or of what is shifted by as many
        bits as the constant has zeros. GPUs shift and then add or subtract in one instruction."""
        for one, other in (stmt.args, stmt.args[::-1]):
            low, high = (one, other) if stmt.op == "minimum" else (other, one)
            if self._known[low.name].hi <= self._known[high.name].lo:
                return one
        for value, bound in (stmt.args, stmt.args[::-1]):
            limit, shift = self._number(bound), self._shifted(value)
            if limit is None or shift is None or not self._once(value):
                continue
            before, by = self._known[shift[0].name], self._number(shift[1])
            if by is None or not 0 <= by < 32 or limit >> by << by != limit:
                continue
            if _fits(Interval(before.lo << by, before.hi << by)):
                inner = _int(stmt.op, shift[0], self._constant(limit >> by))
                return _int("bitwise_left_shift", self._value(inner), shift[1])
        return None

    def _offset(self, stmt: Compute) -> Found:
        """The sum of a value and a constant where the value is computed by another constant."""
        one, other = stmt.args
        number = self._number(other)
        if number is not None:
            return self._moved(one, -number if stmt.op == "sub" else number)
        number = self._number(one)
        return self._moved(other, number) if number is not None and stmt.op == "add" else None

    def _moved(self, ref: Ref, by: int) -> Found:
        """A value plus a constant in as many statements as the value; None where it takes another one."""
        stmt = self._values[ref.name]
        if not (isinstance(stmt, Compute) and stmt.op in _MOVED and stmt.dtype == _INT and _is_plain(stmt)):
            return None
        if not _fits(self._known[ref.name].plus(by)):
            return None
        if stmt.op in ("maximum", "minimum"):
            return self._bound_moved(ref, stmt, by)
        one, other = stmt.args
        first, second = self._number(one), self._number(other)
        if second is not None:
            return self._plus(one, by + (second if stmt.op == "add" else -second))
        if first is not None and stmt.op == "add":
            return self._plus(other, by + first)
        if first is not None:
            return _int("sub", self._constant(by + first), other) if _holds(by + first) else None
        return self._term_moved(ref, stmt, by) if stmt.op == "add" else None

    def _term_moved(self, ref: Ref, stmt: Compute, by: int) -> Found:
        """`(y + c) + z` plus a constant as `(y + (c + by)) + z`."""
        for one, other in (stmt.args, stmt.args[::-1]):
            if self._once(ref) and (inner := self._moved(one, by)) is not None:
                return _int("add", self._value(inner), other)
        return None

    def _bound_moved(self, ref: Ref, stmt: Compute, by: int) -> Found:
        """`max(y, c) + by` as `max(y + by, c + by)`."""
        for one, other in (stmt.args, stmt.args[::-1]):
            number = self._number(other)
            if number is None or not self._once(ref) or not _holds(number + by):
                continue
            if (inner := self._moved(one, by)) is not None:
                return _int(stmt.op, self._value(inner), self._constant(number + by))
        return None

    def _back(self, stmt: Compute) -> Found:
        """A cast to int32 of a narrower integer that was one of int32 and had room there."""
        (value, *_) = stmt.args
        before, narrow = self._cast_of(value, "to_dtype", _INT), self._dtypes[value.name]
        if stmt.args[1] != _INT or before is None or narrow not in INTEGERS:
            return None
        return before if self._known[before.name].within(whole(narrow)) else None

    def _narrow(self, stmt: Compute) -> Found:
        """A narrow integer that is selected among casts from int32, as a cast of what is selected in int32.
        Then nothing has to widen it again."""
        condition, *among = stmt.args
        casts = [
            cast
            for ref in among
            if self._cast_of(ref, "to_dtype", _INT) and isinstance(cast := self._values[ref.name], Compute)
        ]
        wide = [ref for value in among if (ref := self._wide(value)) is not None]
        if not casts or len(wide) < len(among):
            return None
        chosen = self._value(_int("where", condition, *wide))
        return dataclasses.replace(casts[0], args=(chosen, *casts[0].args[1:]))

    def _wide(self, ref: Ref) -> Ref | None:
        """What an integer was cast from, if that is of int32; or a constant of int32."""
        number = self._number(ref)
        return self._constant(number) if number is not None else self._cast_of(ref, "to_dtype", _INT)

    def _bits_back(self, stmt: Compute) -> Found:
        """The same bits in the dtype that they had before."""
        value, to, *_ = stmt.args
        return self._cast_of(value, "to_dtype_bitcast", to) if to == stmt.dtype else None

    def _bits(self, value: Ref) -> tuple[Ref, Interval] | None:
        """The integer that a float32 has the bits of, if it is computed as one."""
        bits = self._cast_of(value, "to_dtype_bitcast", _INT)
        return None if bits is None or self._dtypes[value.name] != _FLOAT else (bits, self._known[bits.name])

    def _bound_of_bits(self, stmt: Compute) -> Found:
        """The greater one of two floats has the greater bits, where none is NaN or has a sign."""
        for value, bound in (stmt.args, stmt.args[::-1]):
            found, limit = self._bits(value), self._known[bound.name]
            if found is None or limit.number is None:
                continue
            if found[1].within(_NUMBERS) and limit.within(_NUMBERS):
                return _float(self._value(_int(stmt.op, found[0], self._constant(limit.number))))
        return None

    def _exponent_moved(self, stmt: Compute) -> Found:
        """A product by a power of two, where no factor and no product is subnormal, infinite or NaN, is an
        addition to the exponent."""
        for value, factor in (stmt.args, stmt.args[::-1]):
            found, times = self._bits(value), self._known[factor.name]
            power = times.number
            if found is None or power is None or power % _ONE or not times.within(_NORMAL):
                continue
            bits, interval = found
            by = power - _BITS_OF_1
            product = self._plus(bits, by)
            if product is not None and all(i.within(_NORMAL) for i in (interval, interval.plus(by))):
                return _float(self._value(product))
        return None


def _is_plain(stmt: Compute) -> bool:
    return not stmt.kwargs and all(isinstance(arg, Ref) for arg in stmt.args)


def _int(op: str, *args: Ref) -> Compute:
    return Compute("", op, args, (), _INT)


def _float(bits: Ref) -> Compute:
    return Compute("", "to_dtype_bitcast", (bits, _FLOAT, _INT), (), _FLOAT)


def _fits(interval: Interval) -> bool:
    return interval.within(whole(_INT))


def _holds(number: int) -> bool:
    return _fits(Interval(number, number))


_RULES: dict[tuple[str, torch.dtype], Callable[[_Simplified, Compute], Found]] = {
    ("bitwise_and", _INT): _Simplified._mask,
    ("maximum", _INT): _Simplified._extreme,
    ("minimum", _INT): _Simplified._extreme,
    ("add", _INT): _Simplified._offset,
    ("sub", _INT): _Simplified._offset,
    ("to_dtype", _INT): _Simplified._back,
    ("where", torch.uint8): _Simplified._narrow,
    ("to_dtype_bitcast", _INT): _Simplified._bits_back,
    ("to_dtype_bitcast", _FLOAT): _Simplified._bits_back,
    ("maximum", _FLOAT): _Simplified._bound_of_bits,
    ("mul", _FLOAT): _Simplified._exponent_moved,
}
