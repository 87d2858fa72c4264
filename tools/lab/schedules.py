"""The file of measured schedules: `tools/tune.py` writes it.

`meta` says on what was measured, and when. A target has the facts that the rules look at, by the name of the
strategy whose loops have them, the time of its limit, and one row of `fields` per schedule. `us` is null
where a schedule did not compile or run. A field of `ABSENT` may be missing, and is where all schedules of a
file have that value.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.facts import Facts, RowFacts
from mixorder.schedule.plan import Exchanged, Launch, Plan, SecondStage, Walk, Within

# Of plans whose tiles are of rows and columns, as no sweep has others. That the second kernel is launched
# early is the device's choice.
NUMBERS = {
    "xblock": lambda plan: plan.tile_rows,
    "num_warps": lambda plan: plan.launch.num_warps,
    "num_stages": lambda plan: plan.launch.num_stages,
    "r0_block": lambda plan: plan.lanes,
    "num_splits": lambda plan: plan.splits,
    "final_block": lambda plan: plan.second.block,
    "final_warps": lambda plan: plan.second.warps,
    "parts": lambda plan: plan.group,
    "part_cols": lambda plan: plan.walk[1].part,
    "depth": lambda plan: plan.lag,
    "period": lambda plan: plan.period,
    "chunks": lambda plan: plan.chunks,
    "max_registers": lambda plan: plan.launch.max_registers,
    "finishable": lambda plan: plan.second.skippable,
}
ABSENT = {"chunks": 1, "max_registers": 0, "finishable": False}
FIELDS = ("strategy", *NUMBERS, "registers", "spills", "shared", "us")
SAME = ("device_info", "torch", "triton")  # what has to agree for times to stand in one file


@dataclasses.dataclass(frozen=True)
class Row:
    """A schedule as it was measured; `us` of all launches, None where it did not run."""

    strategy: str
    schedule: Plan
    registers: int | None
    spills: int | None
    shared: int | None
    us: float | None


@dataclasses.dataclass(frozen=True)
class Target:
    """What was tuned. `facts`: by the name of each strategy that applies."""

    name: str
    dtype: str
    limit_us: float
    facts: dict[str, Facts]
    rows: tuple[Row, ...]

    @property
    def cols(self) -> int:
        return next(iter(self.facts.values())).cols

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.dtype


@dataclasses.dataclass(frozen=True)
class Data:
    """A file."""

    meta: dict[str, Any]
    targets: tuple[Target, ...]

    @property
    def device(self) -> DeviceInfo:
        return DeviceInfo(**self.meta["device_info"])

    def merged(self, other: Data) -> Data:
        """With the targets of `other`, which was measured later, in place of those of the same key."""
        if differing := [k for k in SAME if self.meta[k] != other.meta[k]]:
            raise ValueError(f"measured with other {', '.join(differing)}: give it a file of its own")
        targets = {t.key: t for t in (*self.targets, *other.targets)}
        return Data(other.meta, tuple(targets.values()))


def write(path: Path, data: Data) -> None:
    """One line per schedule, so that changes can be read."""
    rows = [_flat(row) for target in data.targets for row in target.rows]
    fields = [f for f in FIELDS if f not in ABSENT or any(row[f] != ABSENT[f] for row in rows)]
    targets = ",\n".join(_target_text(target, fields) for target in data.targets)
    head = f'"meta": {json.dumps(data.meta)},\n"fields": {json.dumps(fields)}'
    path.write_text(f'{{{head},\n"targets": [\n{targets}\n]}}\n')


def read(path: Path) -> Data:
    """What `write` wrote."""
    found = json.loads(path.read_text())
    overlap = DeviceInfo(**found["meta"]["device_info"]).overlaps
    return Data(found["meta"], tuple(_target(t, found["fields"], overlap) for t in found["targets"]))


def _target_text(target: Target, fields: list[str]) -> str:
    head = {
        "name": target.name, "dtype": target.dtype, "limit_us": target.limit_us,
        "facts": {name: _lean(facts) for name, facts in target.facts.items()},
    }  # fmt: skip
    values = ([flat[name] for name in fields] for flat in map(_flat, target.rows))
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in values)
    return f'{json.dumps(head)[:-1]}, "rows": [\n{rows}\n]}}'


def _lean(facts: Any) -> dict[str, Any]:
    """The fields that are not what they are by default."""
    found = ((f, getattr(facts, f.name)) for f in dataclasses.fields(facts))
    return {
        f.name: _lean(value) if dataclasses.is_dataclass(value) else value
        for f, value in found
        if value != f.default
    }


def _facts(plain: dict[str, Any]) -> RowFacts:
    records = {f.name: type(f.default) for f in dataclasses.fields(RowFacts) if f.name in plain}
    return RowFacts(**{n: records[n](**v) if isinstance(v, dict) else v for n, v in plain.items()})


def _flat(row: Row) -> dict[str, Any]:
    return {**vars(row), **{name: number(row.schedule) for name, number in NUMBERS.items()}}


def _target(found: dict[str, Any], fields: list[str], overlap: bool) -> Target:
    return Target(
        found["name"],
        found["dtype"],
        found["limit_us"],
        {name: _facts(facts) for name, facts in found["facts"].items()},
        tuple(_row({**ABSENT, **dict(zip(fields, row, strict=True))}, overlap) for row in found["rows"]),
    )


def _row(flat: dict[str, Any], overlap: bool) -> Row:
    return Row(flat["strategy"], plan_of(flat, overlap), *(flat[name] for name in FIELDS[-4:]))


def plan_of(flat: dict[str, Any], overlap: bool) -> Plan:
    """A plan by `NUMBERS`. `overlap`: whether its second kernel is launched early."""
    return Plan(
        (
            Walk(split=flat["num_splits"], tile=flat["xblock"], period=flat["period"]),
            Walk(
                group=flat["parts"],
                part=flat["part_cols"],
                unroll=flat["chunks"],
                tile=flat["r0_block"] // flat["chunks"],
            ),
        ),
        Launch(flat["num_warps"], flat["num_stages"], flat["max_registers"], overlap),
        SecondStage(flat["final_block"], flat["final_warps"], flat["finishable"]),
        Exchanged(flat["depth"]) if flat["depth"] else Within(),
    )
