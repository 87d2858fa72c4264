"""One training step of a whole model: its measurements, and their record.

What is compiled is forward and cross entropy in float32, and with it the backward; fused AdamW stays outside.
A step is zero_grad, forward, backward, AdamW. Knows nothing of tables or of the command line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from .launches import Kind, Launches, classify, kinds_of_regions, marked, profile
from .zoo import Spec, batch_of, build

WARMUP_STEPS, LOSSES = 5, 5
PHASES = ("forward", "backward", "optimizer")


FULL = {
    "gpt2": Spec("gpt2", 12, 768, 12, 32, 1024, 50257),
    "llama": Spec("llama", 8, 2048, 16, 8, 2048, 32000),
    "vit": Spec("vit", 12, 768, 12, 256, 224, 1000),
    "llama32": Spec("llama", 32, 1024, 16, 4, 1024, 32000),
}
SMALL = {
    name: dataclasses.replace(spec, layers=2, width=64, heads=2, batch=2, extent=32, classes=96)
    for name, spec in FULL.items()
}


# Records.


@dataclass
class Run:
    """One provider's results on one model. Fields that need a GPU are None or empty without one.

    Times in milliseconds unless named otherwise, memory in bytes, `seconds` the whole run. `compile_s`: wall
    seconds of the first forward and backward, with empty caches; imports and the start of the compile workers
    are in `warm_up_s`. `peak` covers steady steps. `launches`: phase to class to [kernels, milliseconds].
    """

    model: str
    provider: str
    repeat: int
    status: str = "running"  # running, ok, err, absent
    error: str = ""
    source: str = ""
    seconds: float = 0.0
    warm_up_s: float = 0.0
    compile_s: float | None = None
    step_ms: list[float] = field(default_factory=list)
    phase_ms: dict[str, float] = field(default_factory=dict)
    held: int | None = None
    peak: int | None = None
    launches: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    copies: int | None = None
    losses: list[float] = field(default_factory=list)
    graphs: int = 0
    fused: int = 0
    declined: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def median_ms(self) -> float | None:
        return statistics.median(self.step_ms) if self.step_ms else None

    @property
    def spread(self) -> float:
        """Percent between the quartiles of the steps' times."""
        low, middle, high = statistics.quantiles(self.step_ms, n=4)
        return (high - low) / middle * 100

    def part(self, kind: str = "", phase: str = "") -> tuple[int, float]:
        """Kernels, and their milliseconds, of a class and a phase; of all where not named."""
        chosen = [
            entry
            for at, classes in self.launches.items()
            for name, entry in classes.items()
            if kind in ("", name) and phase in ("", at)
        ]
        return int(sum(n for n, _ in chosen)), sum(ms for _, ms in chosen)


# Measuring.


Compiler = Callable[[nn.Module], Callable[..., Tensor]]


class Step:
    """A training step of the compiled model: call it, or go through its phases."""

    def __init__(self, training: nn.Module, compiled: Callable[..., Tensor], spec: Spec, device: str) -> None:
        self.compiled, self.batch = compiled, batch_of(spec, device)
        self.optimizer = torch.optim.AdamW(training.parameters(), lr=1e-4, fused=device == "cuda")
        self.loss = torch.zeros(())

    def forward(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = self.compiled(*self.batch)

    def backward(self) -> None:
        self.loss.backward()

    def update(self) -> None:
        self.optimizer.step()

    @property
    def phases(self) -> tuple[Callable[[], None], ...]:
        """In the order of `PHASES`."""
        return self.forward, self.backward, self.update

    def __call__(self) -> float:
        """The loss."""
        for phase in self.phases:
            phase()
        return float(self.loss.detach())


def measure(run: Run, spec: Spec, compiler: Compiler, steps: int, cache: Path) -> None:
    """Fill `run` on a GPU; what was filled before an exception stays. `cache` is Inductor's, empty yet."""
    from torch._dynamo.utils import counters

    training = build(spec, "cuda")
    run.source = training.source
    run.warm_up_s = _warm_up(compiler)
    torch._dynamo.reset()
    counters.clear()
    step = Step(training, compiler(training), spec, "cuda")
    with _records_into(run) as kinds:
        run.compile_s = _first_run(step)
    run.graphs = counters["stats"]["unique_graphs"]
    run.losses.append(float(step.loss.detach()))
    say(run, f"compiled in {run.compile_s:.1f} s")
    step.update()
    run.losses += [step() for _ in range(LOSSES - 1)]
    for _ in range(WARMUP_STEPS):
        step()
    _time_steps(step, run, steps)
    say(run, f"{run.median_ms:.2f} ms a step, now its kernels")
    _launches(step, run, classify(cache) | kinds)


def measure_interpreted(run: Run, spec: Spec, compiler: Compiler) -> None:
    """The part that needs no GPU: losses of two steps, and the regions that were fused."""
    training = build(spec, "cpu")
    run.source = training.source
    with _records_into(run):
        step = Step(training, compiler(training), spec, "cpu")
        run.losses = [step() for _ in range(2)]


def say(run: Run, text: str) -> None:
    print(f"  {run.model} {run.provider} #{run.repeat}: {text}", file=sys.stderr, flush=True)


def _warm_up(compiler: Compiler) -> float:
    """Imports, compile workers and libraries, paid before a compile is timed; seconds."""
    start = time.perf_counter()
    small = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)).to("cuda", torch.bfloat16)
    x = torch.randn(2048, 64, device="cuda", dtype=torch.bfloat16)
    compiler(small)(x).sum().backward()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _first_run(step: Step) -> float:
    """Seconds of the first forward and backward, which compile."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step.forward()
    step.backward()
    torch.cuda.synchronize()
    return time.perf_counter() - start


@contextlib.contextmanager
def _records_into(run: Run) -> Iterator[dict[str, Kind]]:
    """Regions fused and declined meanwhile, on any thread, and warnings that name mixorder.

    What it yields has, once it is closed, what the regions' kernels are for.
    """
    kinds: dict[str, Kind] = {}
    if not run.provider.startswith("mixorder"):
        yield kinds
        return
    from mixorder.report import RegionRecord, collect

    with warnings.catch_warnings(record=True) as caught, collect() as records:
        warnings.simplefilter("always")
        yield kinds
    run.warnings = sorted({str(w.message) for w in caught if "mixorder" in str(w.message)})
    fused = [record for record in records if isinstance(record, RegionRecord)]
    run.fused = len(fused)
    kinds |= kinds_of_regions(fused)
    reasons = [record.reason.value for record in records if not isinstance(record, RegionRecord)]
    run.declined = {reason: reasons.count(reason) for reason in sorted(set(reasons))}


def _time_steps(step: Step, run: Run, steps: int) -> None:
    """GPU times of steps in a full queue, by events, and the peak of memory over them."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run.held = torch.cuda.memory_allocated()
    marks = [marked(step.phases) for _ in range(steps)]
    torch.cuda.synchronize()
    # What tensors asked for: the allocator gives each up to 1 MiB more, by what is free just then.
    run.peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    run.step_ms = [events[0].elapsed_time(events[-1]) for events in marks]
    for i, name in enumerate(PHASES):
        run.phase_ms[name] = statistics.median(events[i].elapsed_time(events[i + 1]) for events in marks)


def _launches(step: Step, run: Run, kinds: dict[str, Kind]) -> None:
    """Kernels of one step, phase by phase; none where the profiler sees none."""
    profile(step.update, {})  # the first session starts the profiler, and may miss what it should see
    found: dict[str, Launches] = {}
    for name, phase in zip(PHASES, step.phases, strict=True):
        found[name] = profile(phase, kinds if name == "backward" else {})
    if not any(part.kernels for part in found.values()):
        return
    run.copies = sum(part.copies for part in found.values())
    for name, part in found.items():
        run.launches[name] = part.by_class()
