"""Inductor's compile workers: processes without access to a GPU, in which Triton compiles.

Imports Inductor's pool inside functions: its import may start the workers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def wait_for_workers(seconds: float) -> None:
    """Wait until the workers have started, or the time is over."""
    from torch._inductor.async_compile import AsyncCompile

    AsyncCompile.wait_pool_ready(seconds)


def workers_are_ready() -> bool:
    from torch._inductor.async_compile import AsyncCompile

    return bool(AsyncCompile.use_process_pool())


def submit(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Call a function in a worker."""
    from torch._inductor.async_compile import AsyncCompile

    return AsyncCompile.process_pool().submit(function, *args)
