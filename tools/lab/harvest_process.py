"""The child process of a harvest: the stand-in for CUDA comes before torch."""

from __future__ import annotations

import functools
from typing import Any

from support import fake_cuda


@functools.cache
def _loaded() -> Any:
    fake_cuda.load()
    from lab import harvest

    return harvest


def work(task: tuple[str, str]) -> Any:
    """See `harvest.work`; the fields as a plain object that needs no torch to be read."""
    return Plain(**vars(_loaded().work(task)))


class Plain:
    """Fields of a `harvest.Harvest`. `lost` asks for a new process after one that uses much memory."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)
