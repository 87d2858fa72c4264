"""A report as text: the verdict first, then regions that share their kernels as one line each."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from ..errors import Decline
from ..record import RegionRecord
from ..region.peak_memory import PIECE
from ..region.provenance import Provenance
from .findings import Findings, Norm

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

WIDTH = 80
SHOWN_US = 0.05  # what is less is zero as printed
PLACES = {3: "positions", 4: "pixels", 5: "voxels"}  # behind samples and channels, by the number of dims
HEADER = ("region", "rows x cols", "us", "from")


def text(report: Findings, details: bool = False, width: int = WIDTH) -> str:
    """The whole report: verdict, regions, what is left to Inductor, norms, versions. `details`: also each
    region's reductions, launches and schedule. Lines have at most `width` columns."""
    sections = [verdict(report, width)]
    if kinds := by_saving(report):
        rows = [HEADER, *(cells(report.regions, kind) for kind in kinds)]
        sections.append(table(rows, width))
        if details:
            sections.append("\n".join(filled(_detail(report.regions, kind), 0, width) for kind in kinds))
    if report.misses:
        sections.append(near_misses(report.misses, width))
    told = {"", *(f"{miss.reason.value}: {miss.detail}" for miss in report.misses)}
    if untold := [norm for norm in report.norms if norm.reason not in told]:
        sections.append(norms(untold, width))
    return "\n\n".join([*sections, origin(report, width)])


def verdict(report: Findings, width: int = WIDTH) -> str:
    """What a step saves, how much is fused, and remarks on the run."""
    lines = [step_of(report), *share(report), totals(report)] if report.regions else [nothing(report)]
    if report.norms:
        fused = sum(not norm.reason for norm in report.norms)
        lines.append(f"Norm modules in a region: {fused} of {len(report.norms)}")
    lines += [*memory(report), *(f"note: {note}" for note in report.notes)]
    return "\n".join(filled(line, 0, width) for line in lines)


def origin(report: Findings, width: int = WIDTH) -> str:
    """Versions, device, and the graphs that were looked at."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    name = report.device.name
    where = name if report.on_gpu else f"planned for {name}: no tensor is on a GPU"
    graphs = Counter(graph.kind for graph in report.graphs)
    counted = ", ".join(f"{count} {kind}" for kind, count in graphs.items()) or "none"
    breaks = f"; graph breaks: {report.graph_breaks}" if report.graph_breaks else ""
    lines = [f"{versions}; {where}", f"graphs: {counted}{breaks}"]
    return "\n".join(filled(line, 0, width) for line in lines)


def nothing(report: Findings) -> str:
    """That nothing was fused, and where the reason is."""
    if not report.graphs:
        why = "torch.compile captured no graph. TORCH_LOGS=graph_breaks says why."
    elif report.misses or report.norms:
        why = "the reasons are below."
    else:
        why = (
            "no graph has what mixorder looks for: an inner and an outer reduction of the same elements, as "
            "in the backward of a norm, or the gradient of a Linear's bias behind pointwise operators."
        )
    return f"Nothing was fused: {why}"


def grouped(regions: Sequence[RegionRecord]) -> list[list[int]]:
    """The numbers of regions in groups: those of a group do the same to tensors of the same sizes, in as much
    time."""
    kinds: dict[object, list[int]] = {}
    for i, record in enumerate(regions):
        tensors = [sorted(map(str, some)) for some in (record.inputs, record.outputs)]
        us = [f"{time:.0f}" for time in (record.expected.apart_us, record.expected.ours_us)]
        ops = [[reduction.op for reduction in some] for some in (record.inner, record.outer)]
        what = (record.space, ops, record.strategy, record.schedule)
        kinds.setdefault(str((tensors, us, what)), []).append(i)
    return list(kinds.values())


def by_saving(report: Findings) -> list[list[int]]:
    """The groups of regions, first those that save the most of a step."""
    saved = [report.graph_of(i).runs * r.expected.saved_us for i, r in enumerate(report.regions)]
    return sorted(grouped(report.regions), key=lambda kind: -sum(saved[i] for i in kind))


def source(records: Iterable[RegionRecord | Decline]) -> str:
    """The modules that regions come from, or the first source line where there is none."""
    provenances: list[Provenance] = [record.provenance for record in records if record.provenance]
    paths = [path or kind for provenance in provenances for path, kind in provenance.modules]
    return (
        _listed(paths)
        if paths
        else _short(next((line for provenance in provenances for line in provenance.lines), "unknown"))
    )


def _listed(paths: Iterable[str], most: int = 2) -> str:
    """The first paths; where some differ in numbers of parents alone, with `*` for these."""
    paths = list(dict.fromkeys(paths))
    patterns = list(dict.fromkeys(map(_pattern, paths)))
    shown = patterns if len(patterns) < len(paths) else paths
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def totals(report: Findings) -> str:
    """Sums over all regions."""
    sums = report.totals
    regions = "1 region" if sums.regions == 1 else f"{sums.regions} regions"
    regions += f", run {sums.runs} times" if sums.runs != sums.regions else ""
    measured = all(region.expected.measured for region in report.regions)
    scaled = "" if measured else " (the H200's times, scaled by bandwidth)"
    return (
        f"{regions}: {sums.apart_us:.0f} -> {sums.ours_us:.0f} us predicted on {report.device.name}{scaled}, "
        f"{sums.launches_apart} -> {sums.launches} launches"
    )


def step_of(report: Findings) -> str:
    """What a step takes less, or more, as predicted."""
    saved_us = report.totals.saved_us
    size = abs(saved_us)
    if size < SHOWN_US:
        said = "as long as without mixorder."
    else:
        time = f"{size / 1e3:.3f} ms" if size >= 10 else f"{size:.1f} us"
        less = "less." if saved_us > 0 else "more."
        said = f"{time} {less}"
    return f"Predicted: a step takes {said} With --time, explain times it on a GPU."


def share(report: Findings) -> list[str]:
    """How much of a step that is, if the card's peak is known."""
    if not (least := report.roofline_us) or report.totals.saved_us < SHOWN_US:
        return []
    saved_share = report.totals.saved_us / max(least, report.totals.apart_us)
    return [
        f"At most {saved_share:.1%} of a step, which takes at least {least / 1e3:.1f} ms "
        "(a roofline of the card)."
    ]


def memory(report: Findings) -> list[str]:
    """A line for each graph whose estimated peak memory changes by more than half a percent, and by more
    than the allocator's smallest piece."""
    lines, kinds = list[str](), Counter(graph.kind for graph in report.graphs)
    for i, graph in enumerate(report.graphs):
        plans = [r.planning for r in graph.records if isinstance(r, RegionRecord)]
        peaks = [plan.peak for plan in plans if plan.peak is not None]
        if not peaks:
            continue
        (before, _), (_, after) = peaks[0], peaks[-1]  # each begins where the one before it ends
        if abs(after - before) > max(0.005 * before, PIECE):
            which = graph.kind if kinds[graph.kind] == 1 else f"{graph.kind}, graph {i}"
            size = f"{abs(after / before - 1):.1%} {'less' if after < before else 'more'}"
            megabytes = f"{before / 1e6:.1f} -> {after / 1e6:.1f} MB"
            lines.append(f"Estimated peak memory of the {which}: {megabytes}, {size}.")
    return lines


def near_misses(misses: Sequence[Decline], width: int = WIDTH) -> str:
    """Each reason once with its remedy, and below it where it was found and with which detail."""
    lines = ["Left to Inductor"]
    for reason, declines in _by(misses, lambda miss: miss.reason).items():
        lines.append(filled(f"{reason.value}: {reason.explanation} {reason.remedy}", 2, width))
        for detail, same in _by(declines, lambda miss: miss.detail).items():
            lines.append(filled(f"{source(same)}: {detail}", 4, width))
    return "\n".join(lines)


def norms(unpaired: Sequence[Norm], width: int = WIDTH) -> str:
    """Norms of which no pair was found, by reason: how many of each class, and the first paths."""
    lines = ["Norms without a pair"]
    for reason, group in _by(unpaired, lambda norm: norm.reason).items():
        counts = Counter(norm.kind for norm in group)
        kinds = ", ".join(kind if n == 1 else f"{n} {kind}" for kind, n in counts.items())
        where = _listed(norm.path or "the model itself" for norm in group)
        lines.append(filled(f"{kinds} ({where}): {reason}", 2, width))
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]], width: int = 0) -> str:
    """Rows of text with their columns aligned. With a `width`, the last column is wrapped; if the others
    leave it too little, it stands below them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines, least = list[str](), 32  # columns of the last one
    for row in rows:
        *cells, last = (cell.ljust(w) for cell, w in zip(row, widths, strict=True))
        before = "  ".join(["", *cells, ""])
        if 0 < width < len(before) + least and row is not rows[0]:
            lines += [before.rstrip(), filled(last.strip(), 6, width)]
            continue
        wrapped = textwrap.wrap(last, max(least, width - len(before))) if width else [last]
        lines += (
            f"{before if i == 0 else ' ' * len(before)}{line}".rstrip() for i, line in enumerate(wrapped)
        )
    return "\n".join(lines)


def schedule_of(record: RegionRecord) -> str:
    """Tile, warps, stages and programs in a few words."""
    plan, launch = record.schedule, record.schedule.launch
    counts = {"warp": launch.num_warps, "stage": launch.num_stages, "program": plan.programs}
    words = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items()]
    sides = " x ".join(str(step.unroll * step.tile) for step in plan.walk)
    chunks = f" in {plan.chunks} chunks" if plan.chunks > 1 else ""
    return f"{sides}{chunks}, " + ", ".join(words)


def cells(regions: Sequence[RegionRecord], kind: list[int]) -> list[str]:
    """The table's line for regions of a kind, by their numbers."""
    records = [regions[i] for i in kind]
    first, takes = records[0], records[0].expected
    us = f"{takes.apart_us:.0f} -> {takes.ours_us:.0f}"
    return [_numbers(kind), in_words(first), us, source(records)]


def in_words(record: RegionRecord) -> str:
    """The sizes of a region's elements. Those of pictures, and of others of three to five dims, have names
    where the axes of its sums are these dims and maybe groups of channels."""
    axes = [part.split() for part in record.space.axes.split(" x ")]
    tensors = [t.shape for t in (*record.inputs, *record.outputs) if len(t.shape) in PLACES]
    known = {words for shape in tensors if (words := _dims([axis[-1] for axis in axes], shape))}
    return known.pop() if len(known) == 1 and len(axes) > 1 else str(record.space)


def _dims(axes: Sequence[str], shape: Sequence[int | str]) -> str:
    """The dims of a tensor in words; empty if a region with these axes has other elements."""
    if not all(isinstance(n, int) for n in shape) or not all(axis.isdigit() for axis in axes):
        return ""
    sizes, dims = [int(axis) for axis in axes], [int(n) for n in shape]
    samples, channels, *places = dims
    if math.prod(sizes) != math.prod(dims) or (len(dims) == 3 and len(sizes) < 3):
        return ""
    words = [f"{samples} samples", f"{channels} channels"]
    if len(sizes) > 3 and sizes[0] == samples and sizes[1] * sizes[2] == channels:
        words[1:] = [f"{sizes[1]} groups", f"{sizes[2]} channels"]
    return " x ".join([*words, f"{'x'.join(map(str, places))} {PLACES[len(dims)]}"])


def _detail(regions: Sequence[RegionRecord], kind: list[int]) -> str:
    """What the kernels of a kind compute and how, in a paragraph."""
    first, takes = regions[kind[0]], regions[kind[0]].expected
    inner, outer = (_counted([reduction.op for reduction in some]) for some in (first.inner, first.outer))
    launches = f"launches: {takes.launches_apart} -> {takes.launches}"
    full = [t.dtype for t in (*first.inputs, *first.outputs) if len(t.shape) > 1 and 1 not in t.shape]
    dtypes = f"dtypes: {', '.join(sorted(set(full))) or first.inputs[0].dtype}"
    how = f"strategy: {first.strategy}; schedule: {schedule_of(first)}"
    return f"region {_numbers(kind)}: {dtypes}; inner: {inner}; outer: {outer}; {launches}; {how}"


def _numbers(kind: list[int]) -> str:
    """`0, 3`; of more than three, the first and how many."""
    return ", ".join(map(str, kind)) if len(kind) <= 3 else f"{kind[0]}... ({len(kind)})"


def _counted(names: Sequence[str]) -> str:
    counts = Counter(names)
    return ", ".join(name if n == 1 else f"{name} x {n}" for name, n in counts.items()) or "none"


def _pattern(path: str) -> str:
    return re.sub(r"(?<![^.])\d+(?=\.)", "*", path)


def _short(line: str) -> str:
    """A source line without the folders of its file."""
    return line.rsplit("/", 1)[-1][:60]


def _by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def filled(line: str, indent: int = 0, width: int = WIDTH) -> str:
    """A paragraph in lines of at most `width`, those after the first two columns further in."""
    first, following = " " * indent, " " * (indent + 2)
    return textwrap.fill(line, width, initial_indent=first, subsequent_indent=following)
