"""Functions made of source, and what their failures mean."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any


def function_from(text: str, namespace: dict[str, Any]) -> Callable[..., Any]:
    """The function `program` that a text defines. Tracebacks, and what Inductor notes of a node, show its
    lines."""
    name = f"<program {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), namespace)
    return namespace["program"]


def told(error: Exception) -> str:
    """What was raised."""
    return f"{type(error).__name__}: {error}"


def lost(text: str) -> bool:
    """Whether an exception of this text leaves the GPU of no use to the process."""
    return any(words in text for words in ("CUDA error", "an illegal memory access", "misaligned address"))
