"""A report as text: regions that share their kernels are one line."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from ..errors import Decline
from ..record import RegionRecord
from ..region.peak_memory import PIECE
from ..region.provenance import Provenance
from .findings import Findings
from .legend import legend

WIDTH = 110
CHANGED = 0.005  # of a graph's peak memory
SHOWN_US, SHOWN_BYTES = 0.05, 5e4  # what is less is zero as printed
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
        parts.append(nothing(report))
    if report.misses:
        parts.append(near_misses(report.misses))
    if report.norms:
        parts.append(norms(report))
    return "\n\n".join(parts)


def heading(report: Findings) -> str:
    """Versions, device, and the graphs that were looked at."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    where = (
        report.device.name if report.on_gpu else f"planned for {report.device.name}: no tensor is on a GPU"
    )
    graphs = Counter(graph.kind for graph in report.graphs)
    counted = ", ".join(f"{count} {kind}" for kind, count in graphs.items()) or "none"
    breaks = f"; graph breaks: {report.graph_breaks}" if report.graph_breaks else ""
    notes = "".join(f"\nnote: {note}" for note in report.notes)
    return f"{versions}; {where}\ngraphs: {counted}{breaks}{notes}"


def nothing(report: Findings) -> str:
    """That nothing was fused, and where the reason is."""
    said = "Nothing was fused"
    if report.misses:
        return f"{said}. The reasons are below."
    if not any(graph.kind == "backward" for graph in report.graphs):
        return f"{said}: no backward ran, and the forward has no pair of an inner and an outer reduction."
    looked_for = (
        "No graph has what mixorder looks for: an inner and an outer reduction of the same elements, as in "
        "the backward of a norm, or the gradient of a Linear's bias behind pointwise operators."
    )
    if report.norms:
        return f"{said}. The list of norms below has the reason for each."
    return "\n".join(textwrap.wrap(f"{said}: the model has no norm module. {looked_for}", WIDTH))


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
    regions += f", run {sums.runs} times" if sums.runs != sums.regions else ""
    measured = all(region.expected.measured for region in report.regions)
    scaled = "" if measured else " (the H200's times, scaled by bandwidth)"
    return (
        f"{regions}: {sums.launches_apart} -> {sums.launches} launches, "
        f"{sums.bytes_apart / 1e6:.1f} -> {sums.bytes / 1e6:.1f} MB, "
        f"{sums.apart_us:.0f} -> {sums.ours_us:.0f} us predicted on {report.device.name}{scaled}, {share}\n"
        f"{step_of(sums.saved_us)} `python -m mixorder explain ... --time` times it on a GPU."
    )


def step_of(saved_us: float) -> str:
    """What a step takes less, or more, as predicted."""
    size = abs(saved_us)
    if size < SHOWN_US:
        return "Predicted: a step takes as long as without mixorder."
    time = f"{size / 1e3:.3f} ms" if size >= 10 else f"{size:.1f} us"
    if saved_us > 0:
        return f"Predicted: a step takes {time} less."
    return f"Predicted: a step takes {time} more. mixorder_min_numel is 0, so regions are fused all the same."


def rises(regions: Sequence[RegionRecord]) -> list[str]:
    """A line for each kind of region that moves more bytes than Inductor's kernels, with the reason; none for
    less than `SHOWN_BYTES`."""
    lines = []
    for kind in grouped(regions):
        region = regions[kind[0]]
        moved = region.traffic
        if -moved.saved < SHOWN_BYTES:
            continue
        parts = {
            "for partial sums": 2 * moved.workspace,
            f"to copy {moved.copies} of its tensors into another layout": 2 * moved.copied,
            "to copy its results into one tensor": 2 * moved.joined,
        }
        why = " and ".join(f"{size / 1e6:.1f} MB {what}" for what, size in parts.items() if size)
        faster = region.expected.saved_us > 0
        still = (
            "It is predicted to take less time all the same."
            if faster
            else "It is fused because mixorder_min_numel is 0."
        )
        which = f"Region {kind[0]} moves" if len(kind) == 1 else f"Regions {_numbers(kind)} each move"
        lines.append(f"{which} {-moved.saved / 1e6:.1f} MB more than without mixorder: {why}. {still}")
    return ["\n".join(lines)] if lines else []


def memory(report: Findings) -> str:
    """A line for each graph whose estimated peak memory changes by more than `CHANGED`, and by more than
    the allocator's smallest piece; empty if none does."""
    lines, kinds = list[str](), Counter(graph.kind for graph in report.graphs)
    for i, graph in enumerate(report.graphs):
        peaks = [r.peak for r in graph.records if isinstance(r, RegionRecord) and r.peak is not None]
        if not peaks:
            continue
        (before, _), (_, after) = peaks[0], peaks[-1]  # each begins where the one before it ends
        if abs(after - before) > max(CHANGED * before, PIECE):
            which = graph.kind if kinds[graph.kind] == 1 else f"{graph.kind}, graph {i}"
            size = f"{abs(after / before - 1):.1%} {'less' if after < before else 'more'}"
            megabytes = f"{before / 1e6:.1f} -> {after / 1e6:.1f} MB"
            lines.append(f"\nEstimated peak memory of the {which}: {megabytes}, {size}.")
    return "".join(lines)


def near_misses(misses: Sequence[Decline]) -> str:
    """Each reason with where, what and the remedy."""
    kinds: dict[object, list[Decline]] = {}
    for miss in misses:
        kinds.setdefault((miss.reason, miss.detail, _pattern(source([miss]))), []).append(miss)
    lines = ["Near misses: pairs that were found and left to Inductor"]
    for same in kinds.values():
        miss, times = same[0], f" (x {len(same)})" if len(same) > 1 else ""
        what = f"{source(same)}{times}: {miss.reason.value}: {miss.detail}"
        said = f"{miss.reason.explanation} What to do: {miss.reason.remedy}"
        for line, indent in ((what, "  "), (said, "    ")):
            lines += textwrap.wrap(line, WIDTH, initial_indent=indent, subsequent_indent="    ")
    return "\n".join(lines)


def norms(report: Findings) -> str:
    """How many norms are in a region; classes and paths of those, and of the others with the reason."""
    fused = sum(not norm.reason for norm in report.norms)
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for norm in report.norms:
        kinds.setdefault((norm.reason, norm.kind, _pattern(norm.path)), []).append(norm.path)
    lines: dict[str, list[str]] = {}
    for (reason, kind, pattern), paths in kinds.items():
        where = paths[0] or "the model itself"
        where = f"{where} ({kind})" if len(paths) == 1 else f"{pattern} ({kind}) x {len(paths)}"
        lines.setdefault(reason or "in a region", []).append(where)
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
    plan, launch = record.schedule, record.schedule.launch
    counts = {"warp": launch.num_warps, "stage": launch.num_stages, "program": plan.programs}
    words = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items()]
    sides = " x ".join(str(one.unroll * one.tile) for one in plan.walk)
    chunks = f" in {plan.chunks} chunks" if plan.chunks > 1 else ""
    return f"{sides}{chunks}, " + ", ".join(words)


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
        f"{takes.apart_us:.0f} -> {takes.ours_us:.0f}",
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
