"""What is asked of a device that runs compiled graphs: microseconds, launches, kernels and memory.

`Gpu` measures with the one timer of CUDA graphs (`mixorder/tune/timing.py`). `Host` lets the same code run
without a GPU: its times are the host's, and what only a GPU has is None or empty.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import triton
from torch import Tensor

from mixorder.tune.timing import capture

from .launches import marked, profile
from .timing import Times, count_graph_nodes, flush_buffer, time_in_turns

Call = Callable[[], Any]
REPS = 40
SETTLE_S = 0.05
PROFILED = 3  # calls, of which a kernel's time is the median
LIMIT_BYTES = 6  # of torch.add in bf16: two elements read, one written


@dataclasses.dataclass(frozen=True)
class Timed:
    """Microseconds of a call, and how many kernels, memsets and copies it launches."""

    times: Times
    launches: dict[str, int] | None


class Stopwatch(Protocol):
    device: str

    def time(self, calls: Mapping[str, Call]) -> dict[str, Timed]:
        """Of several calls, which take turns. Each has run before."""

    def limit(self, num_bytes: int) -> Call | None:
        """`torch.add` that moves so many bytes."""

    def kernels(self, call: Call) -> list[tuple[str, float]]:
        """The kernels of a call in order, by torch.profiler: name, microseconds with a cold L2."""

    def steps(self, calls: Mapping[str, Call], count: int) -> dict[str, list[float]]:
        """Milliseconds of `count` calls of each, in turns, with the host as far ahead as it gets."""

    def launched(self, call: Call) -> list[tuple[str, float]]:
        """The kernels of a call in order, by torch.profiler: name, milliseconds."""

    def random_state(self) -> Tensor:
        """Of the device's generator: the same as long as nothing is drawn."""

    def peak(self, call: Call) -> int | None:
        """Bytes that a call takes beyond what is held before it; its results count."""

    def wait(self) -> None:
        """For all that was launched."""

    def running(self) -> contextlib.AbstractContextManager[Any]:
        """Runs what is inside where calls are timed."""

    def free(self) -> None:
        """Give memory that is not in use back, for other processes."""


class Gpu:
    device = "cuda"

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.flush = flush_buffer()
        profile(self.flush.zero_)  # the first session starts the profiler, which takes seconds

    def time(self, calls: Mapping[str, Call]) -> dict[str, Timed]:
        captured = {name: self._captured(call) for name, call in calls.items()}
        times = time_in_turns(captured, self.stream, self.flush, REPS, SETTLE_S)
        nodes = {name: count_graph_nodes(graph.graph.raw_cuda_graph()) for name, graph in captured.items()}
        return {name: Timed(times[name], nodes[name]) for name in calls}

    def _captured(self, call: Call) -> Any:
        with torch.cuda.stream(self.stream):
            call()
        self.stream.synchronize()
        return capture(call, self.stream)

    def limit(self, num_bytes: int) -> Call:
        numel = max(1, num_bytes // LIMIT_BYTES)
        x, y, out = (torch.ones(numel, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        return lambda: torch.add(x, y, out=out)

    def kernels(self, call: Call) -> list[tuple[str, float]]:
        def run() -> None:
            for _ in range(PROFILED):
                self.flush.zero_()
                call()

        times = [(name, 1e3 * ms) for name, ms in profile(run)]
        return medians_of_rounds(times, PROFILED)

    def steps(self, calls: Mapping[str, Call], count: int) -> dict[str, list[float]]:
        torch.cuda.synchronize()
        marks: dict[str, list[list[torch.cuda.Event]]] = {name: [] for name in calls}
        for turn in range(count):
            for name in list(calls)[:: -1 if turn % 2 else 1]:
                marks[name].append(marked([calls[name]]))
        torch.cuda.synchronize()
        return {name: [start.elapsed_time(end) for start, end in events] for name, events in marks.items()}

    def launched(self, call: Call) -> list[tuple[str, float]]:
        return profile(call)

    def random_state(self) -> Tensor:
        return torch.cuda.get_rng_state()

    def peak(self, call: Call) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        results = call()
        torch.cuda.synchronize()
        del results
        return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before

    def wait(self) -> None:
        torch.cuda.synchronize()

    def running(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(self.stream)

    def free(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()


def medians_of_rounds(kernels: Sequence[tuple[str, float]], rounds: int) -> list[tuple[str, float]]:
    """The kernels of one round, each with its median over the rounds, without the one that flushes L2 at the
    start of each. Empty where rounds differ: the profiler has missed a kernel."""
    length = len(kernels) // rounds
    parts = [kernels[i * length : (i + 1) * length] for i in range(rounds)]
    names = [[name for name, _ in part] for part in parts]
    if not length or len(kernels) % rounds or any(round_names != names[0] for round_names in names):
        return []
    medians = [
        (name, round(statistics.median(part[i][1] for part in parts), 2)) for i, name in enumerate(names[0])
    ]
    return medians[1:] if "FillFunctor" in medians[0][0] else medians


class Host:
    device = "cpu"

    def time(self, calls: Mapping[str, Call]) -> dict[str, Timed]:
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(2):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                samples[name].append(1e6 * (time.perf_counter() - start))
        return {name: Timed(Times(tuple(times)), None) for name, times in samples.items()}

    def limit(self, num_bytes: int) -> None:
        return None

    def kernels(self, call: Call) -> list[tuple[str, float]]:
        return []

    def steps(self, calls: Mapping[str, Call], count: int) -> dict[str, list[float]]:
        return {name: [us / 1e3 for us in timed.times.samples] for name, timed in self.time(calls).items()}

    def launched(self, call: Call) -> list[tuple[str, float]]:
        return []

    def random_state(self) -> Tensor:
        return torch.get_rng_state()

    def peak(self, call: Call) -> None:
        return None

    def wait(self) -> None:
        pass

    def running(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def free(self) -> None:
        pass


def here(device: str) -> str:
    """The day, the card, and the versions: what a record was measured on."""
    card = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return f"{time.strftime('%Y-%m-%d')}, {card}, torch {torch.__version__}, triton {triton.__version__}"


@functools.cache
def stopwatch(device: str) -> Stopwatch:
    """Of "cuda", the one of this process: making it starts the GPU's context, which takes seconds."""
    return Gpu() if device == "cuda" else Host()
