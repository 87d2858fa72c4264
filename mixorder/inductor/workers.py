"""Inductor's compile workers: processes without access to a GPU, in which Triton compiles.

Imports Inductor's pool inside functions: its import may start the workers.
"""

from __future__ import annotations

import functools
from typing import Any


def pool() -> Any:
    """The pool that the workers belong to; None where they are not ready."""
    from torch._inductor.async_compile import AsyncCompile

    _wait_once()
    return AsyncCompile.process_pool() if AsyncCompile.use_process_pool() else None


@functools.cache
def _wait_once() -> None:
    """Wait until the workers have started, or 15 seconds are over."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.wait_pool_ready(15)
