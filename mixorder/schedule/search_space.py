"""The plans that may take the place of one: what a search needs of them, and how gains add up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import ClassVar

from .device import DeviceInfo
from .facts import Facts
from .plan import Plan


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """The plans that may take the place of `start`; here none. `field_groups`: what is varied together, by
    the names of `Plan.changed`."""

    field_groups: ClassVar[tuple[tuple[str, ...], ...]] = ()

    facts: Facts
    device: DeviceInfo
    start: Plan

    def near(self, plan: Plan) -> tuple[Plan, ...]:
        """The legal ones that differ from `plan`, a legal one, in one group, each once."""
        return tuple(s for s in dict.fromkeys(self.around(plan)) if s != plan and self.fits(s))

    def around(self, plan: Plan) -> Iterable[Plan]:
        """Those that differ from `plan` in one group, legal or not."""
        return ()

    def divided(self, plan: Plan) -> tuple[Plan, ...]:
        """The legal ones with twice the programs."""
        return ()

    def legal(self, plan: Plan) -> bool:
        """Whether the kernels are correct and fit the device."""
        return self.is_varied(plan) and self.fits(plan)

    def fits(self, plan: Plan) -> bool:
        """The same of a plan that differs from the start in nothing but the groups."""
        return True

    def combined(self, times: Mapping[Plan, float], around: Plan) -> Plan:
        """`around`, with each group from the fastest plan in `times` that changes only this one. `times` must
        have `around`. The groups hardly influence each other, so their gains add up."""
        result = around
        for fields in self.field_groups:
            unchanged = [plan for plan in times if _with(fields, around, plan) == plan]
            result = _with(fields, result, min(unchanged, key=times.__getitem__))
        return result if self.legal(result) else around

    def is_varied(self, plan: Plan) -> bool:
        """Whether a plan differs from the start in nothing but the groups."""
        return _with([name for fields in self.field_groups for name in fields], self.start, plan) == plan


def _with(names: Iterable[str], plan: Plan, source: Plan) -> Plan:
    """A plan with what has these names in another one."""
    return plan.changed(**{name: source.number(name) for name in names})
