"""What the benchmark measures of one backward: time, launches, error.

In: a forward, its inputs and a reference. Out: numbers in a `Result`, and the graph that was timed, which
`time_in_turns` times again beside others. Knows nothing of providers, tables or the command line.
"""

import contextlib
import ctypes
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .results import Case, Result

Forward = Callable[[Tensor, Tensor, Tensor | None], Tensor | tuple[Tensor, Tensor]]
Step = Callable[[], Sequence[Tensor]]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
EPS = {"rms": 1e-6, "layer": 1e-5}
EXIT_TIMEOUT = 75

FLUSH_BYTES = 256 * 2**20  # the least; twice the L2 where that is more
SETTLE_S = 0.1  # replays before the first sample, so that clocks are up again after a compile
PROBE_REPS = 5  # samples that decide how many more are affordable
LONG_US = 5000.0  # above this, fewer samples
MIN_REPS = 8
ROUNDS = 8  # turns that each graph of a row gets

# CUgraphNodeType of the CUDA driver API.
_NODE_KINDS = {0: "kernels", 1: "memcpys", 2: "memsets"}


# Time and launches, CUDA only.


@dataclass(frozen=True)
class Captured:
    """A backward in a CUDA graph; `outputs` are the gradients that each replay overwrites. `step` keeps
    what a replay reads: inputs, what the forward saved, and the kernels."""

    graph: torch.cuda.CUDAGraph
    outputs: Sequence[Tensor]
    step: Step


@dataclass(frozen=True)
class Times:
    """Microseconds per replay: the samples, in the order in which they were taken."""

    samples: tuple[float, ...]

    def into(self, result: Result) -> None:
        result.us, result.reps = self.median_us, len(self.samples)
        result.us_min, result.us_max = min(self.samples), max(self.samples)

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples)

    def halves(self) -> list[float]:
        """The medians of the first half and of the second."""
        middle = len(self.samples) // 2
        return [statistics.median(part) for part in (self.samples[:middle], self.samples[middle:])]


def flush_buffer() -> Tensor:
    """A CUDA buffer of at least 256 MiB and twice the L2: overwriting it evicts all inputs."""
    l2_bytes = int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0))
    return torch.empty(max(FLUSH_BYTES, 2 * l2_bytes) // 4, dtype=torch.int32, device="cuda")


def capture(step: Step, stream: torch.cuda.Stream) -> Captured:
    """Capture one run of `step` on `stream`, where its forward ran, too, and instantiate the graph.

    The step's own exception is raised when it fails, not the one of the capture it broke.
    """
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            outputs = step()
        except Exception:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
        graph.instantiate()
    return Captured(graph, outputs, step)


def time_graph(captured: Captured, stream: torch.cuda.Stream, flush: Tensor, reps: int = 40) -> Times:
    """Time replays with a cold L2: `flush` is overwritten before each, the events enclose only the
    replay, and the host waits once for all of them. A replay beyond `LONG_US` gets fewer samples.
    """
    with torch.cuda.stream(stream):
        _settle(captured.graph, flush)
        samples = _replay_times(captured.graph, flush, min(PROBE_REPS, reps))
        wanted = _affordable(statistics.median(samples), reps)
        samples += _replay_times(captured.graph, flush, wanted - len(samples))
    return Times(tuple(samples))


def _affordable(us: float, reps: int) -> int:
    return min(reps, max(MIN_REPS, int(reps * LONG_US / max(us, LONG_US))))


def time_in_turns(
    graphs: dict[str, tuple[Captured, float]], stream: torch.cuda.Stream, flush: Tensor, reps: int = 40
) -> dict[str, Times]:
    """Time several graphs as `time_graph` does, a few replays of each per round, so that what the clocks
    and the memory do meanwhile weighs on all alike. With each graph, microseconds that it took before.
    """
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    with torch.cuda.stream(stream):
        _settle(next(iter(graphs.values()))[0].graph, flush)
        for _ in range(ROUNDS):
            for name, (captured, us) in graphs.items():
                share = -(-_affordable(us, reps) // ROUNDS)
                samples[name] += _replay_times(captured.graph, flush, share)
    return {name: Times(tuple(taken)) for name, taken in samples.items()}


def _settle(graph: torch.cuda.CUDAGraph, flush: Tensor) -> None:
    deadline = time.perf_counter() + SETTLE_S
    while time.perf_counter() < deadline:
        for _ in range(5):
            flush.zero_()
            graph.replay()
        torch.cuda.synchronize()


def _replay_times(graph: torch.cuda.CUDAGraph, flush: Tensor, reps: int) -> list[float]:
    """Microseconds of `reps` replays on the current stream; empty for `reps` < 1."""
    pairs = []
    for _ in range(reps):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        start.record()
        graph.replay()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in pairs]


def count_graph_nodes(raw_graph: int, driver: ctypes.CDLL | None = None) -> dict[str, int]:
    """Number of kernels, memsets, memcpys and other nodes of a `CUgraph`: what one backward
    launches. Asks the driver, so no profiler is attached to the process that is being timed.
    """
    lib = driver or ctypes.CDLL("libcuda.so.1")
    graph = ctypes.c_void_p(raw_graph)
    count = ctypes.c_size_t(0)
    _check(lib.cuGraphGetNodes(graph, None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _check(lib.cuGraphGetNodes(graph, nodes, ctypes.byref(count)))
    counts = {"kernels": 0, "memsets": 0, "memcpys": 0, "other": 0}
    for node in nodes:
        kind = ctypes.c_int(-1)
        _check(lib.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        counts[_NODE_KINDS.get(kind.value, "other")] += 1
    return counts


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"CUDA driver API returned {status}")


def count_profiled(step: Step, stream: torch.cuda.Stream) -> dict[str, int]:
    """Number of kernels, memsets and memcpys of one ungraphed run of `step`, by torch.profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        with torch.cuda.stream(stream):
            step()
        torch.cuda.synchronize()
    counts = {"kernels": 0, "memsets": 0, "memcpys": 0, "other": 0}
    for event in profile.events():
        if event.device_type != torch.autograd.DeviceType.CUDA or event.is_user_annotation:
            continue
        prefix = event.name[:6].lower()
        counts[{"memset": "memsets", "memcpy": "memcpys"}.get(prefix, "kernels")] += 1
    return counts


# Numbers, on any device.


@dataclass(frozen=True)
class Inputs:
    """Operands of a norm backward: x and dy (rows, cols), w and b (cols); no b for RMSNorm.

    `residual` (rows, cols): the gradient of x beside the norm's, if there is one.
    """

    x: Tensor
    dy: Tensor
    w: Tensor
    b: Tensor | None
    eps: float
    residual: Tensor | None = None

    def leaves(self) -> list[Tensor]:
        """Fresh leaves that share storage with x, w and, where there is one, b."""
        return [t.detach().requires_grad_() for t in (self.x, self.w, self.b) if t is not None]


def make_inputs(case: Case, device: str) -> Inputs:
    """Random operands; the same ones for the same shape in every process on the same device."""
    generator = torch.Generator(device).manual_seed(case.rows * 1_000_003 + case.cols)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    dtype, weight_dtype = DTYPES[case.dtype], DTYPES[case.weight_dtype]
    x, dy = (normal(case.rows, case.cols).to(dtype) for _ in range(2))
    w = (1 + 0.5 * normal(case.cols)).to(weight_dtype)
    b = normal(case.cols).to(weight_dtype) if case.norm == "layer" else None
    residual = normal(case.rows, case.cols).to(dtype) if case.residual else None
    return Inputs(x, dy, w, b, EPS[case.norm], residual)


def reference_gradients(inputs: Inputs, chunk_elements: int = 2**24) -> list[Tensor]:
    """dx, dw and, with a bias, db in float64, from the closed forms; LayerNorm if there is a bias,
    RMSNorm otherwise. Temporaries hold at most `chunk_elements` elements, or one row.
    """
    rows, cols = inputs.x.shape
    w = inputs.w.double()
    dx = torch.empty(rows, cols, dtype=torch.float64, device=w.device)
    dw, db = torch.zeros_like(w), torch.zeros_like(w)
    centred = inputs.b is not None
    step = max(1, chunk_elements // max(cols, 1))
    for start in range(0, rows, step):
        chunk = slice(start, start + step)
        x, dy = inputs.x[chunk].double(), inputs.dy[chunk].double()
        if centred:
            x = x - x.mean(1, keepdim=True)
        rstd = torch.rsqrt(x.square().mean(1, keepdim=True) + inputs.eps)
        x_hat = x * rstd
        wdy = dy * w
        inner = wdy - x_hat * (wdy * x_hat).mean(1, keepdim=True)
        dx[chunk] = rstd * (inner - wdy.mean(1, keepdim=True) if centred else inner)
        if inputs.residual is not None:
            dx[chunk] += inputs.residual[chunk].double()
        dw += (dy * x_hat).sum(0)
        db += dy.sum(0)
    return [dx, dw, db] if centred else [dx, dw]


def relative_error(actual: Tensor, expected: Tensor, chunk_elements: int = 2**24) -> float:
    """||actual - expected|| / ||expected|| in float64, the plain norm where `expected` is all zero.

    `expected` is float64 and of the same shape; chunked over dim 0 as in `reference_gradients`.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    off = torch.zeros((), dtype=torch.float64, device=expected.device)
    size = torch.zeros_like(off)
    step = max(1, chunk_elements // max(expected[:1].numel(), 1))
    for got, want in zip(actual.split(step), expected.split(step), strict=True):
        off += (got.double() - want).square().sum()
        size += want.square().sum()
    return (off / size if size > 0 else off).sqrt().item()


# One provider on one case.


@dataclass
class Lab:
    """Where and how to measure: `stream` is None on the CPU, `flush` where no times are wanted."""

    device: str
    reps: int = 40
    profiler: bool = False
    stream: torch.cuda.Stream | None = None
    flush: Tensor | None = None

    def on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def wait(self) -> None:
        if self.stream:
            torch.cuda.synchronize()

    def works(self) -> bool:
        """False once an earlier error has made the device useless to this process."""
        try:
            self.wait()
        except RuntimeError:
            return False
        return True


class Limit:
    """The yardstick, `torch.add(x, dy, out=dx)` in a CUDA graph, or, with a residual, the sum of three
    tensors as Inductor compiles it; idle where no times are wanted."""

    def __init__(self, inputs: Inputs, lab: Lab) -> None:
        dx = torch.empty_like(inputs.x) if lab.flush is not None else None
        three = torch.compile(lambda x, dy, residual: x + dy + residual, dynamic=False)

        def add() -> Sequence[Tensor]:
            if inputs.residual is not None:
                return [three(inputs.x, inputs.dy, inputs.residual)]
            return [torch.add(inputs.x, inputs.dy, out=dx)]

        self.lab = lab
        lab.wait()  # dx may lie where another stream still computes
        if lab.stream and dx is not None:
            with lab.on_stream():
                add()  # compiled before it is captured
        self.captured = capture(add, lab.stream) if lab.stream and dx is not None else None

    def median_us(self) -> float | None:
        """Timed alone; None where no times are wanted."""
        lab = self.lab
        if self.captured and lab.stream and lab.flush is not None:
            return time_graph(self.captured, lab.stream, lab.flush, lab.reps).median_us
        return None


def measure(
    forward: Forward, inputs: Inputs, reference: Sequence[Tensor], lab: Lab, result: Result
) -> Captured | None:
    """Fill `result` with errors, times and launches, in this order; what was filled before an
    exception stays. Returns the graph, if it was timed. Raises ArithmeticError on a gradient that is
    not finite.
    """
    lab.wait()  # the inputs come from another stream
    with lab.on_stream():
        leaves = inputs.leaves()
        y = forward(leaves[0], leaves[1], leaves[2] if len(leaves) > 2 else None)

        incoming = inputs.dy if inputs.residual is None else (inputs.dy, inputs.residual)

        def step() -> Sequence[Tensor]:
            return torch.autograd.grad(y, leaves, incoming, retain_graph=True)

        for _ in range(3):
            gradients = step()
    lab.wait()
    names = ("dx", "dw", "db")
    not_finite = [n for n, g in zip(names, gradients, strict=False) if not g.isfinite().all()]
    if not_finite:
        raise ArithmeticError(f"not finite: {', '.join(not_finite)}")
    for name, got, want in zip(names, gradients, reference, strict=False):
        result.errors[name] = relative_error(got, want)
    captured = _measure_on_device(step, lab, lab.stream, result) if lab.stream else None
    again = captured.outputs if captured else step()
    result.repeatable = all(torch.equal(a, b) for a, b in zip(gradients, again, strict=True))
    return captured if lab.flush is not None else None


def _measure_on_device(step: Step, lab: Lab, stream: torch.cuda.Stream, result: Result) -> Captured:
    """Launches and, if asked for, times of the captured step."""
    captured = capture(step, stream)
    if lab.flush is not None:
        time_graph(captured, stream, lab.flush, lab.reps).into(result)
    else:
        captured.graph.replay()
    lab.wait()
    result.launches, result.launches_from = _count_launches(captured, step, lab, stream)
    return captured


def _count_launches(
    captured: Captured, step: Step, lab: Lab, stream: torch.cuda.Stream
) -> tuple[dict[str, int], str]:
    """Counts and where they come from: the graph's nodes, else or on demand the profiler's events.

    The profiler comes second because, once attached, it may slow down what is timed afterwards.
    Neither working is no reason to lose the times: no counts then.
    """
    if not lab.profiler:
        with contextlib.suppress(RuntimeError, OSError, AttributeError):
            return count_graph_nodes(captured.graph.raw_cuda_graph()), "graph"
    try:
        return count_profiled(step, stream), "profiler"
    except RuntimeError as error:
        return {}, f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def time_box(seconds: float, what: str) -> Iterator[None]:
    """End the process with EXIT_TIMEOUT if the body takes longer, whatever it hangs in."""

    def expire() -> None:
        print(f"{what}: over {seconds:g} s, starting a new process", file=sys.stderr, flush=True)
        os._exit(EXIT_TIMEOUT)

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
