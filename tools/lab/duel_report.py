"""The report of duels, from their records alone: a table sorted by loss, the issue's figures, a histogram."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from .duels import SLOWER_TUNED, Duel
from .tables import table

HEAD = [
    *("region", "occurs", "where", "space", "stock us", "ours us", "stock / ours", "limit %"),
    *("launches", "predicted us", "reasons"),
]
BARS = {"norm": 1.45, "bias": 1.15}
NAMED = 20  # keys that a figure lists
TICKS = (0.25, 0.5, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4, 8)
BIN = 0.05  # of the logarithm to base 2 of stock's time over ours


def latest(groups: Sequence[Sequence[Duel]]) -> list[Duel]:
    """Of an entry with several records the last; one that is tuned, or with all regions fused, only where
    there is no other."""
    return [(as_predicted(records) or records)[-1] for records in groups]


def as_predicted(records: Sequence[Duel]) -> list[Duel]:
    """The records in which mixorder fused what it predicted to be faster."""
    return [d for d in records if not (d.forced or d.tuned)]


def report(groups: Sequence[Sequence[Duel]]) -> str:
    """The whole text. A record with all regions fused says whether it was right to leave one to Inductor."""
    duels = latest(groups)
    forced = {d.key: d for records in groups for d in records if d.forced and d.timed}
    tuned = list({d.key: d for records in groups for d in records if d.tuned and d.timed}.values())
    timed = sorted((d for d in duels if d.timed), key=lambda d: -d.loss_us)
    found = [*figures(duels, timed, forced), *figures_tuned(tuned)]
    parts = [table(HEAD, map(cells, timed)), table(["figure", "found", "bar"], found)]
    parts += [repeated(list(map(as_predicted, groups))), seconds(timed), *failures(duels)]
    return "\n\n".join(filter(None, parts))


def cells(duel: Duel) -> list[str]:
    """A line of the table."""
    stock, ours = duel.stock, duel.ours
    reasons = [f"{reason} {n}" for reason, n in ours.declined.items()]
    predicted = duel.prediction
    return [
        duel.key[:16],
        str(duel.count),
        place(duel),
        "; ".join(f"{r['space']} {r['strategy']}" for r in ours.regions) or "-",
        f"{stock.us:.1f}",
        f"{ours.us:.1f}",
        f"{duel.ratio:.3f}",
        "-" if duel.share is None else f"{duel.share:.0f}",
        "-" if stock.launches is None else f"{stock.launches} -> {ours.launches}",
        f"{predicted[0]:.1f} for {predicted[1]:.1f}" if predicted else "-",
        ", ".join(reasons) or "-",
    ]


def place(duel: Duel) -> str:
    """The first occurrence, and how many other families and recipes there are."""
    places = dict.fromkeys("/".join(where) for where in duel.where)
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return next(iter(places), "-") + more


def figures(duels: Sequence[Duel], timed: Sequence[Duel], forced: Mapping[str, Duel]) -> list[list[str]]:
    """Figure, what was found, the issue's bar."""
    mixed = sum(duel.mixed for duel in timed)
    lines = [
        ["regions duelled", f"{len(timed)}, {percent(mixed, len(timed))} under autocast", "400, half"],
        ["slower by more than 3% and 1 us", named(d for d in timed if d.slower), "0"],
    ]
    for kind, bar in BARS.items():
        chosen = [duel for duel in timed if duel.kind == kind]
        lines.append([f"geometric mean, {kind} ({len(chosen)})", mean(d.ratio for d in chosen), f"{bar}"])
        fused = [duel for duel in chosen if duel.ours.regions]
        lines.append([f"... of those with a region ({len(fused)})", mean(d.ratio for d in fused), ""])
    total = [sum(d.count * (us(d) or 0) for d in timed) for us in _TIMES]
    lines.append(["all occurrences, ms, stock -> ours", " -> ".join(f"{t / 1e3:.2f}" for t in total), ""])
    lines.append(["prediction: median, p95 of the error", errors(d.prediction for d in timed), "8%, 20%"])
    lines.append(["... of Inductor's kernels", errors(d.apart for d in timed), ""])
    lines += decisions(timed, forced)
    lines.append(["less exact than stock", named(d for d in timed if d.less_exact), "0"])
    lines.append(["peak memory above stock's by 0.5%", named(d for d in timed if d.more_memory), "0"])
    lines.append(["without a result", named(d for d in duels if not d.timed), "0"])
    return lines


def figures_tuned(tuned: Sequence[Duel]) -> list[list[str]]:
    """The same of what was tuned, if anything was."""
    if not tuned:
        return []
    slower = named(d for d in tuned if d.ratio < 1 / SLOWER_TUNED)
    ratio = mean(d.ratio for d in tuned)
    return [[f"tuned ({len(tuned)}): slower by more than 1%", slower, "0"], ["... geometric mean", ratio, ""]]


_TIMES: tuple[Callable[[Duel], float | None], ...] = (lambda d: d.stock.us, lambda d: d.ours.us)


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def mean(ratios: Iterable[float]) -> str:
    """Geometric."""
    found = list(ratios)
    return f"{statistics.geometric_mean(found):.3f}" if found else "-"


def named(duels: Iterable[Duel]) -> str:
    """How many, and their keys."""
    keys = [duel.key[:16] for duel in duels]
    return f"{len(keys)}{': ' if keys else ''}{', '.join(keys[:NAMED])}{', ...' if keys[NAMED:] else ''}"


def decisions(timed: Sequence[Duel], forced: Mapping[str, Duel]) -> list[list[str]]:
    """Of entries with a region: right unless slower by the issue's bar. Of those left to Inductor: right
    unless the same bar says that all fused would have been faster."""
    fused = [duel for duel in timed if duel.ours.regions]
    left = [duel for duel in timed if not duel.ours.regions]
    judged = [other for duel in left if (other := forced.get(duel.key)) and other.ours.regions]
    right = sum(not d.slower for d in fused), sum(not d.faster for d in judged)
    total = percent(sum(right), len(fused) + len(judged))
    return [
        [f"decisions that were right ({len(fused) + len(judged)})", total, "98%"],
        [f"... to fuse ({len(fused)})", percent(right[0], len(fused)), ""],
        [f"... not to ({len(judged)} of {len(left)} judged)", percent(right[1], len(judged)), ""],
    ]


def errors(pairs: Iterable[tuple[float, float] | None]) -> str:
    """Of pairs of a predicted and a measured time: the median and the 95th percentile, and how many."""
    found = sorted(abs(p / m - 1) for p, m in filter(None, pairs))
    if not found:
        return "-"
    late = found[min(len(found) - 1, math.ceil(0.95 * len(found)) - 1)]
    return f"{100 * statistics.median(found):.1f}%, {100 * late:.1f}% ({len(found)})"


def repeated(groups: Sequence[Sequence[Duel]]) -> str:
    """How far two measurements of one entry are apart: what a difference has to exceed."""
    lines = []
    for name, us in zip(("stock", "ours"), _TIMES, strict=True):
        pairs = [(us(a), us(b)) for a, *_, b in (g for g in groups if len(g) > 1) if a.timed and b.timed]
        apart = sorted(abs(b / a - 1) for a, b in pairs if a and b)
        if apart:
            shift = statistics.median(b / a - 1 for a, b in pairs if a and b)
            lines.append(
                f"{name}: {len(apart)} entries measured again differ by {100 * statistics.median(apart):.1f}%"
                f" (median), at most {100 * apart[-1]:.1f}%; on the whole by {100 * shift:+.1f}%"
            )
    return "\n".join(lines)


def seconds(duels: Sequence[Duel]) -> str:
    """Where the time on the GPU goes: the median and the sum of each step's seconds."""
    steps = list(dict.fromkeys(step for duel in duels for step in duel.locked))
    lines = []
    for step in steps:
        found = [duel.locked[step] for duel in duels if step in duel.locked]
        lines.append([step, f"{statistics.median(found):.3f}", f"{sum(found):.1f}"])
    locked = [sum(duel.locked.values()) for duel in duels]
    if locked:
        lines.append(["all", f"{statistics.median(locked):.3f}", f"{sum(locked):.1f}"])
        for name, way in (("stock", "stock"), ("ours", "ours")):
            found = [getattr(duel, way).compile_s for duel in duels]
            lines.append([f"compile {name}", f"{statistics.median(found):.1f}", f"{sum(found):.0f}"])
    return table(["step", "median s", "sum s"], lines) if lines else ""


def failures(duels: Sequence[Duel]) -> list[str]:
    """Messages of entries without a result, and what errors are against where it is not float64."""
    failed = [duel for duel in duels if not duel.timed]
    lines = [f"- {d.key[:16]} ({place(d)}): {d.status}, {' '.join(d.message.split())[:200]}" for d in failed]
    counts = Counter(duel.reference for duel in duels if duel.reference not in ("", "float64"))
    lines += [f"- {n} x errors against {reference}" for reference, n in counts.items()]
    return ["\n".join(lines)] if lines else []


def histogram(duels: Sequence[Duel], path: Path) -> str:
    """Write a PNG of the ratios; what to tell of it."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return "no histogram: matplotlib is not installed"
    figure, axes = pyplot.subplots(figsize=(8, 4))
    kinds = {
        kind: [math.log2(d.ratio) for d in duels if d.kind == kind] for kind in ("norm", "bias", "other")
    }
    every = [ratio for ratios in kinds.values() for ratio in ratios]
    if not every:
        return "no histogram: nothing was timed"
    low, high = math.floor(min(every) / BIN), math.ceil(max(every) / BIN)
    edges = [i * BIN for i in range(low, max(high, low + 1) + 1)]
    kept = {kind: ratios for kind, ratios in kinds.items() if ratios}
    labels = [f"{kind} ({len(ratios)})" for kind, ratios in kept.items()]
    axes.hist(list(kept.values()), bins=edges, stacked=True, label=labels)
    axes.axvline(0, color="black", linewidth=0.8)
    ticks = [t for t in TICKS if low * BIN <= math.log2(t) <= high * BIN] or [1]
    axes.set_xticks([math.log2(t) for t in ticks], [f"{t:g}" for t in ticks])
    axes.set_xlabel("stock's time over mixorder's")
    axes.set_ylabel("regions")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return f"histogram: {path}"
