"""Fit the numbers in the schedule rules to measured schedules (files of `tools/tune.py`).

The rules choose a schedule with a given set of numbers; its time is looked up
and compared with the best measured schedule of the target. The fit starts from the numbers found by hand
(`lab/constants.py`) and changes one at a time, the most useful first, or two where no
single one helps, as long as that lowers the mean regret, log(time of the choice / time of the best), by more
than `THRESHOLD`. Each target's regret with numbers fitted to all others is reported, too.

    python tools/fit.py tools/data/h200.json            # the tables
    python tools/fit.py tools/data/h200.json --write    # and mixorder/schedule/fitted.json

Widths that are no multiple of 16 are left out: their rows start at any address, and load differently.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.constants import BY_HAND, neighbours, pairs
from lab.schedules import Data, Row, Target, read

from mixorder.errors import Decline
from mixorder.schedule.constants import FILE, Constants
from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.facts import ALIGNMENT
from mixorder.schedule.plan import Plan
from mixorder.strategies import STRATEGIES

THRESHOLD = 0.0005  # of the mean regret of some 40 targets: a smaller gain is noise
# A looked-up plan may differ in these. No sweep had a limit on registers.
NEAR = {"num_stages": 1, "block": 1, "warps": 1, "max_registers": 0}


@dataclasses.dataclass(frozen=True)
class Case:
    """A target, the device it was measured on, its best row, and its rows by schedule."""

    target: Target
    device: DeviceInfo
    best: Row
    measured: dict[tuple[str, Plan], float]
    near: dict[tuple[Any, ...], list[Row]]


@dataclasses.dataclass(frozen=True)
class Choice:
    """The rules' choice for a case. `us` is infinite where no similar schedule was measured."""

    strategy: str
    schedule: Plan
    us: float
    exact: bool


def cases(data: Sequence[Data]) -> list[Case]:
    """The targets to fit to: those with aligned rows and at least one schedule that ran."""
    return [
        _case(t, d.device)
        for d in data
        for t in d.targets
        if t.cols % ALIGNMENT == 0 and any(row.us for row in t.rows)
    ]


def _case(target: Target, device: DeviceInfo) -> Case:
    ran = [row for row in target.rows if row.us]
    near: dict[tuple[Any, ...], list[Row]] = {}
    for row in ran:
        near.setdefault(_without_near(row.strategy, row.schedule), []).append(row)
    measured = {(row.strategy, _as_run(row.schedule)): float(row.us or 0) for row in reversed(ran)}
    return Case(target, device, min(ran, key=_us), measured, near)


def _us(row: Row) -> float:
    return row.us or math.inf


def chosen(case: Case, constants: Constants) -> Choice:
    """The rules' choice, and its time, or that of the nearest measured schedule."""
    target = case.target
    strategy, schedule = _rule(target, case.device, constants)
    if us := case.measured.get((strategy, _as_run(schedule))):
        return Choice(strategy, schedule, us, exact=True)
    rows = case.near.get(_without_near(strategy, schedule), [])
    nearest = min(rows, key=lambda row: (_distance(row.schedule, schedule), _us(row)), default=None)
    return Choice(strategy, schedule, nearest.us if nearest and nearest.us else math.inf, exact=False)


def _rule(target: Target, device: DeviceInfo, constants: Constants) -> tuple[str, Plan]:
    """As `pipeline.build` has it."""
    for strategy in STRATEGIES:
        if facts := target.facts.get(strategy.name):
            with contextlib.suppress(Decline):
                return strategy.name, strategy.choose(facts, device, 0, constants)
    raise ValueError(f"{target.name}: no strategy takes it")


def _as_run(schedule: Plan) -> Plan:
    """Whether sums can be finished in the main kernel changes nothing where they are not."""
    return schedule.changed(skippable=schedule.finishes)


def _without_near(strategy: str, schedule: Plan) -> tuple[Any, ...]:
    return strategy, _as_run(schedule).changed(**NEAR)


def _distance(one: Plan, other: Plan) -> tuple[int, bool, bool]:
    stages = abs(one.launch.num_stages - other.launch.num_stages)
    return stages, one.second.block != other.second.block, one.second.warps != other.second.warps


class Regrets:
    """The regret of every case under any constants; each is computed once."""

    def __init__(self, found: Sequence[Case]) -> None:
        self.cases = tuple(found)
        self._known: dict[Constants, tuple[float, ...]] = {}

    def of(self, constants: Constants) -> tuple[float, ...]:
        if constants not in self._known:
            us = (chosen(case, constants).us for case in self.cases)
            self._known[constants] = tuple(
                math.log(u / _us(case.best)) for u, case in zip(us, self.cases, strict=True)
            )
        return self._known[constants]

    def mean(self, constants: Constants, without: int | None = None) -> float:
        """The mean over all cases, or all but one. It is rounded, so that equal means compare equal."""
        found = self.of(constants)
        if without is not None:
            found = found[:without] + found[without + 1 :]
        return round(statistics.fmean(found), 9)


def fit(regrets: Regrets, start: Constants, without: int | None = None) -> Constants:
    """The constants, changed by one or two at a time as long as the mean regret falls."""
    mean = regrets.mean(start, without)
    while True:
        for nearby in (neighbours, pairs):
            best = min(nearby(start), key=lambda c: regrets.mean(c, without))
            if mean - regrets.mean(best, without) > THRESHOLD:
                start, mean = best, regrets.mean(best, without)
                break
        else:
            return start


def left_out(regrets: Regrets, start: Constants) -> list[float]:
    """The regret of each case, with constants that were fitted to all others."""
    return [regrets.of(fit(regrets, start, i))[i] for i in range(len(regrets.cases))]


def by_hand(data: Sequence[Data]) -> Constants:
    """Where the fit starts, for the device of the data."""
    device = data[0].device
    return dataclasses.replace(BY_HAND, bandwidth_per_sm=round(device.bandwidth / device.num_sm, -6))


def summary(regrets: Sequence[float]) -> dict[str, float]:
    """In percent."""
    return {"mean": round(100 * statistics.fmean(regrets), 2), "maximum": round(100 * max(regrets), 2)}


def table(regrets: Regrets, before: Constants, after: Constants, others: Sequence[float]) -> str:
    """A line per case: percent of the limit, and the regret with constants fitted to the other cases."""
    lines = [f"{'':20s}  best  before  after  regret  left out  schedule"]
    for case, old, new, out in zip(regrets.cases, regrets.of(before), regrets.of(after), others, strict=True):
        best, found = 100 * case.target.limit_us / _us(case.best), chosen(case, after)
        lines.append(
            f"{case.target.name:20s} {best:5.1f}  {best * math.exp(-old):6.1f}  {best * math.exp(-new):5.1f}"
            f"  {100 * new:6.1f}  {100 * out:8.1f}  {_short(found)}"
        )
    for name, values in (("before", regrets.of(before)), ("after", regrets.of(after)), ("left out", others)):
        lines.append(f"{name}: " + ", ".join(f"{k} {v:.2f}%" for k, v in summary(values).items()))
    near = sum(not chosen(case, after).exact for case in regrets.cases)
    return "\n".join([*lines, f"{near} of {len(regrets.cases)} choices were not measured, but one like them"])


def _short(choice: Choice) -> str:
    s, launch = choice.schedule, choice.schedule.launch
    shared = f" by {s.group}, lag {s.lag}," if s.group > 1 else ""
    near = "" if choice.exact else " (near)"
    chunks = f" in {s.chunks} chunks" * (s.chunks > 1)
    return (
        f"{choice.strategy}{shared} {s.tile_rows} x {s.lanes}{chunks}, {launch.num_warps} warps,"
        f" {launch.num_stages} stages, {s.splits} splits, final {s.second.block}/{s.second.warps}{near}"
    )


def text(
    data: Sequence[Data], files: Sequence[Path], constants: Constants, regrets: dict[str, dict[str, float]]
) -> str:
    """The text of `fitted.json`: the constants, what they were fitted to, and how well."""
    meta = [{k: d.meta[k] for k in ("device", "torch", "triton", "date")} for d in data]
    measured = [{"file": f.name, **m} for f, m in zip(files, meta, strict=True)]
    return (
        json.dumps(
            {"data": measured, "regret_percent": regrets, "constants": dataclasses.asdict(constants)},
            indent=2,
        )
        + "\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    parser.add_argument("--out", type=Path, default=FILE, help="where to, if not into the package")
    args = parser.parse_args(arguments)
    data = [read(file) for file in args.files]
    regrets, start = Regrets(cases(data)), by_hand(data)
    fitted = fit(regrets, start)
    others = left_out(regrets, start)
    print(table(regrets, start, fitted, others))
    for name, old in dataclasses.asdict(start).items():
        if old != (new := getattr(fitted, name)):
            print(f"{name}: {old} -> {new}")
    if args.write:
        results = {"before": regrets.of(start), "fitted": regrets.of(fitted), "left_out": others}
        found = {name: summary(values) for name, values in results.items()}
        args.out.write_text(text(data, args.files, fitted, found))


if __name__ == "__main__":
    main()
