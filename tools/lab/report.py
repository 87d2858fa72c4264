"""The report of the benchmark of norms: tables of its records, where mixorder is worse, and charts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .backward import Row
from .providers import OURS, PROVIDERS
from .tables import table


def _cell(row: Row, provider: str) -> str:
    """Percent of the limit; the time where there is no limit; `err`, or `-` for no result."""
    result, share = row.results.get(provider), row.share(provider)
    if share is not None:
        return f"{share:.1f}"
    if result is None or result.absent:
        return "-"
    if result.error:
        return "err"
    return f"{result.us:.1f} us" if result.us else "ok"


def share_table(rows: Sequence[Row], providers: Sequence[str]) -> str:
    """One line per shape: the limit and its spread between timings, then percent of the limit."""
    lines = []
    for row in rows:
        limit = f"{row.limit_us:.1f}" if row.limit_us else "-"
        spread = f"{row.spread:.1f}%" if row.limit_us else "-"
        lines.append([row.case.shape, limit, spread, *(_cell(row, name) for name in providers)])
    return table(["M x N", "limit us", "spread", *providers], lines)


def detail_table(rows: Sequence[Row]) -> str:
    """One line per shape and provider: time, launches of one backward, errors against float64."""
    lines = []
    for row in rows:
        for name, r in row.results.items():
            if r.absent:
                continue
            us = f"{r.us:.1f}" if r.us else "err" if r.error else "-"
            launches = [str(r.launches.get(key, "-")) for key in ("kernels", "memsets", "memcpys")]
            errors = [f"{r.errors[g]:.2e}" if g in r.errors else "-" for g in ("dx", "dw", "db")]
            same = {None: "-", True: "yes", False: "NO"}[r.repeatable]
            lines.append([row.case.shape, name, us, *launches, *errors, same])
    counted, compared = ["kernels", "memsets", "copies"], ["dx err", "dw err", "db err"]
    header = ["M x N", "provider", "us", *counted, *compared, "same bits"]
    return table(header, lines)


def find_issues(rows: Sequence[Row]) -> list[str]:
    """A line per timed row where mixorder has no time or is not the fastest."""
    issues = []
    for row in rows:
        result = row.results.get("mixorder")
        if result is None:
            continue
        messages = []
        if result.error:
            messages.append(f"mixorder failed: {result.reason}")
        times = {n: r.us for n, r in row.results.items() if r.us and not r.error}
        rivals = {name: us for name, us in times.items() if name not in OURS}
        ours = times.get("mixorder")
        if ours and rivals and min(rivals.values()) < ours:
            best = min(rivals, key=rivals.__getitem__)
            messages.append(f"{best} is faster: {rivals[best]:.1f} us, mixorder {ours:.1f} us")
        case = row.case
        issues += [f"{case.norm} {case.dtype} {case.shape}: {text}" for text in messages]
    return issues


def in_tables(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of one norm and one pair of dtypes under a title."""
    tables: dict[str, list[Row]] = {}
    for row in rows:
        form = " and residual" if row.case.residual else ""
        title = f"{row.case.norm}{form} {row.case.dtype} (weights {row.case.weight_dtype})"
        tables.setdefault(title, []).append(row)
    return tables


def report_text(head: dict[str, str], measured: Sequence[Row], args: Any) -> str:
    """The whole report. The most important part comes last, so that truncated output still shows it."""
    results = [item for row in measured for item in row.results.items()]
    head = head | {"measured": f"{len(results)} of {args.total} results"}
    parts = ["\n".join(f"{key}: {value}" for key, value in head.items())]
    tables = in_tables(measured)
    parts += [f"{title}: launches and errors\n{detail_table(tables[title])}" for title in tables]
    for title, rows in tables.items() if args.timed else ():
        parts.append(f"{title}: % of the limit\n{share_table(rows, args.providers)}")
    errors = {f"{name}: {result.reason}" for name, result in results if result.error}
    parts += ["errors\n" + "\n".join(sorted(errors))] if errors else []
    if args.timed:
        issues = find_issues(measured) or ["none"]
        parts.append("issues\n" + "\n".join(issues))
    return "\n\n".join(parts)


CHARTED = 5  # shapes, as many as can be read on a page


def charted(rows: Sequence[Row]) -> list[Row]:
    """Of many rows a few, evenly spread."""
    count = min(CHARTED, len(rows))
    return [rows[i * (len(rows) - 1) // max(1, count - 1)] for i in range(count)]


def draw_charts(device: str, measured: Sequence[Row], out: Path) -> None:
    """One PNG per norm and dtype with times, of a few shapes; none without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return
    for rows in map(charted, in_tables(measured).values()):
        names = [n for n in PROVIDERS if any(row.share(n) is not None for row in rows)]
        if not names:
            continue
        figure, axes = pyplot.subplots(figsize=(8, 4))
        width = 0.8 / len(names)
        for i, name in enumerate(names):
            at = [j + (i - (len(names) - 1) / 2) * width for j in range(len(rows))]
            axes.bar(at, [row.share(name) or 0 for row in rows], width, label=name)
        axes.axhline(100, color="black", linewidth=0.8)
        axes.set_xticks(range(len(rows)), [row.case.shape for row in rows], rotation=20)
        axes.set_ylabel("% of torch.add(x, dy, out=dx)")
        case = rows[0].case
        form = "_residual" if case.residual else ""
        axes.set_title(f"{case.norm} norm backward, {case.dtype}, {device}")
        axes.set_ylim(0, 125)
        axes.legend(ncols=len(names), fontsize="small", loc="upper center")
        figure.tight_layout()
        figure.savefig(out / f"bench_{case.norm}{form}_{case.dtype}_w{case.weight_dtype}.png", dpi=100)
        pyplot.close(figure)
