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
from .legend import legend

WIDTH = 110
CHANGED = 0.005
HEADER = (
    *("region", "from", "rows x cols", "dtypes", "inner", "outer", "strategy", "schedule"),
    *("launches", "MB", "us"),
)


def text(report: Findings) -> str:
    """The whole report: heading, regions, totals, near misses, norms."""
    parts = [heading(report)]
    if kinds := grouped(report.regions):
        parts += [
            table([HEADER, *(cells(report.regions, kind) for kind in kinds)]),
            totals(report) + memory(report),
            *rises(report.regions),
            legend(report.regions, WIDTH),
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
    """Sums over all regions, and what a step saves."""
    sums = report.totals
    share = f"{sums.limit_us / sums.fused_us:.0%} of the limit"
    regions = "1 region" if sums.regions == 1 else f"{sums.regions} regions"
    measured = all(region.expected.measured for region in report.regions)
    scaled = "" if measured else " (the H200's times, scaled by bandwidth)"
    return (
        f"{regions}: {sums.launches_apart} -> {sums.launches} launches, "
        f"{sums.bytes_apart / 1e6:.1f} -> {sums.bytes / 1e6:.1f} MB, "
        f"{sums.apart_us:.0f} -> {sums.fused_us:.0f} us predicted on {report.device.name}{scaled}, {share}\n"
        f"A step saves {sums.saved_us / 1e3:.3f} ms, as predicted. "
        "`python -m mixorder explain ... --time` times it on a GPU."
    )


def rises(regions: Sequence[RegionRecord]) -> list[str]:
    """A line for each kind of region that moves more bytes than Inductor's kernels, with the reason."""
    lines = []
    for kind in grouped(regions):
        region = regions[kind[0]]
        moved = region.traffic
        if moved.saved >= 0:
            continue
        parts = {
            "for partial sums": 2 * moved.workspace,
            f"to copy {moved.copies} of its tensors into another layout": 2 * moved.copied,
        }
        why = " and ".join(f"{size / 1e6:.1f} MB {what}" for what, size in parts.items() if size)
        faster = region.expected.saved_us > 0
        still = "it is predicted to take less time" if faster else "fused since mixorder_min_numel is 0"
        each = "each " if len(kind) > 1 else ""
        lines.append(
            f"Region {_numbers(kind)} {each}moves {-moved.saved / 1e6:.1f} MB more than before: "
            f"{why}; {still}."
        )
    return ["\n".join(lines)] if lines else []


def memory(report: Findings) -> str:
    """A line of the regions that change the estimated peak memory of their graph; empty if none does by more
    than `CHANGED`."""
    peaks = ((i, r.peak) for i, r in enumerate(report.regions) if r.peak is not None)
    changes = ((i, after / before - 1) for i, (before, after) in peaks if before)
    changed = [f"region {i} by {change:+.1%}" for i, change in changes if abs(change) > CHANGED]
    return f"\nestimated peak memory of its graph changes: {', '.join(changed)}" if changed else ""


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
    """How many norms are in a region; classes and paths of those, and of the others with the reason."""
    fused = sum(not norm.reason for norm in report.norms)
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for norm in report.norms:
        kinds.setdefault((norm.reason, norm.kind, _pattern(norm.path)), []).append(norm.path)
    lines: dict[str, list[str]] = {}
    for (reason, kind, pattern), paths in kinds.items():
        where = (paths[0] or "the model itself") if len(paths) == 1 else f"{pattern} x {len(paths)}"
        lines.setdefault(reason or "in a region", []).append(f"{kind} {where}")
    said = (f"{', '.join(named)}: {reason}" for reason, named in lines.items())
    wrapped = (
        "\n".join(textwrap.wrap(s, WIDTH, initial_indent="  ", subsequent_indent="    ")) for s in said
    )
    return "\n".join([f"Norm modules in a region: {fused} of {len(report.norms)}", *wrapped])


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
    if schedule.extents:
        counts["program"] = record.kernels[0].grid
    words = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items()]
    if schedule.extents:
        return f"{' x '.join(map(str, schedule.extents))}, " + ", ".join(words)
    chunks = f" in {schedule.chunks} chunks" if schedule.chunks > 1 else ""
    return f"{tile.xblock} x {schedule.r0_block}{chunks}, " + ", ".join(words)


def cells(regions: Sequence[RegionRecord], kind: list[int]) -> list[str]:
    """The table's line for regions of a kind, by their numbers."""
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
        f"{takes.apart_us:.0f} -> {takes.fused_us:.0f}",
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
    return ", ".join(name if n == 1 else f"{name} x {n}" for name, n in counts.items()) or "none"


def _pattern(path: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)", "*", path)


def _short(line: str) -> str:
    """A source line without the folders of its file."""
    return line.rsplit("/", 1)[-1][:60]
