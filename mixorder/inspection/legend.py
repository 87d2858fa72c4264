"""The words of a report's table, explained: those that occur in it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ..record import RegionRecord
from ..strategies import STRATEGIES

# Terms that a space's text may have, each with what it means.
_AXES = {
    "row": "reduced by the outer reductions only",
    "batch": "by none, such as heads",
    "common": "by all",
    "column": "by the inner ones only",
}


def legend(regions: Sequence[RegionRecord], width: int) -> str:
    """A paragraph for each column of the table."""
    pairs = list(terms(regions))
    indent = max(len(term) for term, _ in pairs) + 4
    lines = []
    for term, meaning in pairs:
        first = f"  {term}".ljust(indent)
        lines += textwrap.wrap(meaning, width, initial_indent=first, subsequent_indent=" " * indent)
    return "\n".join(lines)


def terms(regions: Sequence[RegionRecord]) -> Iterator[tuple[str, str]]:
    """The table's columns, and what each means."""
    yield (
        "region",
        (
            "`.kernel(i)` is the Triton text of region i, `.graph(i)` its loops. Regions with the same "
            "kernels share a line, which has the figures of one of them"
        ),
    )
    yield "from", "the modules that the reductions belong to; * stands for any number"
    yield "rows x cols", _space(regions)
    yield "dtypes", "of the tensors that have all these elements"
    yield (
        "inner, outer",
        ("reductions along a row, which dx needs, and over the rows, which give dw and db; x 2: two of them"),
    )
    used = {region.strategy for region in regions}
    strategies = [s for s in STRATEGIES if s.name in used]
    yield "strategy", "; ".join(f"{s.name}: {s.meaning}" for s in strategies)
    chunks = any(region.schedule.chunks > 1 for region in regions)
    in_chunks = " (in so many equal chunks)" if chunks else ""
    yield (
        "schedule",
        f"rows x columns that a program holds at a time{in_chunks}; its warps; stages: how many such tiles "
        "it loads ahead, this one included; how many programs there are",
    )
    yield (
        "launches",
        "of kernels, before -> after; before: by Inductor, for the same operators without mixorder",
    )
    yield "MB", "that the kernels read and write in memory, before -> after; before: at least"
    yield "us", "predicted microseconds, before -> after, from measurements on an H200"
    yield (
        "the limit",
        "the time of torch.add(x, dy, out=dx) for as many bytes as the regions have to read and write",
    )


def _space(regions: Sequence[RegionRecord]) -> str:
    """The sizes' meaning, with the kinds of axes that occur."""
    said = "the elements that are reduced"
    kinds = [kind for kind in _AXES if any(f"{kind} " in region.space for region in regions)]
    if kinds:
        said += ", by axes: " + ", ".join(f"{kind} ({_AXES[kind]})" for kind in kinds)
    if any(isinstance(region.rows, str) for region in regions):
        said += "; a letter with a number: a size that may change"
    return said
