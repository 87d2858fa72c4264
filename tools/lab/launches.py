"""The kernels that a part of a training step launches, with their times and classes.

Classes of the backward's kernels: `norm`, `bias` and `other`. For Inductor's own kernels they come from
the graph fragment that its output code states above each kernel: a reduction that keeps the batch (no dim
0) makes it a norm's, unless it is a softmax's; a sum over dim 0 alone that keeps it as size 1 is a Linear's
bias (or an embedding that the batch shares); any other sum over dim 0 is the gradient of a norm's weight. A
kernel that has several is a norm's before it is a bias's. Inductor's own mix-order reduction ends in ATen
sums and casts: they belong to the kernel before them. mixorder's kernels have the classes of their regions:
a bias's where the region has no inner reduction.
Two kernels with the same text are one to Inductor, which states the first one's fragment only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .output_code import KERNEL

NORM, BIAS, OTHER = "norm", "bias", "other"
MIX_ORDER = "RSPLIT_SIZE"  # only Inductor's mix-order kernels have it

# Matrix products, attention and convolutions of cuBLAS, cuDNN, CUTLASS and torch. A loop of Inductor's may
# have a convolution's name, and ATen's loops convert.
_LIBRARY = re.compile(
    r"gemm|gemv|cublas|cutlass|nvjet|xmma|splitk|flash|fmha|attention|cudnn|conv(?!ert)|wgrad|dgrad|winograd",
    re.I,
)
_ATEN_LOOP = re.compile(r"at::native::.*(reduce_kernel|elementwise)")
_REDUCTION = re.compile(
    r"target=torch\.ops\.aten\.(?:sum|mean|prod|amax|amin|var|var_mean)\.\w+\]"
    r"\(args = \(%\w+, \[([-\d, ]*)\](, True)?"
)


@dataclass(frozen=True)
class Kind:
    """A kernel's class, and whether ATen kernels after it finish its work."""

    name: str
    continued: bool = False


def classify(cache: Path) -> dict[str, Kind]:
    """Kinds by name of the Triton kernels in the output code of all backward graphs under `cache`."""
    kinds: dict[str, Kind] = {}
    for path in sorted(cache.rglob("*.py")):
        text = path.read_text(errors="replace")
        if "async_compile" in text and "tangents_1" in text:
            kinds |= kinds_in(text)
    return kinds


def kinds_in(output_code: str) -> dict[str, Kind]:
    """Kinds of the Triton kernels that one graph's output code defines, without mixorder's."""
    return {
        name: Kind(_kind(name, comment), MIX_ORDER in text)
        for comment, name, text in KERNEL.findall(output_code)
    }


def _kind(name: str, fragment: str) -> str:
    found = {OTHER}
    for dims, keepdim in _REDUCTION.findall(fragment):
        reduced = {int(d) for d in dims.split(",") if d.strip()}
        if 0 in reduced:
            found.add(BIAS if reduced == {0} and keepdim else NORM)
        elif "softmax" not in name:
            found.add(NORM)
    return next(kind for kind in (NORM, BIAS, OTHER) if kind in found)


def kinds_of_regions(records: list[Any]) -> dict[str, Kind]:
    """Kinds by name of mixorder's kernels, from the records of the regions that it fused."""
    kinds: dict[str, Kind] = {}
    for record in records:
        for kernel in record.kernels:
            inner = NORM if record.inner and "softmax" not in kernel.name else OTHER
            alone = BIAS if record.outer else OTHER
            kinds[kernel.name] = Kind(inner if record.inner else alone)
    return kinds


def is_library(name: str) -> bool:
    """Whether a kernel is a matrix product, attention or a convolution, by its name in a profile."""
    return not name.startswith("triton_") and bool(_LIBRARY.search(name))


@dataclass
class Launches:
    """Kernels in the order in which they ran: name, class, milliseconds; and the number of copies."""

    kernels: list[tuple[str, str, float]] = field(default_factory=list)
    copies: int = 0

    def by_class(self) -> dict[str, list[float]]:
        """Number and milliseconds per class."""
        sums: dict[str, list[float]] = {}
        for _, kind, ms in self.kernels:
            total = sums.setdefault(kind, [0, 0.0])
            total[0] += 1
            total[1] += ms
        return sums


def profile(run: Callable[[], None], kinds: dict[str, Kind]) -> Launches:
    """The kernels that `run` launches on the GPU, by torch.profiler."""
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
    return in_classes([(name, ms) for _, name, ms in sorted(events)], kinds)


def in_classes(events: list[tuple[str, float]], kinds: dict[str, Kind]) -> Launches:
    """Names and milliseconds of what ran, in order, with their classes."""
    launches = Launches()
    before = Kind(OTHER)
    for name, ms in events:
        if name.lower().startswith(("memset", "memcpy")):
            launches.copies += 1
            continue
        if not (before.continued and _ATEN_LOOP.search(name)):
            before = kinds.get(name, Kind(OTHER))
        launches.kernels.append((name, before.name, ms))
    return launches


def marked(phases: Sequence[Callable[[], Any]]) -> list[torch.cuda.Event]:
    """Call phases one after the other; the events on the current stream before, between and after them."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(phases) + 1)]
    events[0].record()
    for phase, event in zip(phases, events[1:], strict=True):
        phase()
        event.record()
    return events
