"""The schedules that may take the place of one: what a search needs of them, and how gains add up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from .schedule import Schedule

MOST_STAGES = 6  # row tiles in flight, of a schedule that is tried


class Space(Protocol):
    """The schedules that may take the place of `start`."""

    @property
    def start(self) -> Schedule: ...

    def near(self, schedule: Schedule) -> tuple[Schedule, ...]:
        """Those that differ from one in one part."""

    def combined(self, times: Mapping[Schedule, float], around: Schedule) -> Schedule:
        """`around`, with each part from the fastest of those in `times` that change this part alone."""

    def legal(self, schedule: Schedule) -> bool: ...


def combined_from(
    parts: Sequence[tuple[str, ...]], times: Mapping[Schedule, float], around: Schedule
) -> Schedule:
    """`around`, with each part from the fastest of the schedules in `times` that change this part alone."""
    result = around
    for part in parts:
        alone = [s for s in times if differing(s, around) <= set(part)]
        fastest = min(alone, key=times.__getitem__)
        result = dataclasses.replace(result, **{name: getattr(fastest, name) for name in part})
    return result


def differing(one: Schedule, other: Schedule) -> set[str]:
    """Names of the fields in which two schedules differ."""
    names = (f.name for f in dataclasses.fields(one))
    return {name for name in names if getattr(one, name) != getattr(other, name)}
