"""Whole models by stock Inductor and mixorder: the records, a line of JSON each, and their report."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .duel_report import mean, percent
from .duels import MORE_ERROR, MORE_MEMORY, NO_ERROR
from .launches import maker
from .measuring import known, of_commit, read
from .tables import table

MORE_TIME = 1.005  # of the GPU


@dataclass
class Side:
    """One way's results; None or empty where the device does not tell.

    Milliseconds of a forward and backward, medians: `step_ms` between events (`low`, `high` the quartiles),
    `gpu_ms` of its kernels, `library_ms` of those that are matrix products, attention or convolutions.
    `rounds`, `library_rounds`: the same of each profile, stock's and ours in turns. `peak`: bytes beyond what
    is held between steps. `compile_s`: processor seconds. `kernels`: the longest, name to [launches,
    milliseconds, the mean of the profiles]. `errors`: the median and the largest over the gradients,
    relative, by the norm. `moved`: bytes of a step's launches of a Triton kernel, by name, of each tensor
    once; only of a profile.

    With an optimizer, whose work is part of a step, `peak` is all that is held. `first_s`: seconds of the
    first step, which compiles. `losses`: of each step until the last one that was timed.
    """

    step_ms: float | None = None
    low: float | None = None
    high: float | None = None
    gpu_ms: float | None = None
    library_ms: float | None = None
    rounds: list[float] = field(default_factory=list)
    library_rounds: list[float] = field(default_factory=list)
    launches: int | None = None
    peak: int | None = None
    compile_s: float = 0.0
    first_s: float = 0.0
    losses: list[float] = field(default_factory=list)
    graphs: int = 0
    kernels: dict[str, list[float]] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)
    fused: int = 0
    declined: dict[str, int] = field(default_factory=dict)

    @property
    def other_ms(self) -> float | None:
        return None if self.gpu_ms is None else self.gpu_ms - (self.library_ms or 0)


@dataclass
class Match:
    """A family in a recipe. `status`: ok, absent (it cannot be built here), failed, hung or crashed.
    `reference`: what errors are against. `add`: bytes a microsecond of a long `torch.add`; only of a profile.
    `locked`: seconds on the GPU, by step. `items`: tokens or images (the `unit`) of a step with an optimizer,
    0 without one. `on`: the day, the card, the versions, and the commit if the record is kept."""

    family: str
    recipe: str
    status: str = "ok"
    message: str = ""
    parameters: int = 0
    items: int = 0
    unit: str = ""
    reference: str = ""
    add: float | None = None
    stock: Side = field(default_factory=Side)
    ours: Side = field(default_factory=Side)
    locked: dict[str, float] = field(default_factory=dict)
    waited_s: float = 0.0
    seconds: float = 0.0
    on: str = ""

    @property
    def timed(self) -> bool:
        return bool(self.status == "ok" and self.stock.step_ms and self.ours.step_ms)

    @property
    def name(self) -> str:
        return f"{self.family} {self.recipe}"

    def ratio(self, of: Callable[[Side], float | None]) -> float | None:
        """Stock's over ours."""
        stock, ours = of(self.stock), of(self.ours)
        return stock / ours if stock and ours else None

    @property
    def uncertainty(self) -> float | None:
        """Standard error of the ratio of the times on the GPU, relative, from profiles in turns."""
        pairs = [math.log(a / b) for a, b in zip(self.stock.rounds, self.ours.rounds, strict=False)]
        return statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None

    @property
    def different(self) -> tuple[float, float] | None:
        """Milliseconds of the kernels, by name without its number, that the ways do not launch equally often.

        Others do the same work. What they take differs by the clock, and by which of its candidates Inductor
        found faster: on an H200 by up to 3% of a model's time on the GPU, mixorder or not.
        """
        if self.stock.gpu_ms is None or self.ours.gpu_ms is None:
            return None
        first, second = (sum(ms for _, ms in kernels.values()) for kernels in self._differ())
        return first, second

    def _differ(self) -> list[dict[str, list[float]]]:
        """Of each way the kernels, by name without its number, that the other does not launch as often."""
        stock, ours = _by_name(self.stock), _by_name(self.ours)
        alike = {name for name, (launches, _) in stock.items() if ours.get(name, [0])[0] == launches}
        return [{n: kernel for n, kernel in side.items() if n not in alike} for side in (stock, ours)]

    def brief(self, commit: str) -> Match:
        """What is kept of it: without the kernels that both ways launch equally often, bytes of kernels, and
        the build of torch; with its commit."""
        sides = zip((self.stock, self.ours), self._differ(), strict=True)
        stock, ours = (dataclasses.replace(side, kernels=kernels, moved={}) for side, kernels in sides)
        return dataclasses.replace(self, stock=stock, ours=ours, on=of_commit(self.on, commit))

    @property
    def adds_time(self) -> bool:
        """Whether the kernels that differ take longer than stock's, by 0.5% of the time on the GPU."""
        times = self.different
        return times is not None and times[1] - times[0] > (MORE_TIME - 1) * (self.stock.gpu_ms or 0)

    @property
    def less_exact(self) -> bool:
        if self.reference != "float32":
            return False
        pairs = zip(self.ours.errors, self.stock.errors, strict=False)
        return any(mine > max(MORE_ERROR * stock, NO_ERROR) for mine, stock in pairs)


def _by_name(side: Side) -> dict[str, list[float]]:
    """Launches and milliseconds of a way's kernels, by name without the number that Inductor gives them."""
    kernels: dict[str, list[float]] = {}
    for name, (launches, ms) in side.kernels.items():
        before = kernels.get(plain := re.sub(r"_\d+$", "", name), [0, 0.0])
        kernels[plain] = [before[0] + launches, round(before[1] + ms, 4)]
    return kernels


def parse(plain: dict[str, Any]) -> Match:
    """A record of its JSON."""
    sides = {name: Side(**known(Side, plain[name])) for name in ("stock", "ours") if name in plain}
    return Match(**{**known(Match, plain), **sides})


def load(paths: Iterable[Path]) -> list[Match]:
    """The last record of each family and recipe."""
    return list({(m.family, m.recipe): m for m in map(parse, read(paths))}.values())


# The report.

HEAD = [
    "model",
    "recipe",
    "step ms",
    "GPU ms",
    "ratio",
    "outside library ms",
    "ratio",
    "different ms",
    "peak MiB",
]
HEAD += ["compile s", "launches", "regions", "declined", "error"]


def gpu(side: Side) -> float | None:
    return side.gpu_ms


def outside(side: Side) -> float | None:
    return side.other_ms


def report(matches: Sequence[Match]) -> str:
    """A table sorted by the ratio of the GPU time, with its standard error, and the issue's figures. Models
    with an optimizer have a table of their own."""
    timed = sorted((m for m in matches if m.timed), key=lambda m: m.ratio(gpu) or 0)
    trained, untrained = [m for m in timed if m.items], [m for m in timed if not m.items]
    parts = [table(TRAINED, map(trained_cells, trained))] if trained else []
    if untrained or not trained:
        parts += [table(HEAD, map(cells, untrained)), table(["figure", "found", "bar"], figures(untrained))]
    rest = [m for m in matches if not m.timed]
    lines = [f"- {m.name}: {m.status}, {' '.join(m.message.split())[:200]}" for m in rest]
    return "\n\n".join([*parts, *(["\n".join(lines)] if lines else [])])


def draw(matches: Sequence[Match], path: Path) -> None:
    """GPU time of a step of each model with an optimizer and a region, in percent of Inductor's, as a
    picture: library kernels, which are the same in both ways, and all else. Nothing without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return
    trained = sorted(
        (m for m in matches if m.items and m.ours.fused and m.ratio(gpu)), key=lambda m: m.ratio(gpu) or 0
    )
    if not trained:
        return
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.5 * len(trained)))
    for way, color, at in (("Inductor", "#1f77b4", 0.2), ("mixorder", "#d62728", -0.2)):
        sides = [(m.stock if way == "Inductor" else m.ours, 100 / (gpu(m.stock) or 1)) for m in trained]
        total = [(gpu(side) or 0) * percent for side, percent in sides]
        all_else = [(outside(side) or 0) * percent for side, percent in sides]
        libraries, places = (
            [all_ - n for all_, n in zip(total, all_else, strict=True)],
            [i + at for i in range(len(trained))],
        )
        axes.barh(
            places,
            libraries,
            0.36,
            color="#c8c8c8",
            label="matrix products, attention, convolutions" if at > 0 else None,
        )
        drawn = axes.barh(places, all_else, 0.36, left=libraries, color=color, label=f"all else, {way}")
        axes.bar_label(drawn, [f"{n:.1f}" for n in total], padding=2, fontsize="small")
    axes.set_yticks(range(len(trained)), [f"{m.family.removeprefix('whole/')}, {m.recipe}" for m in trained])
    axes.set_xlabel("GPU time of a step, % of Inductor's")
    axes.set_xlim(0, 112)
    figure.legend(loc="upper center", ncols=3, fontsize="small")
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def both(match: Match, of: Callable[[Side], float | None], form: str = ".2f", scale: float = 1) -> str:
    """Stock -> ours."""
    values = [of(match.stock), of(match.ours)]
    return " -> ".join("-" if value is None else format(value / scale, form) for value in values)


def quotient(match: Match, of: Callable[[Side], float | None]) -> str:
    """Stock's over ours; of the time on the GPU with its standard error."""
    ratio = match.ratio(of)
    error = match.uncertainty if of is gpu else None
    return (f"{ratio:.3f}" if ratio else "-") + (f" ±{error:.3f}" if error is not None else "")


def cells(match: Match) -> list[str]:
    """A line of the table."""
    return [
        match.family,
        match.recipe,
        both(match, lambda side: side.step_ms),
        both(match, gpu),
        quotient(match, gpu),
        both(match, outside),
        quotient(match, outside),
        "-" if match.different is None else " -> ".join(f"{ms:.2f}" for ms in match.different),
        both(match, lambda side: side.peak, ".0f", 2**20),
        both(match, lambda side: side.compile_s, ".1f"),
        both(match, lambda side: side.launches, ".0f"),
        str(match.ours.fused),
        declined(match),
        both(match, lambda side: side.errors[0] if side.errors else None, ".1e"),
    ]


def declined(match: Match) -> str:
    return ", ".join(f"{reason} {n}" for reason, n in match.ours.declined.items()) or "-"


TRAINED = ["model", "recipe", "a step", "a second", "step ms", "ratio", "GPU ms", "ratio", "different ms"]
TRAINED += ["peak MiB", "first step s", "loss, first", "loss, last", "steps", "regions", "declined"]


def trained_cells(match: Match) -> list[str]:
    """A line of the table of models with an optimizer."""
    items = match.items
    return [
        match.family,
        match.recipe,
        f"{items} {match.unit}",
        both(match, lambda side: 1e3 * items / side.step_ms if side.step_ms else None, ".0f"),
        both(match, lambda side: side.step_ms),
        quotient(match, lambda side: side.step_ms),
        both(match, gpu),
        quotient(match, gpu),
        "-" if match.different is None else " -> ".join(f"{ms:.2f}" for ms in match.different),
        both(match, lambda side: side.peak, ".0f", 2**20),
        both(match, lambda side: side.first_s, ".1f"),
        both(match, lambda side: side.losses[0], ".4f"),
        both(match, lambda side: side.losses[-1], ".4f"),
        str(len(match.ours.losses)),
        str(match.ours.fused),
        declined(match),
    ]


def figures(timed: Sequence[Match]) -> list[list[str]]:
    """Figure, what was found, the issue's bar."""
    profiled = [m for m in timed if m.ratio(gpu)]
    slower = [m for m in profiled if (m.ratio(gpu) or 1) < 1 / MORE_TIME]
    ratios = [ratio for m in timed if (ratio := m.ratio(outside))]
    peaks = [m for m in timed if m.stock.peak and (m.ours.peak or 0) > MORE_MEMORY * m.stock.peak]
    steps = [ratio for m in timed if (ratio := m.ratio(lambda side: side.step_ms))]
    compiles = [ratio for m in timed if (ratio := m.ratio(lambda side: side.compile_s))]
    certain = [error for m in profiled if (error := m.uncertainty) is not None]
    errors = f"{100 * statistics.median(certain):.2f}%, {100 * max(certain):.2f}%" if certain else "-"
    mixed = percent(sum("autocast" in m.recipe for m in timed), len(timed))
    return [
        ["models", f"{len(timed)}, {mixed} under autocast", "40"],
        ["GPU time above stock's by 0.5%", named(slower), "0"],
        ["... in kernels that differ", named([m for m in profiled if m.adds_time]), "0"],
        ["standard error of a ratio, median and largest", errors, ""],
        ["geometric mean, outside library kernels", mean(ratios), "1.12"],
        ["geometric mean, step", mean(steps), ""],
        ["geometric mean, compile", mean(compiles), ""],
        ["peak memory above stock's by 0.5%", named(peaks), "0"],
        ["less exact than stock", named([m for m in timed if m.less_exact]), "0"],
    ]


def named(matches: Sequence[Match]) -> str:
    return f"{len(matches)}{': ' if matches else ''}{', '.join(m.name for m in matches)}"


# The profile.

PROFILE = ["kernel", "by", "calls", "us", "MB", "% of an add", "us above an add"]


def profile(match: Match) -> str:
    """Of each way a table of the kernels outside libraries, those first that take longest, behind sums by
    who made them. A tensor that is still in L2 is read faster than an add reads it."""
    told = f"add: {match.add / 1e6:.2f} TB/s" if match.add else "add: not timed"
    parts = [f"# {match.name}", told]
    for way, side in (("stock", match.stock), ("mixorder", match.ours)):
        kernels = [
            (name, maker(name), *counts, side.moved.get(name)) for name, counts in side.kernels.items()
        ]
        sums: dict[str, list[Any]] = {}
        for _, by, calls, ms, size in kernels:
            total = sums.setdefault(by, [0, 0.0, 0])
            total[0], total[1] = total[0] + calls, total[1] + ms
            total[2] = None if None in (total[2], size) else total[2] + size
        outside = sorted((k for k in kernels if k[1] != "library"), key=lambda k: -k[3])
        lines = [("all", by, *total) for by, total in sums.items()] + outside
        parts += [f"## {way}", table(PROFILE, (_profiled(match.add, *line) for line in lines))]
    return "\n\n".join(parts)


def _profiled(add: float | None, name: str, by: str, calls: float, ms: float, size: int | None) -> list[str]:
    us = 1e3 * ms
    least = size / add if size and add else None
    shares = ["-", "-"] if least is None else [f"{100 * least / us:.0f}", f"{us - least:.1f}"]
    return [name, by, f"{calls:.0f}", f"{us:.1f}", f"{size / 1e6:.1f}" if size else "-", *shares]
