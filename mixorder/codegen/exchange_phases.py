"""What a cooperative kernel exchanges, and which of its sums need no mask, read off its nest."""

from __future__ import annotations

import sympy

from ..ir.program import (
    Carry,
    Compute,
    Exchange,
    Load,
    Nest,
    PartialAccumulate,
    Reduce,
    Ref,
    Statement,
    closure,
)
from ..transform.cooperative import slots_of
from .exchange import MAX_WORDS

# Ops that give zero if all operands are zero, and their number of operands.
_KEEPS_ZERO = {"mul": 2, "add": 2, "sub": 2, "neg": 1, "to_dtype": 1}


def record_groups(reductions: list[Reduce], parts: int) -> tuple[tuple[Reduce, ...], ...]:
    """Groups of reductions of one kind, each of as many as one read has slots for."""
    most = MAX_WORDS // slots_of(parts)
    groups: list[list[Reduce]] = []
    for kind in dict.fromkeys(r.kind for r in reductions):
        same = [r for r in reductions if r.kind is kind]
        groups += [same[i : i + most] for i in range(0, len(same), most)]
    return tuple(map(tuple, groups))


def floating(nest: Nest, col: sympy.Symbol) -> frozenset[str]:
    """The reductions of values that depend on no load over columns, such as the column of a label."""
    deps = nest.dependence()
    known = [s for s in nest.statements if not isinstance(s, Reduce | Exchange)]
    return frozenset(
        r.name
        for r in nest.statements
        if isinstance(r, Reduce)
        and not any(isinstance(s, Load) and col in deps[s.name] for s in closure(known, [r]))
    )


def without_effect(nest: Nest, row: sympy.Symbol) -> set[Statement]:
    """The accumulations that add zero where there is no row: past the last one, and in the first iterations.

    Loaded values are zero there, also when they are carried. Other values, and totals of such rows, may be
    anything, including infinite.
    """
    deps = nest.dependence()
    zero: set[str] = set()
    accumulations: set[Statement] = set()
    for stmt in nest.body:
        if isinstance(stmt, Load | Carry) and row in deps[stmt.name]:
            zero.add(stmt.name)
        elif isinstance(stmt, Compute) and stmt.op in _KEEPS_ZERO:
            args = [a.name for a in stmt.args if isinstance(a, Ref)]
            if len(args) == _KEEPS_ZERO[stmt.op] and zero.issuperset(args):
                zero.add(stmt.name)
        elif (
            isinstance(stmt, PartialAccumulate)
            and stmt.kind.ignores_zero
            and stmt.value.name in zero
            and stmt.peak is None
        ):
            accumulations.add(stmt)
    return accumulations
