"""The kernels that a part of a training step launches, with their times."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from mixorder.inductor.mutation_cache import PREFIX

# Matrix products, attention and convolutions of cuBLAS, cuDNN, CUTLASS and torch. A loop of Inductor's may
# have a convolution's name, and ATen's loops convert.
_LIBRARY = re.compile(
    r"gemm|gemv|cublas|cutlass|nvjet|xmma|splitk|flash|fmha|attention|cudnn|conv(?!ert)|wgrad|dgrad|winograd",
    re.I,
)


def is_library(name: str) -> bool:
    """Whether a kernel is a matrix product, attention or a convolution, by its name in a profile."""
    return not name.startswith("triton_") and bool(_LIBRARY.search(name))


def maker(name: str) -> str:
    """Who made a kernel, by its name in a profile: mixorder, Inductor, a library, or torch itself."""
    if name.startswith("triton_"):
        return "mixorder" if name.startswith(PREFIX) else "Inductor"
    return "library" if is_library(name) else "torch"


@contextlib.contextmanager
def moved(num_bytes: dict[str, int]) -> Iterator[None]:
    """Adds to `num_bytes`, by a Triton kernel's name, the bytes of each launch inside: of each tensor that it
    reads or writes once. Inductor knows them of its own kernels that were compiled with `benchmark_kernel`,
    also where a kernel takes a slice; of others they are those of the arguments."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    original = CachingAutotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        told = self.inductor_meta.get("kernel_num_gb")
        size = sum(map(_stored, args)) if told is None else round(1e9 * told)
        num_bytes[self.fn.__name__] = num_bytes.get(self.fn.__name__, 0) + size
        return original(self, *args, **kwargs)

    with mock.patch.object(CachingAutotuner, "run", run):
        yield


def _stored(x: Any) -> int:
    """Bytes of a tensor's elements, of an expanded one those in memory; 0 of anything else."""
    if not isinstance(x, Tensor):
        return 0
    numel = 1
    for size, stride in zip(x.shape, x.stride(), strict=True):
        numel *= size if stride else 1
    return numel * x.element_size()


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
