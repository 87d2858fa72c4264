"""A report as one HTML page: its text, and each kind of region before and after as a picture in SVG.

No script, no font, no file beside it. What is wider than the screen scrolls by itself.
"""

from __future__ import annotations

import html

from .findings import Findings
from .flow import after, before
from .picture import picture
from .table import grouped, schedule_of, source, text

_STYLE = """
:root { color-scheme: light dark; --text: #222; --back: #fff; --soft: #f6f6f4; --line: #8a8f98; --edge: #666;
  --input: #dbe7f5; --result: #dcefdc; --between: #f3e6d0; --kernel: #fff; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e3; --back: #17191c; --soft: #22252a;
  --line: #8a8f98; --edge: #9aa0a8;
  --input: #23405f; --result: #24492b; --between: #57431f; --kernel: #2d3138; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1em; max-width: 88em;
  color: var(--text); background: var(--back); overflow-wrap: anywhere; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
.wide { overflow-x: auto; overflow-wrap: normal; }
pre { background: var(--soft); padding: .8em; font-size: 12.5px; line-height: 1.35; }
.pair { display: flex; flex-wrap: wrap; gap: 1em 2em; }
figure { margin: 0; max-width: 100%; flex: 1 1 30em; } figcaption { font-weight: 600; margin-bottom: .3em; }
svg { display: block; width: 100%; min-width: 34em; max-width: 46em; }
svg text { font: 12px system-ui, sans-serif; fill: var(--text); text-anchor: middle; }
svg path { fill: none; stroke: var(--line); opacity: .7; }
svg rect, .key { stroke: var(--edge); }
.input { fill: var(--input); background: var(--input); }
.result { fill: var(--result); background: var(--result); }
.between { fill: var(--between); background: var(--between); }
.kernel { fill: var(--kernel); background: var(--kernel); }
.key { border: 1px solid var(--edge); border-radius: 4px; padding: .1em .6em; margin-right: .4em; }
.keys { line-height: 2.2; } summary { cursor: pointer; padding: .4em 0; }
"""
_KEYS = {
    "input": "input",
    "kernel": "kernel",
    "between": "between kernels",
    "result": "result",
}
_READ = """The kernels of each region, and the tensors that they read and write. A line is a tensor that is
read or written; a wider line has more bytes. dx: a gradient with an element for each row and column; dw, db:
gradients of weights and biases, sums over the rows. Times are predicted."""


def page(report: Findings) -> str:
    """The whole page."""
    kinds = grouped(report.regions)
    parts = [
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'><title>mixorder</title>",
        f"<style>{_STYLE}</style></head><body><h1>What mixorder does to this model</h1>",
        _code(text(report, details=True)),
    ]
    if kinds:
        keys = "".join(f"<span class='key {kind}'>{name}</span>" for kind, name in _KEYS.items())
        parts.append(f"<h2>Pictures</h2><p class='keys'>{keys}</p><p>{html.escape(_READ)}</p>")
    return "\n".join([*parts, *(_section(report, kind) for kind in kinds), "</body></html>"])


def _code(text: str) -> str:
    return f"<pre class='wide'>{html.escape(text)}</pre>"


def _section(report: Findings, kind: list[int]) -> str:
    record, graph = report.regions[kind[0]], report.graph_of(kind[0])
    where = html.escape(source([report.regions[i] for i in kind]))
    takes = record.expected
    was = f"Without mixorder: {takes.launches_apart} launches, {takes.apart_us:.0f} us"
    more = takes.launches - len(record.kernels)
    also = f" ({more} to copy inputs or clear a buffer)" if more else ""
    now = f"With mixorder: {takes.launches} launches{also}, {takes.ours_us:.0f} us"
    numbers = f"region {kind[0]}" + (f" and {len(kind) - 1} like it" if len(kind) > 1 else "")
    lines = "".join(f"<li><code>{html.escape(line)}</code></li>" for line in record.provenance.lines[:4])
    return "\n".join(
        [
            f"<h2>{where}: {html.escape(record.space)} ({numbers})</h2><ul>{lines}</ul>",
            f"<p>{html.escape(record.strategy)}: {html.escape(schedule_of(record))}</p><div class='pair'>",
            _figure(was, picture(before(record, graph, report.device), was)),
            _figure(now, picture(after(record, graph), now)),
            f"</div><details><summary>Loops</summary>{_code(report.graph(kind[0]))}</details>",
            f"<details><summary>Triton</summary>{_code(report.kernel(kind[0]))}</details>",
        ]
    )


def _figure(caption: str, svg: str) -> str:
    return f"<figure><figcaption>{caption}</figcaption><div class='wide'>{svg}</div></figure>"
