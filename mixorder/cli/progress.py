"""A progress bar on stderr: tqdm's if it is installed, else a plain one; none without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
_EVERY_S = 0.1


def progress(items: Iterable[T], what: str) -> Iterator[T]:
    """The items, with a bar that shows how many have been taken, and the total if `items` has a length."""
    if not sys.stderr.isatty():
        yield from items
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield from _plain(items, what)
    else:
        yield from tqdm(items, desc=what, leave=False, file=sys.stderr)


def _plain(items: Iterable[T], what: str) -> Iterator[T]:
    total = f" of {len(items)}" if isinstance(items, Sized) else ""
    shown = 0.0
    for i, item in enumerate(items):
        if time.perf_counter() - shown > _EVERY_S:
            shown = time.perf_counter()
            print(f"\r{what}: {i}{total}", end="", file=sys.stderr, flush=True)
        yield item
    print(f"\r{what}: done{' ' * len(total)}", file=sys.stderr, flush=True)
