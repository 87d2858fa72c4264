"""Facts of rows by the names of their numbers, whichever record has each."""

from __future__ import annotations

import dataclasses
from typing import Any

from mixorder.schedule.facts import RowFacts

OWNERS = {
    field.name: record.name
    for record in dataclasses.fields(RowFacts)
    if dataclasses.is_dataclass(record.default)
    for field in dataclasses.fields(record.default)
}


def row_facts(rows: int, cols: int, **numbers: Any) -> RowFacts:
    return with_numbers(RowFacts(rows, cols), **numbers)


def with_numbers(facts: RowFacts, **numbers: Any) -> RowFacts:
    for name, value in numbers.items():
        if name in OWNERS:
            record = dataclasses.replace(getattr(facts, OWNERS[name]), **{name: value})
            facts = dataclasses.replace(facts, **{OWNERS[name]: record})
        else:
            facts = dataclasses.replace(facts, **{name: value})
    return facts
