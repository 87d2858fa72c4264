"""How tools print: Markdown tables, which docs/ has as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def line(cells: Iterable[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def head(names: Sequence[str]) -> str:
    """The first two lines of a table, whose rows are printed as they come."""
    return f"{line(names)}\n{line(['---'] * len(names))}"


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of which all rows are known, its columns aligned."""
    rows = [names, ["---"] * len(names), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(line(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
