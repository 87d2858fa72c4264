"""A report as one HTML page: the table, and each kind of region before and after as a picture in SVG.

No script, no font, no file beside it.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Collection

import sympy

from ..ir.program import NUM_SPLITS, BufferRole, Load, LoopProgram, Nest, PartialAccumulate, Store
from ..record import RegionRecord
from .findings import Findings
from .table import grouped, schedule_of, source, text

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 78em; color: #222; }
pre { background: #f6f6f4; padding: .8em; overflow-x: auto; font-size: 12.5px; line-height: 1.35; }
.pair { display: flex; flex-wrap: wrap; gap: 2em; }
figure { margin: 0; } figcaption { font-weight: 600; margin-bottom: .3em; }
svg text { font: 12px system-ui, sans-serif; } summary { cursor: pointer; }
"""
_ROW, _BOX, _TENSOR, _GAP = 42, 170, 200, 80
_INPUT, _OUTPUT, _BETWEEN, _KERNEL = "#dbe7f5", "#dcefdc", "#f3e6d0", "#ffffff"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One box of a picture: its title, and the buffers that it reads and writes."""

    title: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def page(report: Findings) -> str:
    """The whole page."""
    parts = [
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>mixorder</title>",
        f"<style>{_STYLE}</style></head><body><h1>What mixorder does to this model</h1>",
        f"<pre>{html.escape(text(report))}</pre>",
    ]
    for kind in grouped(report.regions):
        parts.append(_section(report, kind))
    return "\n".join([*parts, "</body></html>"])


def _section(report: Findings, kind: list[int]) -> str:
    record = report.regions[kind[0]]
    where = html.escape(source([report.regions[i] for i in kind]))
    takes, moved = record.expected, record.traffic
    before = f"Before: at least {takes.launches_apart} launches, {moved.apart / 1e6:.1f} MB"
    after = f"After: {takes.launches} launches, {moved.total / 1e6:.1f} MB, {takes.share:.0%} of the limit"
    numbers = f"region {kind[0]}" + (f" and {len(kind) - 1} like it" if len(kind) > 1 else "")
    lines = "".join(f"<li><code>{html.escape(line)}</code></li>" for line in record.provenance.lines[:4])
    return "\n".join(
        [
            f"<h2>{where}: {html.escape(record.space)} ({numbers})</h2><ul>{lines}</ul>",
            f"<p>{html.escape(record.strategy)}: {html.escape(schedule_of(record))}</p><div class='pair'>",
            _figure(before, _picture(record, record.apart, _apart(record))),
            _figure(after, _picture(record, record.loops, _fused(record))),
            f"</div><details><summary>Loops</summary><pre>{html.escape(report.graph(kind[0]))}</pre></details>",
            f"<details><summary>Triton</summary><pre>{html.escape(report.kernel(kind[0]))}</pre></details>",
        ]
    )


def _figure(caption: str, picture: str) -> str:
    return f"<figure><figcaption>{caption}</figcaption>{picture}</figure>"


def _apart(record: RegionRecord) -> list[Kernel]:
    """A box per nest: the nest with rows outside computes dx, the one with columns outside dw and db."""
    loops = record.apart
    titles = ["rows, then columns", "columns, then rows"] if len(loops.nests) == 2 else ["over the rows"]
    return [_kernel(nest, title) for nest, title in zip(loops.nests, titles, strict=True)]


def _fused(record: RegionRecord) -> list[Kernel]:
    main, final = record.loops.nests
    return [_kernel(main, "both, rows first"), _kernel(final, "finalisation")]


def _kernel(nest: Nest, title: str) -> Kernel:
    reads = dict.fromkeys(s.buffer for s in nest.statements if isinstance(s, Load))
    writes = dict.fromkeys(s.buffer for s in nest.statements if isinstance(s, Store | PartialAccumulate))
    return Kernel(title, tuple(reads), tuple(writes))


def _picture(record: RegionRecord, loops: LoopProgram, kernels: list[Kernel]) -> str:
    """Inputs on the left, kernels in the middle, outputs on the right. A line's width shows bytes."""
    read = list(dict.fromkeys(b for k in kernels for b in k.reads))
    written = list(dict.fromkeys(b for k in kernels for b in k.writes))
    left = [b for b in read if b not in written]
    height = _ROW * max(len(left), len(written), 2 * len(kernels)) + 20
    width = 2 * _TENSOR + 2 * _GAP + _BOX
    middles = {k: (2 * i + 1) * height / (2 * len(kernels)) for i, k in enumerate(kernels)}
    at = {b: (_TENSOR, y) for b, y in _spread(left, height)}
    at |= {b: (width - _TENSOR, y) for b, y in _spread(written, height)}
    parts = [f"<svg viewBox='0 0 {width} {height}' width='{width}' height='{height}' role='img'>"]
    start, end = _TENSOR + _GAP, _TENSOR + _GAP + _BOX
    for kernel, y in middles.items():
        for name in kernel.reads:
            edge = start if name in left else end
            parts.append(_line(*at[name], edge, y - (4 if name in left else -6), _bytes(record, loops, name)))
        parts += [_line(end, y - 6, *at[name], _bytes(record, loops, name)) for name in kernel.writes]
        parts.append(_box(start, y - 22, _BOX, 44, _KERNEL, [kernel.title]))
    for name, (x, y) in at.items():
        colour = (
            _INPUT if name in left else _OUTPUT if loops.buffer(name).role is BufferRole.OUTPUT else _BETWEEN
        )
        label = _label(record, loops, name, _bytes(record, loops, name))
        parts.append(_box(0 if name in left else x, y - 17, _TENSOR, 34, colour, label))
    return "".join([*parts, "</svg>"])


def _spread(names: Collection[str], height: float) -> list[tuple[str, float]]:
    return [(name, (2 * i + 1) * height / (2 * len(names))) for i, name in enumerate(names)]


def _line(x0: float, y0: float, x1: float, y1: float, moved: float) -> str:
    """A curve from one point to another; wider for more bytes."""
    wide = max(1.0, min(7.0, (moved / 1e6) ** 0.5))
    bend = (x1 - x0) / 2
    path = f"M{x0:.0f} {y0:.0f} C{x0 + bend:.0f} {y0:.0f} {x1 - bend:.0f} {y1:.0f} {x1:.0f} {y1:.0f}"
    return f"<path d='{path}' fill='none' stroke='#8a8f98' stroke-width='{wide:.1f}' opacity='.7'/>"


def _box(x: float, y: float, width: float, height: float, colour: str, lines: list[str]) -> str:
    words = "".join(
        f"<text x='{x + width / 2:.0f}' y='{y + height / 2 + 4 + 14 * (i - (len(lines) - 1) / 2):.0f}' "
        f"text-anchor='middle'>{html.escape(line)}</text>"
        for i, line in enumerate(lines)
    )
    shape = f"x='{x:.0f}' y='{y:.0f}' width='{width:.0f}' height='{height:.0f}' rx='4'"
    return f"<rect {shape} fill='{colour}' stroke='#666'/>{words}"


def _label(record: RegionRecord, loops: LoopProgram, name: str, size: float) -> list[str]:
    """Two lines: a tensor's dtype and shape, or a workspace's purpose; the node's name, and bytes."""
    moved = f"{size / 1e6:.1f} MB" if size >= 5e4 else f"{size / 1e3:.1f} KB"
    for role, tensors in ((BufferRole.INPUT, record.inputs), (BufferRole.OUTPUT, record.outputs)):
        for buffer, tensor in zip(loops.role(role), tensors, strict=True):
            if buffer.name == name:
                return [str(tensor), f"{tensor.name[:18]}, {moved}"]
    workspace = loops.buffer(name).role is BufferRole.WORKSPACE
    return ["partial sums" if workspace else "exchanged sums", moved]


def _bytes(record: RegionRecord, loops: LoopProgram, name: str) -> float:
    buffer = loops.buffer(name)
    numel = sympy.sympify(buffer.numel).subs(NUM_SPLITS, record.schedule.num_splits)
    return float(loops.hint(numel) * buffer.dtype.itemsize)
