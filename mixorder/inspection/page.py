"""A report as one HTML page: its text, and a picture of each kind of region before and after.

No script, no font, no file beside it. What is wider than the screen scrolls by itself.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from .findings import Findings
from .flow import Flow, Tensor, after, before
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
td { font-size: 12px; text-align: center; overflow-wrap: normal; }
td .box { display: block; margin: .3em 0; }
.box { border: 1px solid var(--edge); border-radius: 4px; padding: .1em .6em; }
.bar { display: block; height: 3px; background: var(--line); }
.input { background: var(--input); }
.result { background: var(--result); }
.between { background: var(--between); }
.kernel { background: var(--kernel); }
.keys { line-height: 2.2; } summary { cursor: pointer; padding: .4em 0; }
"""
_KEYS = {
    "input": "input",
    "kernel": "kernel",
    "between": "between kernels",
    "result": "result",
}
_READ = """The kernels of each region in the order of their launches, between the tensors that they read and
those that they write. The more bytes a tensor has, the longer its bar. dx: a gradient with an element for
each row and column; dw, db: gradients of weights and biases, sums over the rows. Times are predicted."""


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
        keys = "".join(f"<span class='box {kind}'>{name}</span> " for kind, name in _KEYS.items())
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
            _figure(was, before(record, graph, report.device)),
            _figure(now, after(record, graph)),
            f"</div><details><summary>Loops</summary>{_code(report.graph(kind[0]))}</details>",
            f"<details><summary>Triton</summary>{_code(report.kernel(kind[0]))}</details>",
        ]
    )


def _figure(caption: str, flow: Flow) -> str:
    """A table with a row for each kernel: what it reads, the kernel, what it writes."""
    most = max((tensor.moved or 0 for tensor in flow.tensors.values()), default=0)

    def boxes(keys: Iterable[str]) -> str:
        return "".join(_box(flow.tensors[key], most) for key in keys)

    rows = (
        f"<tr><td>{boxes(kernel.reads)}</td><td>&rarr;</td>"
        f"<td><span class='box kernel'>{kernel.title}<br>{_launches(kernel.launches)}</span></td>"
        f"<td>&rarr;</td><td>{boxes(kernel.writes)}</td></tr>"
        for kernel in flow.kernels
    )
    return (
        f"<figure><figcaption>{caption}</figcaption>"
        f"<div class='wide'><table>{''.join(rows)}</table></div></figure>"
    )


def _box(tensor: Tensor, most: float) -> str:
    """A tensor with its name, dtype and bytes, and a bar that is full for the most bytes."""
    lines = [tensor.title, ", ".join(filter(None, (tensor.text, tensor.size)))]
    said = "<br>".join(html.escape(line) for line in lines if line)
    share = 100 * tensor.moved / most if tensor.moved else 0
    return f"<span class='box {tensor.kind}'>{said}<i class='bar' style='width: {share:.0f}%'></i></span>"


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count} launches"
