"""The constants of the schedule rules, and what a sweep tries instead of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TypeVar

from mixorder.schedule.constants import Constants, SharedRows

T = TypeVar("T", Constants, SharedRows)

GRID: dict[str, tuple[float, ...]] = {
    "resident_bytes": (16 * 1024, 32 * 1024, 64 * 1024),
    "few_tiles_share": (0.25, 0.5, 1.0),
    "in_flight": (1, 2, 3),
    "programs_per_sm": (1, 2, 4, 8),
    "min_tiles": (0, 4, 8, 16, 32),
    "min_warps_per_sm": (4, 8, 16),
    "elements_per_thread": (8, 16, 32),
    "stages": (2, 3, 4),
    "final_per_thread": (16, 32, 64, 128),
    "chunk_saving": (0.25, 0.375, 1.0),
    "min_chunk": (32, 256, 512, 1024),
    "rounding": (1.0, 1.25),
}
SHARED: dict[str, tuple[float, ...]] = {
    "tile_bytes": (16 * 1024, 32 * 1024),
    "parts_of_4": (4, 8, 12, 16),
    "parts_of_2": (8, 16, 32),
    "words_of_2_rows": (16, 32, 64),
    "max_depth": (1, 2, 3),
    "full_registers": (246, 262, 278, 294),
    "least_depth": (0, 1, 2),
    "records_for_4_stages": (0, 16, 32, 64, 128),
}


def neighbours(constants: Constants) -> Iterator[Constants]:
    """The constants with one of them changed to another value of its grid."""
    yield from _changed(constants, GRID)
    for shared in _changed(constants.shared, SHARED):
        yield dataclasses.replace(constants, shared=shared)


def _changed(record: T, grid: dict[str, tuple[float, ...]]) -> Iterator[T]:
    for name, values in grid.items():
        for value in values:
            if value != getattr(record, name):
                yield dataclasses.replace(record, **{name: value})
