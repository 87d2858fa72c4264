"""Functions made from source text, and the meaning of their failures."""

from __future__ import annotations

import linecache
import re
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
    """The text of an exception."""
    return f"{type(error).__name__}: {error}"


def lost(text: str) -> bool:
    """Whether an exception of this text leaves the GPU of no use to the process."""
    return any(words in text for words in ("CUDA error", "an illegal memory access", "misaligned address"))


def last_raised(message: str) -> str:
    """A key of a crash: the failed stage of mixorder, or the last exception. Numbers become 0."""
    first = message.splitlines()[:1]
    raised = [
        line
        for line in message.splitlines()
        if re.match(r"[\w.]*(Error|Exception|Failed|Unsupported)\b", line)
    ]
    in_stage = first and "mixorder failed in stage" in first[0]
    return re.sub("[0-9]+", "0", first[0] if in_stage else (raised or first or [""])[-1])
