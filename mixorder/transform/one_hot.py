"""Add up a row without a loop where all but one of its elements are the same.

The backward of a cross-entropy adds up rows that have a gradient in the label's column and zeros elsewhere.
The sum follows from the label, the gradient and the number of columns. Without it, no reduction is left along
the row: programs that share a row need not wait for each other, and may write over what they read.

Takes the lowered program and returns one. Infinite elements and NaN give what the loop gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import sympy
import torch

from ..ir.dtypes import BOOL, INTEGERS
from ..ir.program import AxisClass, Compute, LoopProgram, Reduce, Ref, Statement, Value, closure, operands
from ..ir.rewriting import Scope, Steps, reading, rewritten


def sum_one_hot(program: LoopProgram) -> LoopProgram:
    """The program without sums over columns of which one differs from all others."""
    return rewritten(program, _without_loop)


def _without_loop(stmt: Statement, scope: Scope) -> list[Compute]:
    columns = {a.symbol: a.size for a in scope.nest.loops if a.kind is AxisClass.COLUMN and a.size.is_number}
    if isinstance(stmt, Reduce) and stmt.kind.compensable and stmt.dtype.is_floating_point:
        column, *rest = stmt.axes
        if not rest and column in columns:
            return _sum(scope, stmt, column, int(columns[column]))
    return []


def _sum(scope: Scope, reduce: Reduce, column: sympy.Symbol, count: int) -> list[Compute]:
    """Statements that give the sum; none where the elements differ in another way."""
    nest, deps = scope.nest, scope.deps
    cone = [s for s in closure(nest.body, [reduce])[:-1] if isinstance(s, Value) and column in deps[s.name]]
    if not all(isinstance(s, Compute) for s in cone):
        return []
    places = {s.name for s in cone if s.op == "index_expr" and s.args[0] == column}  # type: ignore[union-attr]
    rest: list[Compute] = [s for s in cone if s.name not in places]  # type: ignore[misc]
    comparisons = [(s, other) for s in rest if (other := _compared(s, places, deps, column)) is not None]
    if len(comparisons) != 1:
        return []
    ((equal, label),) = comparisons
    rest.remove(equal)
    dtype = scope.values[label.name].dtype
    here, elsewhere = (
        _of_column(rest, equal.name, places, hit, f"{reduce.name}.{hit}") for hit in (True, False)
    )
    if here is None or elsewhere is None or dtype not in INTEGERS or torch.iinfo(dtype).max < count:
        return []
    made = [*here[0].values(), *elsewhere[0].values()]
    one, other = (known[reduce.value.name] for _, known in (here, elsewhere))
    return [*made, *_total(reduce, label, dtype, one, other, count)]


def _compared(
    stmt: Compute, places: set[str], deps: Mapping[str, frozenset[sympy.Symbol]], column: sympy.Symbol
) -> Ref | None:
    """What a statement compares the column's index with, if that is the same for all columns."""
    if stmt.op != "eq" or not all(isinstance(a, Ref) for a in stmt.args):
        return None
    labels = [a for a in stmt.args if a.name not in places]
    return labels[0] if len(labels) == 1 and column not in deps[labels[0].name] else None


def _of_column(
    statements: Sequence[Compute], equal: str, places: set[str], hit: bool, suffix: str
) -> tuple[dict[str, Compute], dict[str, Ref]] | None:
    """The statements for a column that the comparison `equal` is true of or not, by their names in the loop,
    and the value of each; None where one uses the index, in `places`, or the comparison in another way."""
    made: dict[str, Compute] = {}
    known: dict[str, Ref] = {}
    for stmt in statements:
        used = [*operands(stmt)]
        if stmt.op == "where" and stmt.args[0] == Ref(equal):
            chosen = stmt.args[1 if hit else 2]
            known[stmt.name] = known.get(chosen.name, chosen)
            used = used[1:]
        else:
            made[stmt.name] = dataclasses.replace(reading(stmt, known), name=f"{stmt.name}.{suffix}")
            known[stmt.name] = Ref(made[stmt.name].name)
        if stmt.op == "index_expr" or not places.union({equal}).isdisjoint(used):
            return None
    return made, known


def _total(
    reduce: Reduce, label: Ref, integer: torch.dtype, on_value: Ref, off_value: Ref, count: int
) -> list[Compute]:
    """`on_value + (count - 1) * off_value` where `label` is a column, and `count * off_value` elsewhere."""
    step = Steps(reduce.name, reduce.dtype)
    least = step("least", "ge", label, step.constant("zero", 0, integer), dtype=BOOL)
    most = step("most", "lt", label, step.constant("count", count, integer), dtype=BOOL)
    inside = step("inside", "and_", least, most, dtype=BOOL)
    rest = step("rest", "mul", off_value, step.constant("others", float(count - 1)))
    every = step("every", "mul", off_value, step.constant("all", float(count)))
    step("", "where", inside, step("whole", "add", on_value, rest), every)
    return step.made
