"""Sums of one tile dim, several at once: `tl.reduce` over a tuple.

The threads of a row tell each other their parts of all the sums together. Two sums of a LayerNorm's row, one
after the other, take two chains of shuffles and five barriers; together one chain, and two barriers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..loops.ir import SUM, Reduce, Statement, operands


def turns(statements: Iterable[Statement]) -> Iterator[tuple[Statement, ...]]:
    """Statements one by one, but sums over the same axes together, where the first of them is used."""
    waiting: list[Reduce] = []
    for stmt in statements:
        summed = stmt if isinstance(stmt, Reduce) and stmt.kind is SUM else None
        used = {s.name for s in waiting}.intersection(operands(stmt))
        if used or (summed and waiting and summed.axes != waiting[0].axes):
            yield tuple(waiting)
            waiting = []
        if summed:
            waiting.append(summed)
        else:
            yield (stmt,)
    if waiting:
        yield tuple(waiting)


def sums(values: Sequence[str], axis: int) -> str:
    """Triton text: a tuple of the sums."""
    return f"tl.reduce(({', '.join(values)}), {axis}, {_name(len(values))})"


def definition(n: int) -> str:
    """Triton text of the function that adds `n` pairs."""
    left, right = ([f"{side}{i}" for i in range(n)] for side in "ab")
    added = ", ".join(f"{a} + {b}" for a, b in zip(left, right, strict=True))
    return f"@triton.jit\ndef {_name(n)}({', '.join(left + right)}):\n    return {added}\n\n\n"


def _name(n: int) -> str:
    return f"add_{n}"
