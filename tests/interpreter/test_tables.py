"""The entries of all tables, in Triton's interpreter.

Fresh buffers hold NaN (conftest.py): an element that no program writes shows.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from table import Entry, run

TABLES = sorted(path.stem for path in (Path(__file__).parent / "tables").glob("*.py"))
ENTRIES: dict[str, Entry] = {
    f"{name}: {entry}": found
    for name in TABLES
    for entry, found in importlib.import_module(f"tables.{name}").ENTRIES.items()
}


@pytest.mark.parametrize("name", ENTRIES)
def test_entry(name: str) -> None:
    run(ENTRIES[name])
