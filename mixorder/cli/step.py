"""`python -m mixorder explain ... --time`: the step of a model by stock Inductor and mixorder, on a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from mixorder.cli.bench import Clock, Stepper, Way, cuda_clock, measure
from mixorder.cli.factory import Example

STEPS = 30
Peak = Callable[[Stepper], int]
"""Bytes of tensors at the peak of a step."""


def timed(
    example: Example,
    options: dict[str, Any],
    dynamic: bool | None,
    saved_us: float,
    clock: Clock = cuda_clock,
    peak: Peak | None = None,
) -> str:
    """Both ways' times and memory, as text. `saved_us`: what was predicted."""
    ways = [
        Way("stock", {"mixorder": False}, dynamic),
        Way("mixorder", {"mixorder": True, **options}, dynamic),
    ]
    steppers = measure(ways, example, STEPS, clock)
    for way in ways:
        way.gradients = ()  # else they count as memory
    return text(ways, [(peak or cuda_peak)(stepper) for stepper in steppers], saved_us)


def cuda_peak(stepper: Stepper) -> int:
    """By PyTorch's allocator."""
    import torch

    stepper.roots = []
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for phase in stepper.phases:
        phase()
    torch.cuda.synchronize()
    stepper.roots = []
    return int(torch.cuda.memory_stats()["requested_bytes.all.peak"])


def text(ways: Sequence[Way], peaks: Sequence[int], saved_us: float) -> str:
    """Medians, the difference with its quartiles, peaks, and what was predicted."""
    from mixorder.inspection.table import table

    stock, ours = ways
    differences = [b[1] - a[1] for a, b in zip(stock.times, ours.times, strict=True)]
    low, middle, high = statistics.quantiles(differences, n=4)
    before = stock.median(1)
    mib = [peak / 2**20 for peak in peaks]
    rows = [
        ["", "stock", "mixorder", "difference", "its quartiles"],
        [
            *("step, ms", f"{before:.3f}", f"{ours.median(1):.3f}"),
            *(f"{middle:+.3f} ({middle / before:+.1%})", f"{low:+.3f} to {high:+.3f}"),
        ],
        ["peak memory, MiB", f"{mib[0]:.1f}", f"{mib[1]:.1f}", f"{mib[1] - mib[0]:+.1f}", ""],
    ]
    lines = [
        f"Medians of {len(differences)} steps (forward and backward) each, in turns; stock: without mixorder",
        table(rows),
        f"Predicted: {-saved_us / 1e3:+.3f} ms, {-saved_us / 1e3 / before:+.1%} of stock's step.",
    ]
    if low <= 0 <= high:
        lines.append("The difference is smaller than its spread.")
    return "\n".join(lines)
