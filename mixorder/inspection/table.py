"""A report as text: regions that share their kernels are one line."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from ..errors import Decline
from ..record import RegionRecord
from ..region.provenance import Provenance
from .findings import Findings

WIDTH = 110
_HEADER = (
    *("region", "from", "rows x cols", "dtypes", "inner", "outer", "strategy", "schedule"),
    *("launches", "MB", "of limit"),
)
_LEGEND = """\
inner, outer: reductions over the columns (dx) and over the rows (dw, db). launches, MB: before -> after;
before: the least that the same loops take as kernels of their own. of limit: time of an add of as many
bytes over the kernels' time, as expected from measurements on an H200 (within some 7 points). Loops:
`.graph(i)`; Triton text: `.kernel(i)`; everything: `.to_json()`; a picture: `.html(path)`."""


def text(report: Findings) -> str:
    """The whole report: heading, regions, totals, near misses, norms."""
    parts = [heading(report)]
    if kinds := grouped(report.regions):
        parts += [
            table([_HEADER, *(_cells(report.regions, kind) for kind in kinds)]),
            totals(report),
            _LEGEND,
        ]
    else:
        parts.append("Nothing was fused.")
    if report.misses:
        parts.append(near_misses(report.misses))
    if report.norms:
        parts.append(norms(report))
    return "\n\n".join(parts)


def heading(report: Findings) -> str:
    """Versions, device, and the graphs that were looked at."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    where = report.device.name + ("" if report.on_gpu else ", planned for without a GPU")
    graphs = Counter(graph.kind for graph in report.graphs)
    counted = ", ".join(f"{count} {kind}" for kind, count in graphs.items()) or "none"
    breaks = f"; graph breaks: {report.graph_breaks}" if report.graph_breaks else ""
    notes = "".join(f"\nnote: {note}" for note in report.notes)
    return f"{versions}; {where}\ngraphs: {counted}{breaks}{notes}"


def grouped(regions: Sequence[RegionRecord]) -> list[list[int]]:
    """The numbers of regions in groups: those of a group launch the same kernels on the same sizes."""
    kinds: dict[object, list[int]] = {}
    for i, record in enumerate(regions):
        names = tuple(kernel.name for kernel in record.kernels)
        kinds.setdefault((names, record.space, record.schedule), []).append(i)
    return list(kinds.values())


def source(records: Iterable[RegionRecord | Decline], most: int = 2) -> str:
    """The modules that regions come from; of more than `most`, with `*` for each number."""
    found: list[Provenance] = [record.provenance for record in records if record.provenance]
    paths = list(dict.fromkeys(path or kind for one in found for path, kind in one.modules))
    if not paths:
        return _short(next((line for one in found for line in one.lines), "unknown"))
    patterns = list(dict.fromkeys(paths if len(paths) <= most else [_pattern(path) for path in paths]))
    return ", ".join(patterns[:most]) + (f" and {len(patterns) - most} more" if len(patterns) > most else "")


def totals(report: Findings) -> str:
    """One line of sums."""
    sums = report.totals
    share = f"{sums.limit_us / sums.fused_us:.0%} of the limit"
    return (
        f"{sums.regions} regions: {sums.launches_apart} -> {sums.launches} launches, "
        f"{sums.bytes_apart / 1e6:.1f} -> {sums.bytes / 1e6:.1f} MB, "
        f"{sums.fused_us:.0f} us expected on {report.device.name}, {share}"
    )


def near_misses(misses: Sequence[Decline]) -> str:
    """Each reason with where, what and the remedy."""
    kinds: dict[object, list[Decline]] = {}
    for miss in misses:
        kinds.setdefault((miss.reason, miss.detail, _pattern(source([miss]))), []).append(miss)
    lines = ["Near misses, left to Inductor"]
    for same in kinds.values():
        miss, times = same[0], f" (x {len(same)})" if len(same) > 1 else ""
        lines.append(f"  {source(same)}{times}: {miss.reason.value}: {miss.detail}")
        said = f"{miss.reason.explanation} To make it fuse: {miss.reason.remedy}"
        lines += textwrap.wrap(said, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def norms(report: Findings) -> str:
    """How many norms are in a region, and the reason for each that is not."""
    left = [norm for norm in report.norms if norm.reason]
    lines = [f"Norm modules in a region: {len(report.norms) - len(left)} of {len(report.norms)}"]
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for norm in left:
        kinds.setdefault((_pattern(norm.path), norm.kind, norm.reason), []).append(norm.path)
    for (pattern, kind, reason), paths in kinds.items():
        where = (paths[0] or "the model itself") if len(paths) == 1 else f"{pattern} x {len(paths)}"
        lines.append(f"  {where} ({kind}): {reason}")
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text with their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line}".rstrip() for line in lines)


def schedule_of(record: RegionRecord) -> str:
    """Tile, warps, stages and programs in a few words."""
    schedule, tile = record.schedule, record.schedule.tile
    counts = {"warp": tile.num_warps, "stage": tile.num_stages}
    counts["program"] = schedule.num_splits * schedule.parts
    words = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items()]
    chunks = f" in {schedule.chunks} chunks" if schedule.chunks > 1 else ""
    return f"{tile.xblock} x {schedule.r0_block}{chunks}, " + ", ".join(words)


def _cells(regions: Sequence[RegionRecord], kind: list[int]) -> list[str]:
    records = [regions[i] for i in kind]
    first, takes = records[0], records[0].expected
    full = [t.dtype for t in (*first.inputs, *first.outputs) if len(t.shape) > 1 and 1 not in t.shape]
    stored = ", ".join(sorted(set(full))) or first.inputs[0].dtype
    return [
        _numbers(kind),
        source(records),
        first.space,
        stored,
        _counted(first.inner_ops),
        _counted(first.outer_ops),
        first.strategy,
        schedule_of(first),
        f"{takes.launches_apart} -> {takes.launches}",
        f"{first.traffic.apart / 1e6:.1f} -> {first.traffic.total / 1e6:.1f}",
        f"{takes.share:.0%}",
    ]


def _numbers(kind: list[int]) -> str:
    """`0-3, 7` and so on; of many, the first and how many."""
    runs: list[list[int]] = []
    for i in kind:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    if len(runs) > 3:
        return f"{kind[0]}... ({len(kind)})"
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _counted(names: Sequence[str]) -> str:
    counts = Counter(names)
    return ", ".join(name if n == 1 else f"{n} {name}" for name, n in counts.items()) or "-"


def _pattern(path: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)", "*", path)


def _short(line: str) -> str:
    """A source line without the folders of its file."""
    return line.rsplit("/", 1)[-1][:60]
