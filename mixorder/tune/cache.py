"""Winners on disk, so that a region is tuned once per machine: one small JSON file per key.

A file is data: it is parsed, checked field by field against the schedule that it may replace, and otherwise
ignored and rewritten. Nothing in it is ever unpickled or run. The caller checks whether its schedule is legal
for the region (`Space.legal`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..schedule.schedule import Schedule
from .search import Beside, Candidate, Tuning

FORMAT = 2  # of the files; a file of another format is foreign

_unwritten: dict[Path, str] = {}  # files that could not be written, kept while the process runs


def key_of(parts: Mapping[str, Any]) -> str:
    """sha256 of everything that a winner depends on; the parts must be plain data."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def load(folder: Path, key: str, templates: Mapping[str, Schedule]) -> tuple[Candidate, Tuning] | None:
    """The winner stored under a key; None if there is none that can be trusted.

    `templates`: a schedule of each variant, whose fields and types a stored one must have.
    """
    path = folder / f"{key}.json"
    try:
        text = _unwritten[path] if path in _unwritten else path.read_text(encoding="utf-8")
        return _parsed(json.loads(text), key, templates)
    except (OSError, ValueError, RecursionError):  # no file, no JSON, not what is expected
        return None


def store(folder: Path, key: str, best: Candidate, tuning: Tuning) -> None:
    """Write a winner atomically; if the directory is not writable, keep it in this process."""
    data = {
        "format": FORMAT,
        "key": key,
        "variant": best.variant,
        "schedule": dataclasses.asdict(best.schedule),
        "heuristic_us": tuning.heuristic_us,
        "best_us": tuning.best_us,
        "candidates": tuning.candidates,
        "seconds": tuning.seconds,
        "beside": dataclasses.asdict(tuning.beside) if tuning.beside else None,
    }
    path, text = folder / f"{key}.json", json.dumps(data, indent=1)
    try:
        _replace(path, text)
        _unwritten.pop(path, None)
    except OSError:
        _unwritten[path] = text


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


def _parsed(data: Any, key: str, templates: Mapping[str, Schedule]) -> tuple[Candidate, Tuning]:
    """The winner in a file; ValueError where anything differs from what `store` writes."""
    times_of = ("heuristic_us", "best_us", "seconds")
    names = {"format", "key", "variant", "schedule", "candidates", "beside", *times_of}
    if not isinstance(data, dict) or set(data) != names or (data["format"], data["key"]) != (FORMAT, key):
        raise ValueError("not a winner of this format and key")
    if not isinstance(data["variant"], str) or data["variant"] not in templates:
        raise ValueError(f"unknown variant {data['variant']!r}")
    heuristic_us, best_us, seconds = times = [data[name] for name in times_of]
    beside = _like(Beside(1.0, 1.0), data["beside"]) if data["beside"] is not None else None
    times += [beside.fused_us, beside.inductor_us] if beside else []
    if not all(type(t) is float and math.isfinite(t) and t >= 0 for t in times):
        raise ValueError("times must be finite")
    if type(data["candidates"]) is not int or data["candidates"] < 1:
        raise ValueError("a number of candidates must be a positive integer")
    schedule = _like(templates[data["variant"]], data["schedule"])
    tuning = Tuning(heuristic_us, best_us, data["candidates"], seconds, beside, from_cache=True)
    return Candidate(data["variant"], schedule), tuning


def _like(template: Any, data: Any) -> Any:
    """A value of the template's type, with the fields and the field types of the template."""
    if isinstance(template, tuple):
        if type(data) is not list or not all(type(n) is int for n in data):
            raise ValueError(f"{data!r} where numbers are expected")
        return tuple(data)
    if not dataclasses.is_dataclass(template):
        if type(data) is not type(template):
            raise ValueError(f"{data!r} where {type(template).__name__} is expected")
        return data
    fields = {f.name: getattr(template, f.name) for f in dataclasses.fields(template)}
    if not isinstance(data, dict) or set(data) != set(fields):
        raise ValueError(f"not the fields of {type(template).__name__}")
    kind: Any = type(template)
    return kind(**{name: _like(value, data[name]) for name, value in fields.items()})
