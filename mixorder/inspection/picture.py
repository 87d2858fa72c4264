"""A region's kernels and tensors as SVG: inputs on the left, kernels in the middle, the rest on the right.

Colours are the page's: the boxes' classes are `input`, `result`, `between` and `kernel`.
"""

from __future__ import annotations

import html
from collections.abc import Collection

from .flow import Flow, Tensor

_ROW, _KERNEL, _TENSOR, _GAP = 44, 150, 214, 64
_LETTERS = 31  # of 12 pixels, in a tensor's box
_THINNEST, _WIDEST = 1.0, 7.0


def picture(flow: Flow, name: str) -> str:
    """The SVG element. `name`: what it shows, for those who do not see it."""
    kernels, tensors = flow.kernels, flow.tensors
    left = [key for key, tensor in tensors.items() if tensor.kind == "input"]
    right = [key for key in tensors if key not in left]
    height = _ROW * max(len(left), len(right), 1.4 * len(kernels)) + 20
    width = 2 * _TENSOR + 2 * _GAP + _KERNEL
    start, end = _TENSOR + _GAP, _TENSOR + _GAP + _KERNEL
    at = {key: (_TENSOR, y) for key, y in _spread(left, height)}
    at |= {key: (width - _TENSOR, y) for key, y in _spread(right, height)}
    parts = [
        f"<svg viewBox='0 0 {width} {height:.0f}' role='img' aria-label='{html.escape(name)}'>",
        f"<title>{html.escape(name)}</title>",
    ]
    for i, kernel in enumerate(kernels):
        y = (2 * i + 1) * height / (2 * len(kernels))
        for key in kernel.reads:
            edge, beside = (start, -4) if key in left else (end, 6)
            parts.append(_line(*at[key], edge, y + beside, tensors[key]))
        parts += [_line(end, y - 6, *at[key], tensors[key]) for key in kernel.writes]
        times = "1 launch" if kernel.launches == 1 else f"{kernel.launches} launches"
        parts.append(_box(start, y - 22, _KERNEL, 44, "kernel", [kernel.title, times]))
    for key, (x, y) in at.items():
        one = tensors[key]
        lines = [one.title, ", ".join(filter(None, (one.text, one.size)))]
        parts.append(_box(0 if key in left else x, y - 18, _TENSOR, 36, one.kind, lines, one.title))
    return "".join([*parts, "</svg>"])


def _spread(keys: Collection[str], height: float) -> list[tuple[str, float]]:
    return [(key, (2 * i + 1) * height / (2 * len(keys))) for i, key in enumerate(keys)]


def _line(x0: float, y0: float, x1: float, y1: float, tensor: Tensor) -> str:
    """A curve from one point to another; wider for more bytes."""
    wide = max(_THINNEST, min(_WIDEST, ((tensor.moved or 0) / 1e6) ** 0.5))
    bend = (x1 - x0) / 2
    path = f"M{x0:.0f} {y0:.0f} C{x0 + bend:.0f} {y0:.0f} {x1 - bend:.0f} {y1:.0f} {x1:.0f} {y1:.0f}"
    return f"<path d='{path}' stroke-width='{wide:.1f}'/>"


def _box(x: float, y: float, width: float, height: float, kind: str, lines: list[str], tip: str = "") -> str:
    shown = [line for line in lines if line]
    words = "".join(
        f"<text x='{x + width / 2:.0f}' y='{y + height / 2 + 4 + 14 * (i - (len(shown) - 1) / 2):.0f}'>"
        f"{html.escape(_short(line))}</text>"
        for i, line in enumerate(shown)
    )
    shape = f"x='{x:.0f}' y='{y:.0f}' width='{width:.0f}' height='{height:.0f}' rx='4'"
    title = f"<title>{html.escape(tip)}</title>" if tip else ""
    return f"<g>{title}<rect {shape} class='{kind}'/>{words}</g>"


def _short(line: str) -> str:
    """A line that fits: of a long one the first word and the end."""
    if len(line) <= _LETTERS:
        return line
    first = line.partition(" ")[0]
    kept = _LETTERS - len(first) - 2
    return f"{first} \u2026{line[-kept:]}" if kept > 8 else f"{line[: _LETTERS - 1]}\u2026"
