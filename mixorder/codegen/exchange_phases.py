"""The phases of a cooperative kernel and their properties, read off its nest."""

from __future__ import annotations

import dataclasses

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


@dataclasses.dataclass(frozen=True)
class Phase:
    """What runs between two exchanges. A group of reductions is exchanged in one record."""

    body: tuple[Statement, ...]
    groups: tuple[tuple[Reduce, ...], ...]


def phases_of(body: tuple[Statement, ...], parts: int) -> tuple[Phase, ...]:
    phases: list[Phase] = []
    here: list[Statement] = []
    for stmt in body:
        if isinstance(stmt, Exchange):
            names = [ref.name for ref in stmt.values]
            reductions = [s for s in here if isinstance(s, Reduce) and s.name in names]
            phases.append(Phase(tuple(here), groups_of(reductions, parts)))
            here = []
        else:
            here.append(stmt)
    return (*phases, Phase(tuple(here), ()))


def groups_of(reductions: list[Reduce], parts: int) -> tuple[tuple[Reduce, ...], ...]:
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
    loads = {s.name for s in nest.body if isinstance(s, Load)}
    zero: set[str] = set()
    found: set[Statement] = set()
    for stmt in nest.body:
        loaded = stmt.value.name in loads if isinstance(stmt, Carry) else isinstance(stmt, Load)
        if loaded and row in deps[stmt.name]:  # type: ignore[union-attr]
            zero.add(stmt.name)  # type: ignore[union-attr]
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
            found.add(stmt)
    return found
