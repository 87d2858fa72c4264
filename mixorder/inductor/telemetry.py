"""Torch's records of a compile: its counters, and the artifacts that tlparse shows."""

from __future__ import annotations

from collections.abc import Callable

from torch._dynamo.utils import counters
from torch._logging import trace_structured


def count(name: str, by: int = 1) -> None:
    """Add to mixorder's counter of this name."""
    counters["mixorder"][name] += by


def trace_json(text: Callable[[], str]) -> None:
    """Add an artifact `mixorder` to the current compile's trace; `text` is called only if tracing is on."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": "mixorder", "encoding": "json"},
        payload_fn=text,
        expect_trace_id=False,  # a tool may run the pass outside of a compile
    )
