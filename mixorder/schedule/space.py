"""The schedules that may take the place of one: what a search needs of them, and how gains add up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from .limits import MAX_STAGES
from .schedule import Schedule

MOST_STAGES = MAX_STAGES + 1  # the most row tiles in flight of a candidate


class Space(Protocol):
    """The schedules that may take the place of `start`."""

    @property
    def start(self) -> Schedule: ...

    def near(self, schedule: Schedule) -> tuple[Schedule, ...]:
        """Those that differ from `schedule` in one part."""

    def combined(self, times: Mapping[Schedule, float], around: Schedule) -> Schedule:
        """`around`, with each part from the fastest schedule in `times` that changes only this part."""

    def legal(self, schedule: Schedule) -> bool: ...


def combined_from(
    space: Space, parts: Sequence[tuple[str, ...]], times: Mapping[Schedule, float], around: Schedule
) -> Schedule:
    """`around`, with each part from the fastest schedule in `times` that changes only this part. `times` must
    have `around`. The parts hardly influence each other, so their gains add up."""
    result = around
    for part in parts:
        alone = [s for s in times if differing(s, around) <= set(part)]
        fastest = min(alone, key=times.__getitem__)
        result = dataclasses.replace(result, **{name: getattr(fastest, name) for name in part})
    return result if space.legal(result) else around


def differing(one: Schedule, other: Schedule) -> set[str]:
    """Names of the fields in which two schedules differ."""
    names = (f.name for f in dataclasses.fields(one))
    return {name for name in names if getattr(one, name) != getattr(other, name)}
