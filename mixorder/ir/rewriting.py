"""Other statements in place of a program's: those that a rule gives, and those with other operands."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar

import sympy
import torch

from ..errors import Decline, DeclineReason
from ..inductor.symbols import FloorDiv, ModularIndexing
from .program import (
    Axis,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Ref,
    Statement,
    Store,
    Value,
    live,
    operands,
)

Some = TypeVar("Some", bound=Statement)


@dataclasses.dataclass(frozen=True)
class Scope:
    """What a rule reads of the nest that a statement is in."""

    program: LoopProgram
    nest: Nest
    made: set[str] = dataclasses.field(default_factory=set)
    """What a rule has computed for several statements, by its name."""

    @functools.cached_property
    def values(self) -> dict[str, Value]:
        """By their names."""
        return {s.name: s for s in self.nest.statements if isinstance(s, Value)}

    @functools.cached_property
    def deps(self) -> Mapping[str, frozenset[sympy.Symbol]]:
        """The loop symbols that each value depends on."""
        return self.nest.dependence()

    @functools.cached_property
    def users(self) -> dict[str, list[Statement]]:
        """The statements that use each value."""
        users: dict[str, list[Statement]] = {name: [] for name in self.values}
        for stmt in self.nest.statements:
            for name in operands(stmt):
                users[name].append(stmt)
        return users

    def constant(self, arg: Any) -> float | None:
        """The number that an operand always is; None if it may be several."""
        stmt = self.values[arg.name] if isinstance(arg, Ref) else None
        return stmt.args[0] if isinstance(stmt, Compute) and stmt.op == "constant" else None

    def with_constant(self, stmt: Compute) -> tuple[Ref, Ref, float | None]:
        """The operands of an op, a constant last if there is one, and its number; None if there is none."""
        value, constant = stmt.args if self.constant(stmt.args[1]) is not None else stmt.args[::-1]
        return value, constant, self.constant(constant)


Rule = Callable[[Statement, Scope], Sequence[Statement]]
"""What takes the place of a statement; empty where it stays."""


def rewritten(program: LoopProgram, *rules: Rule) -> LoopProgram:
    """The program after each rule, one after the other, and without what nothing uses then."""
    for rule in rules:
        nests = []
        for nest in program.nests:
            scope = Scope(program, nest)
            body = live(new for stmt in nest.body for new in rule(stmt, scope) or [stmt])
            nests.append(dataclasses.replace(nest, body=body))
        program = dataclasses.replace(program, nests=tuple(nests))
    return program


def is_op(stmt: object, op: str, dtype: torch.dtype) -> TypeGuard[Compute]:
    """Whether a statement computes an op in a dtype."""
    return isinstance(stmt, Compute) and stmt.op == op and stmt.dtype == dtype


SELECTING = frozenset({"maximum", "minimum", "abs", "neg", "where"})
"""Ops that give one of some operands, but for the sign."""


def selected(stmt: Compute) -> list[str]:
    """The names of the operands of which a selecting op gives one."""
    return [*operands(stmt)][stmt.op == "where" :]


class Steps:
    """Statements that compute one value, in `made`. Each gives the reference to its own: `name`, with the
    name of the step unless that is empty."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name, self.dtype = name, dtype
        self.made: list[Compute] = []

    def __call__(self, step: str, op: str, *args: Any, dtype: torch.dtype | None = None) -> Ref:
        name = f"{self.name}.{step}" if step else self.name
        self.made.append(Compute(name, op, args, (), dtype or self.dtype))
        return Ref(name)

    def constant(self, step: str, number: float, dtype: torch.dtype | None = None) -> Ref:
        return self(step, "constant", number, dtype or self.dtype, dtype=dtype)


def reading(stmt: Some, replacements: Mapping[str, Ref]) -> Some:
    """A statement that uses other values in place of those that `replacements` names."""
    if replacements.keys().isdisjoint(operands(stmt)):
        return stmt

    def new(field: Any) -> Any:
        if isinstance(field, tuple):
            return tuple(map(new, field))
        return replacements.get(field.name, field) if isinstance(field, Ref) else field

    return dataclasses.replace(stmt, **{name: new(field) for name, field in vars(stmt).items()})


def reindexed(stmt: Some, index: Callable[[sympy.Expr], sympy.Expr]) -> Some:
    """A statement with other indices, and numbers of loops."""
    if isinstance(stmt, Load | Store | PartialAccumulate):
        return dataclasses.replace(stmt, index=index(stmt.index))
    if isinstance(stmt, Compute):
        args = tuple(index(a) if isinstance(a, sympy.Expr) else a for a in stmt.args)
        return dataclasses.replace(stmt, args=args)
    return stmt


AxisGroups = Sequence[tuple[Sequence[Axis], Axis]]
"""Axes that follow one another, outermost first, and one for all of them."""


def along_one(body: Iterable[Statement], groups: AxisGroups, dividing: bool = False) -> tuple[Statement, ...]:
    """Statements over one axis in place of each group. Raises `Decline` where their elements do not follow
    one another in what is stored, nor in what is loaded, unless that may be at a place after a division."""
    symbols = {axis.symbol: long.symbol for group, long in groups for axis in group}

    def along(stmt: Statement) -> Statement:
        if not isinstance(stmt, Reduce):
            return reindexed(stmt, lambda index: _along(index, groups))
        axes = dict.fromkeys(symbols.get(symbol, symbol) for symbol in stmt.axes)
        return dataclasses.replace(stmt, axes=tuple(axes))

    statements = tuple(map(along, body))
    whole = Store | PartialAccumulate if dividing else Load | Store | PartialAccumulate
    for stmt in statements:
        if isinstance(stmt, whole) and stmt.index.has(FloorDiv, ModularIndexing):
            raise Decline(DeclineReason.AXIS_CLASS, f"elements that lie at {stmt.index}")
    return statements


def _along(index: sympy.Expr, groups: AxisGroups) -> sympy.Expr:
    index = sympy.expand(index)
    for group, long in groups:
        if [*group] == [long]:
            continue
        inner = sympy.S.One
        runs = list[tuple[sympy.Expr, sympy.Expr, sympy.Expr]]()  # the step, elements inside, elements
        for axis in reversed(group):
            if axis.symbol in index.free_symbols:
                step = index.coeff(axis.symbol)
                if runs and runs[-1][1] * runs[-1][2] == inner and step == runs[-1][0] * runs[-1][2]:
                    runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] * axis.size)
                else:
                    runs.append((step, inner, axis.size))
            inner *= axis.size
        symbols = {axis.symbol for axis in group}
        rest = index - sum((index.coeff(s) * s for s in symbols), sympy.S.Zero)
        if not symbols.isdisjoint(rest.free_symbols):
            raise Decline(DeclineReason.AXIS_CLASS, f"elements that lie at {index}")
        index = sympy.expand(rest)
        for step, inside, size in runs:
            whole = inside * size == long.size
            at = long.symbol if whole and inside == 1 else ModularIndexing(long.symbol, inside, size)
            index += step * (FloorDiv(long.symbol, inside) if whole and inside != 1 else at)
    return index
