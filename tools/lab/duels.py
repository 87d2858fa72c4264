"""The records of duels, as a line of JSON each, and what follows from them. Needs no torch.

A duel is one subgraph of the corpus compiled by stock Inductor and with mixorder, both timed in turns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .measuring import known, read

SLOWER, SLOWER_US = 1.03, 1.0  # the bar: slower by more than this factor and these microseconds
SLOWER_TUNED = 1.01  # and the bar of what is tuned
MORE_ERROR, NO_ERROR = 1.25, 1e-6  # errors below the latter are a few roundings of fp32, in another order
MORE_MEMORY = 1.005
MORE_BYTES = 4 << 20  # partial results are fewer, and go where a model's peak is not


@dataclass
class Way:
    """One way's results; None or empty where the device does not tell.

    `us`: the median, `low` and `high` the quartiles, `samples` how many. `launches`: kernels, memsets and
    copies of a call. `kernels`: name and microseconds, in order. `peak`: bytes beyond the inputs. `errors`:
    of each result, relative, by the norm. `compile_s`: processor seconds. `regions`: of mixorder, what of a
    `RegionRecord` is plain numbers and names. `declined`: reason to number; `details`: of
    each, in words."""

    status: str = "ok"  # or failed
    message: str = ""
    us: float | None = None
    low: float | None = None
    high: float | None = None
    samples: int = 0
    launches: int | None = None
    kernels: list[tuple[str, float]] = field(default_factory=list)
    peak: int | None = None
    errors: list[float] = field(default_factory=list)
    compile_s: float = 0.0
    regions: list[dict[str, Any]] = field(default_factory=list)
    declined: dict[str, int] = field(default_factory=dict)
    details: list[str] = field(default_factory=list)
    same_code: bool = False  # as stock's: not timed again


@dataclass
class Duel:
    """One entry's results. `status`: ok, failed, hung or crashed. `where`: family, recipe, direction of each
    occurrence. `kind`: norm (an inner and an outer reduction), bias (outer ones only) or other. `num_bytes`:
    of the inputs and results, each once; `limit_us`: torch.add's time for as many. `tuned`: by
    `mixorder_autotune`. `reference`: what errors are against. `locked`: seconds on the GPU, by step. `on`:
    the day, the card and torch."""

    key: str
    status: str = "ok"
    message: str = ""
    count: int = 0
    where: list[list[str]] = field(default_factory=list)
    outcome: Any = None
    kind: str = "other"
    num_bytes: int = 0
    limit_us: float | None = None
    tuned: bool = False
    reference: str = ""
    stock: Way = field(default_factory=Way)
    ours: Way = field(default_factory=Way)
    locked: dict[str, float] = field(default_factory=dict)
    waited_s: float = 0.0
    seconds: float = 0.0
    on: str = ""

    @property
    def timed(self) -> bool:
        return bool(self.status == "ok" and self.stock.us and self.ours.us)

    @property
    def ratio(self) -> float:
        """Stock's time over ours: more than 1 where mixorder is faster."""
        assert self.stock.us and self.ours.us
        return self.stock.us / self.ours.us

    @property
    def loss_us(self) -> float:
        assert self.stock.us and self.ours.us
        return self.ours.us - self.stock.us

    @property
    def slower(self) -> bool:
        """By the issue's bar."""
        return self.ratio < 1 / SLOWER and self.loss_us > SLOWER_US

    @property
    def share(self) -> float | None:
        """Percent of the limit."""
        return 100 * self.limit_us / self.ours.us if self.limit_us and self.ours.us else None

    @property
    def prediction(self) -> tuple[float, float] | None:
        """Predicted and measured microseconds of the regions' kernels: the call's without its other kernels'.
        None where nothing was fused or the kernels are not known."""
        names = tuple(name for region in self.ours.regions for name in region["kernels"])
        if not self.timed or not names or not self.ours.kernels:
            return None
        inductor_us = sum(us for name, us in self.ours.kernels if not name.startswith(names))
        predicted = sum(region["expected"]["fused_us"] for region in self.ours.regions)
        measured = (self.ours.us or 0) - inductor_us
        return (predicted, measured) if measured > 0 else None

    @property
    def unfused(self) -> tuple[float, float] | None:
        """Predicted and measured microseconds of Inductor's kernels, where all of the graph is in regions."""
        names = tuple(name for region in self.ours.regions for name in region["kernels"])
        if not self.timed or not names or not self.ours.kernels or not self.stock.us:
            return None
        whole = all(name.startswith(names) for name, _ in self.ours.kernels)
        predicted = sum(region["expected"].get("apart_us", 0) for region in self.ours.regions)
        return (predicted, self.stock.us) if whole and predicted else None

    @property
    def less_exact(self) -> list[int]:
        """The results whose error is larger than stock's by more than a small factor."""
        pairs = zip(self.ours.errors, self.stock.errors, strict=False)
        return [i for i, (mine, stock) in enumerate(pairs) if mine > max(MORE_ERROR * stock, NO_ERROR)]

    @property
    def more_memory(self) -> bool:
        if not (self.stock.peak and self.ours.peak):
            return False
        return self.ours.peak > max(MORE_MEMORY * self.stock.peak, self.stock.peak + MORE_BYTES)


def parse(plain: dict[str, Any]) -> Duel:
    """A record of its JSON."""
    ways = {name: Way(**known(Way, plain[name])) for name in ("stock", "ours") if name in plain}
    return Duel(**{**known(Duel, plain), **ways})


def load(paths: Iterable[Path]) -> list[list[Duel]]:
    """For each key of these files, its records in order."""
    records: dict[str, list[Duel]] = {}
    for duel in map(parse, read(paths)):
        records.setdefault(duel.key, []).append(duel)
    return list(records.values())
