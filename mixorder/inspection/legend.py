"""The words of a report, explained."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ..record import RegionRecord
from ..strategies import STRATEGIES

# Terms that a space's text may have, each with what it means.
_AXES = {
    "row": "only outer reductions reduce it",
    "batch": "none reduces it, such as heads",
    "common": "all reduce it",
    "column": "only inner reductions reduce it",
}
_REGION = """Its number: a region is the operators that become one kernel, and a small second one. Regions
that do the same share a line, and its figures are those of one of them. The Triton text of region I:
`--kernel I`, in Python `report.kernel(I)`. Its loops: `--graph I`, `report.graph(I)`."""
_DTYPES = "The dtypes of the tensors of full size (rows x cols). b8: bools, such as a dropout's mask."
_US = "Microseconds, predicted from measurements on an H200: without mixorder -> with mixorder."
_REDUCTIONS = """The reductions along a row (inner), which dx needs, and over the rows (outer), which give dw
and db. x 2: there are two of them."""
_SCHEDULE = """The rows x columns of a tile, which a program holds at once, and into how many equal chunks its
columns are divided; its warps; its stages: how many tiles it loads ahead, this one included; the number of
programs."""


def legend(regions: Sequence[RegionRecord], width: int) -> str:
    """A paragraph for each word."""
    pairs = list(terms(regions))
    indent = max(len(term) for term, _ in pairs) + 4
    lines = []
    for term, meaning in pairs:
        first = f"  {term}".ljust(indent)
        lines += textwrap.wrap(meaning, width, initial_indent=first, subsequent_indent=" " * indent)
    return "\n".join(lines)


def terms(regions: Sequence[RegionRecord]) -> Iterator[tuple[str, str]]:
    """The words, and what each means; of axes and strategies, those that occur."""
    kinds = [kind for kind in _AXES if any(f"{kind} " in region.space for region in regions)]
    axes = "".join(f"; {kind}: {_AXES[kind]}" for kind in kinds)
    titles = [region.strategy for region in regions]
    strategies = [f"{s.name}: {s.meaning}." for s in STRATEGIES if any(map(s.is_titled, titles))]
    programs = "How programs, which are instances of a Triton kernel, divide the rows."
    sizes = (
        "The sizes of the axes that the reductions run over; a letter with a number is a size that may change"
    )
    yield "region", _REGION
    yield "rows x cols", f"{sizes}{axes}."
    yield "us", _US
    yield "from", "The modules that the reductions belong to. * stands for any number."
    yield "dtypes", _DTYPES
    yield "inner, outer", _REDUCTIONS
    yield "launches", "The number of kernel launches: without mixorder -> with mixorder."
    yield "strategy", " ".join([programs, *strategies])
    yield "schedule", _SCHEDULE
