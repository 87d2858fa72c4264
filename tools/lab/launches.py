"""The kernels that a part of a training step launches, with their times."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

# Matrix products, attention and convolutions of cuBLAS, cuDNN, CUTLASS and torch. A loop of Inductor's may
# have a convolution's name, and ATen's loops convert.
_LIBRARY = re.compile(
    r"gemm|gemv|cublas|cutlass|nvjet|xmma|splitk|flash|fmha|attention|cudnn|conv(?!ert)|wgrad|dgrad|winograd",
    re.I,
)


def is_library(name: str) -> bool:
    """Whether a kernel is a matrix product, attention or a convolution, by its name in a profile."""
    return not name.startswith("triton_") and bool(_LIBRARY.search(name))


def profile(run: Callable[[], None]) -> list[tuple[str, float]]:
    """Names and milliseconds of the kernels that `run` launches on the GPU, in order, by torch.profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profiler:
        run()
        torch.cuda.synchronize()
    events = [
        (event.time_range.start, event.name, event.time_range.elapsed_us() / 1e3)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    ]
    copies = ("memset", "memcpy")
    return [(name, ms) for _, name, ms in sorted(events) if not name.lower().startswith(copies)]


def marked(phases: Sequence[Callable[[], Any]]) -> list[torch.cuda.Event]:
    """Call phases one after the other; the events on the current stream before, between and after them."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(phases) + 1)]
    events[0].record()
    for phase, event in zip(phases, events[1:], strict=True):
        phase()
        event.record()
    return events
