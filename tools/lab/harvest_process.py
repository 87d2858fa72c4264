"""The child process of a harvest: the stand-in for CUDA comes before torch, where torch has none."""

from __future__ import annotations

import functools
from typing import Any

from support import fake_cuda


@functools.cache
def _loaded() -> Any:
    if fake_cuda.has_cuda():
        import torch

        torch.autograd.set_multithreading_enabled(False)  # as the stand-in does
    else:
        fake_cuda.load()
    from lab import harvest

    return harvest


def work(task: tuple[str, str]) -> dict[str, Any]:
    """See `harvest.work`; the fields of its result, which need no torch to be read."""
    return vars(_loaded().work(task))


def graphs(task: tuple[str, str]) -> tuple[dict[str, dict[str, Any]], str]:
    """See `harvest.traced`."""
    traced = _loaded().traced(task)
    return traced.graphs, traced.error
