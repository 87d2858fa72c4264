"""The phases of a cooperative kernel and their properties, read off its nest."""

from __future__ import annotations

import dataclasses

import sympy

from ..ir.program import (
    Exchange,
    Load,
    Nest,
    Reduce,
    Statement,
    closure,
)
from ..transform.cooperative import slots_of
from .exchange import MAX_WORDS


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
