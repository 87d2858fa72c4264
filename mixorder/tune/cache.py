"""Winners on disk, so that a region is tuned once per machine: one small JSON file per key.

A file is data: it is parsed, checked field by field against the schedule that it may replace, and otherwise
ignored and rewritten. Nothing in it is ever unpickled or run. The caller checks whether its schedule is legal
for the region (`SearchSpace.legal`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..schedule.plan import Plan
from .search import Candidate, Tuning, VersusInductor

FORMAT = 4  # of the files; a file of another format is foreign


def key_of(values: Mapping[str, Any]) -> str:
    """sha256 of everything that a winner depends on; the values must be plain data."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def keys(folder: Path | None) -> tuple[str, ...]:
    """The keys of all winners in a folder, in order; none where there is no folder."""
    return tuple(sorted(path.stem for path in folder.glob("*.json"))) if folder else ()


def load(folder: Path, key: str, templates: Mapping[str, Plan]) -> tuple[Candidate, Tuning] | None:
    """The winner stored under a key; None if there is none that can be trusted.

    `templates`: a schedule of each variant, whose fields and types a stored one must have.
    """
    try:
        text = (folder / f"{key}.json").read_text(encoding="utf-8")
        return _parsed(text, key, templates)
    except (OSError, ValueError, TypeError, LookupError, RecursionError):  # no file, or not what is expected
        return None


def store(folder: Path, key: str, best: Candidate, tuning: Tuning) -> None:
    """Write a winner atomically; nothing where the folder cannot be written."""
    data = {
        "format": FORMAT,
        "key": key,
        "variant": best.variant,
        "schedule": dataclasses.asdict(best.schedule),
        "tuning": dataclasses.asdict(tuning),
    }
    with contextlib.suppress(OSError):
        _replace(folder / f"{key}.json", json.dumps(data, indent=1))


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the old or the new one, also while other processes write it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=path.stem[:16], suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def _parsed(text: str, key: str, templates: Mapping[str, Plan]) -> tuple[Candidate, Tuning]:
    """The winner in a file; an error where anything differs from what `store` writes."""
    data = json.loads(text, parse_constant=_no_number)
    if (data["format"], data["key"]) != (FORMAT, key):
        raise ValueError("not a winner of this format and key")
    versus = VersusInductor(1.0, 1.0) if data["tuning"]["beside"] is not None else None
    tuning = _like(Tuning(1.0, 1.0, 1, 1.0, versus), data["tuning"])
    schedule = _like(templates[data["variant"]], data["schedule"])
    return Candidate(data["variant"], schedule), dataclasses.replace(tuning, from_cache=True)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} where a number is expected")


def _like(template: Any, data: Any) -> Any:
    """A value of the template's type, with the fields and the field types of the template."""
    if isinstance(template, tuple):
        if type(data) is not list or len(data) != len(template):
            raise ValueError(f"{data!r} where {len(template)} values are expected")
        return tuple(map(_like, template, data))
    if not dataclasses.is_dataclass(template):
        if type(data) is not type(template):
            raise ValueError(f"{data!r} where {type(template).__name__} is expected")
        return data
    fields = {f.name: getattr(template, f.name) for f in dataclasses.fields(template)}
    if not isinstance(data, dict) or set(data) != set(fields):
        raise ValueError(f"not the fields of {type(template).__name__}")
    kind: Any = type(template)
    return kind(**{name: _like(value, data[name]) for name, value in fields.items()})
