"""Statements that use other values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from .program import Compute, Exchange, Load, Ref, Statement, operands

Some = TypeVar("Some", bound=Statement)


def reading(stmt: Some, others: Mapping[str, Ref]) -> Some:
    """A statement that uses other values in place of those that `others` names."""
    if others.keys().isdisjoint(operands(stmt)):
        return stmt

    def new(arg: Any) -> Any:
        return others.get(arg.name, arg) if isinstance(arg, Ref) else arg

    if isinstance(stmt, Compute):
        kwargs = tuple((key, new(value)) for key, value in stmt.kwargs)
        return dataclasses.replace(stmt, args=tuple(map(new, stmt.args)), kwargs=kwargs)
    if isinstance(stmt, Load):
        return dataclasses.replace(stmt, predicate=new(stmt.predicate))
    if isinstance(stmt, Exchange):
        return dataclasses.replace(stmt, values=tuple(map(new, stmt.values)))
    return dataclasses.replace(stmt, value=new(stmt.value))  # type: ignore[call-arg,union-attr]


def renamed(stmt: Load | Compute, name: str, others: Mapping[str, str]) -> Load | Compute:
    """A statement by another name, which uses other values."""
    return dataclasses.replace(reading(stmt, {old: Ref(new) for old, new in others.items()}), name=name)
