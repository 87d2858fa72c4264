"""The report of duels, from their records alone: the slowest, figures, and the row of a draw."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .duels import SLOWER_TUNED, Duel
from .tables import table

HEAD = [
    *("region", "where", "space", "stock us", "ours us", "stock / ours", "limit %"),
    *("launches", "predicted us", "reasons"),
]
DRAW = [
    *("drawn", "subgraphs, fused", "slower by 3% and 1 us", "geometric mean of the fused"),
    "prediction: median, p95 of the error",
    *("peak memory above stock's by 0.5% and 4 MiB", "less exact than stock"),
]
LISTED = 20  # of the table, those that lose most
WORST = 3  # that a row names
NAMED = 20  # subgraphs that a figure lists
WITHIN = 0.05  # of a base's time


def latest(groups: Sequence[Sequence[Duel]]) -> list[Duel]:
    """Of an entry with several records the last; one that is tuned only where there is no other."""
    return [([d for d in records if not d.tuned] or records)[-1] for records in groups]


def report(duels: Sequence[Duel], graphs: Mapping[str, int] | None = None) -> str:
    """The whole text. `graphs`: see `spelled`."""
    timed = sorted((d for d in duels if d.timed), key=lambda d: -d.loss_us)
    parts = [table(HEAD, map(cells, timed[:LISTED])), *failures(duels), spelled(timed, graphs or {})]
    parts += [figures(timed), table(DRAW, [row(duels)])]
    return "\n\n".join(filter(None, parts))


def cells(duel: Duel) -> list[str]:
    """A line of the table."""
    stock, ours = duel.stock, duel.ours
    reasons = [f"{reason} {n}" for reason, n in ours.declined.items()]
    predicted = duel.prediction
    return [
        duel.key[:16],
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


def row(duels: Sequence[Duel]) -> list[str]:
    """What a draw found, of `DRAW`'s columns."""
    timed = [d for d in duels if d.timed]
    fused = [d for d in timed if d.ours.regions]
    lost = len(duels) - len(timed)
    slower = sorted((d for d in timed if d.slower), key=lambda d: -d.loss_us)
    worst = "; ".join(f"{place(d)} {d.stock.us:.0f} -> {d.ours.us:.0f} us" for d in slower[:WORST])
    return [
        next((d.on for d in duels if d.on), "-"),
        f"{len(timed)}, {len(fused)}" + (f" ({lost} without a result)" if lost else ""),
        f"{len(slower)}{': ' if slower else ''}{worst}{' ...' if slower[WORST:] else ''}",
        mean(d.ratio for d in fused),
        errors(d.prediction for d in fused),
        str(sum(d.more_memory for d in timed)),
        str(sum(bool(d.less_exact) for d in timed)),
    ]


def figures(timed: Sequence[Duel]) -> str:
    """What the row does not say."""
    kinds = [(kind, [d for d in timed if d.kind == kind]) for kind in ("norm", "bias", "other")]
    lines = [[f"geometric mean, {kind} ({len(some)})", mean(d.ratio for d in some)] for kind, some in kinds]
    total = (sum(d.stock.us or 0 for d in timed), sum(d.ours.us or 0 for d in timed))
    lines.append(["all, ms, stock -> ours", " -> ".join(f"{us / 1e3:.2f}" for us in total)])
    lines.append(["prediction of Inductor's kernels", errors(d.unfused for d in timed)])
    lines.append(["peak memory above stock's", named(d for d in timed if d.more_memory)])
    lines.append(["less exact than stock", named(d for d in timed if d.less_exact)])
    if tuned := [d for d in timed if d.tuned]:
        slower = named(d for d in tuned if d.ratio < 1 / SLOWER_TUNED)
        lines.append([f"tuned ({len(tuned)}): slower by more than 1%", slower])
    return table(["figure", "found"], lines)


def spelled(timed: Sequence[Duel], graphs: Mapping[str, int]) -> str:
    """How many spellings take the time of their base, and which do not. Empty where there is none. A spelling
    takes the time of its graphs; two may have a graph in common. `graphs`: how many a family has; one of
    which some are not timed is left out."""
    us: dict[str, float] = defaultdict(float)
    counts = Counter(family for duel in timed for family, *_ in duel.where)
    for duel in timed:
        for family, *_ in duel.where:
            if counts[family] >= graphs.get(family, 0):
                us[family] += duel.ours.us or 0
    bases = {family: family.rpartition("/")[0] + "/0" for family in us if family.startswith("spellings/")}
    ratios = {f: us[f] / us[base] for f, base in bases.items() if f != base and us.get(base)}
    if not ratios:
        return ""
    differing = {family: ratio for family, ratio in ratios.items() if abs(ratio - 1) > WITHIN}
    share = percent(len(ratios) - len(differing), len(ratios))
    lines = [f"- {family}: {us[bases[family]]:.1f} -> {us[family]:.1f} us" for family in sorted(differing)]
    return "\n".join([f"{share} of {len(ratios)} spellings are timed within 5% of their base", *lines])


def planned(plans: Mapping[str, tuple[list[str], float]]) -> str:
    """How many spellings have the kernels of their base, or their predicted time within 5%, and which do not.
    `plans`: kernels and microseconds of each family."""
    bases = {family: plans.get(family.rpartition("/")[0] + "/0") for family in plans}
    pairs = {f: (base, plans[f]) for f, base in bases.items() if base and not f.endswith("/0")}
    same = sum(base[0] == plan[0] for base, plan in pairs.values())
    differing = [
        f"- {family}: {base[1]:.1f} -> {plan[1]:.1f} us"
        for family, (base, plan) in sorted(pairs.items())
        if base[0] != plan[0] and abs(plan[1] - base[1]) > WITHIN * base[1]
    ]
    share = percent(len(pairs) - len(differing), len(pairs))
    told = f"{share} of {len(pairs)} spellings are planned as their base"
    return "\n".join([f"{told}, {same} of them by the same kernels", *differing])


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def mean(ratios: Iterable[float]) -> str:
    """Geometric."""
    values = list(ratios)
    return f"{statistics.geometric_mean(values):.3f}" if values else "-"


def named(duels: Iterable[Duel]) -> str:
    """How many, and their keys."""
    keys = [duel.key[:16] for duel in duels]
    return f"{len(keys)}{': ' if keys else ''}{', '.join(keys[:NAMED])}{', ...' if keys[NAMED:] else ''}"


def errors(pairs: Iterable[tuple[float, float] | None]) -> str:
    """Of pairs of a predicted and a measured time: the median and the 95th percentile, and how many."""
    ranked = sorted(abs(p / m - 1) for p, m in filter(None, pairs))
    if not ranked:
        return "-"
    late = ranked[min(len(ranked) - 1, math.ceil(0.95 * len(ranked)) - 1)]
    return f"{100 * statistics.median(ranked):.1f}%, {100 * late:.1f}% ({len(ranked)})"


def failures(duels: Sequence[Duel]) -> list[str]:
    """Messages of entries without a result, and what errors are against where it is not float64."""
    failed = [duel for duel in duels if not duel.timed]
    lines = [f"- {d.key[:16]} ({place(d)}): {d.status}, {' '.join(d.message.split())[:200]}" for d in failed]
    counts = Counter(duel.reference for duel in duels if duel.reference not in ("", "float64"))
    lines += [f"- {n} x errors against {reference}" for reference, n in counts.items()]
    return ["\n".join(lines)] if lines else []
