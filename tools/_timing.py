"""What the benchmark keeps and measures of one backward: time, launches, error.

In: a forward, its inputs and a reference. Out: records of plain numbers, from which the report is
written and which JSON gives back. Knows nothing of providers, tables or the command line.
"""

import contextlib
import ctypes
import dataclasses
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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

# CUgraphNodeType of the CUDA driver API.
_NODE_KINDS = {0: "kernels", 1: "memcpys", 2: "memsets"}


# Records.


@dataclass(frozen=True)
class Case:
    """One row of the benchmark. The dtypes are names such as "bf16".

    `residual`: x goes on beside the norm, so that its gradient has a second part, which is added to dx.
    """

    norm: str
    dtype: str
    weight_dtype: str
    rows: int
    cols: int
    residual: bool = False

    @property
    def shape(self) -> str:
        return f"{self.rows}x{self.cols}"


@dataclass
class Result:
    """What one provider did on one case. Times in microseconds, `seconds` is its whole turn."""

    status: str = "running"  # running, ok, err, absent
    error: str = ""
    note: str = ""
    us: float | None = None
    us_min: float | None = None
    us_max: float | None = None
    reps: int = 0
    launches: dict[str, int] = field(default_factory=dict)
    launches_from: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    repeatable: bool | None = None  # two runs gave the same bits
    seconds: float = 0.0

    @property
    def reason(self) -> str:
        """The error on one line."""
        return " ".join(self.error.split())[:200]


@dataclass
class Row:
    """A case, its results, and medians of its limit: microseconds, two per process it took."""

    case: Case
    limit_medians: list[float] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)

    @property
    def limit_us(self) -> float | None:
        return statistics.fmean(self.limit_medians) if self.limit_medians else None

    @property
    def spread(self) -> float:
        """Percent between the lowest and the highest median of the limit."""
        low, high = min(self.limit_medians), max(self.limit_medians)
        return (high - low) / statistics.fmean(self.limit_medians) * 100

    def share(self, provider: str) -> float | None:
        """Percent of the limit that a provider reaches; None without a time or with a failure."""
        result = self.results.get(provider)
        if result is None or result.status != "ok" or not result.us or self.limit_us is None:
            return None
        return self.limit_us / result.us * 100


@dataclass
class Report:
    """Everything measured so far; `started` in `meta` is seconds since the epoch."""

    meta: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def row(self, case: Case) -> Row:
        for row in self.rows:
            if row.case == case:
                return row
        self.rows.append(Row(case))
        return self.rows[-1]

    def finished(self) -> int:
        return sum(r.status != "running" for row in self.rows for r in row.results.values())

    def older_than(self, seconds: float | None) -> bool:
        return seconds is not None and time.time() - self.meta["started"] > seconds

    def close_running(self, reason: str) -> None:
        """Turn what was running when its process ended into an error."""
        for result in (r for row in self.rows for r in row.results.values()):
            if result.status == "running":
                result.status, result.error = "err", reason

    def tables(self) -> dict[str, list[Row]]:
        """Rows of one norm and one pair of dtypes under a title; only rows that have results."""
        tables: dict[str, list[Row]] = {}
        for row in self.rows:
            form = " and residual" if row.case.residual else ""
            title = f"{row.case.norm}{form} {row.case.dtype} (weights {row.case.weight_dtype})"
            if row.results or row.limit_medians:
                tables.setdefault(title, []).append(row)
        return tables

    def save(self, path: Path) -> None:
        """Write atomically, with what readers want and `load` derives anew: limits and shares."""
        data = dataclasses.asdict(self)
        for row, plain in zip(self.rows, data["rows"], strict=True):
            plain["derived"] = {
                "limit_us": row.limit_us,
                "share_percent": {name: row.share(name) for name in row.results},
            }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(data, indent=1))
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Report":
        data = json.loads(path.read_text())
        rows = []
        for plain in data["rows"]:
            del plain["derived"]
            results = {name: Result(**r) for name, r in plain.pop("results").items()}
            rows.append(Row(Case(**plain.pop("case")), results=results, **plain))
        return cls(data["meta"], rows)


# Time and launches, CUDA only.


@dataclass(frozen=True)
class Captured:
    """A backward in a CUDA graph; `outputs` are the gradients that each replay overwrites."""

    graph: torch.cuda.CUDAGraph
    outputs: Sequence[Tensor]


@dataclass(frozen=True)
class Times:
    """Microseconds per replay, over `reps` samples."""

    median_us: float
    min_us: float
    max_us: float
    reps: int


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
    return Captured(graph, outputs)


def time_graph(captured: Captured, stream: torch.cuda.Stream, flush: Tensor, reps: int = 40) -> Times:
    """Time replays with a cold L2: `flush` is overwritten before each, the events enclose only the
    replay, and the host waits once for all of them. A replay beyond `LONG_US` gets fewer samples.
    """
    with torch.cuda.stream(stream):
        _settle(captured.graph, flush)
        samples = _replay_times(captured.graph, flush, min(PROBE_REPS, reps))
        affordable = int(reps * LONG_US / max(statistics.median(samples), LONG_US))
        wanted = min(reps, max(MIN_REPS, affordable))
        samples += _replay_times(captured.graph, flush, wanted - len(samples))
    return Times(statistics.median(samples), min(samples), max(samples), len(samples))


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

    def time_into(self, row: Row) -> None:
        """Add one median to the row's."""
        lab = self.lab
        if self.captured and lab.stream and lab.flush is not None:
            row.limit_medians.append(time_graph(self.captured, lab.stream, lab.flush, lab.reps).median_us)


def measure(forward: Forward, inputs: Inputs, reference: Sequence[Tensor], lab: Lab, result: Result) -> None:
    """Fill `result` with errors, times and launches, in this order; what was filled before an
    exception stays. Raises ArithmeticError on a gradient that is not finite.
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
    again = _measure_on_device(step, lab, lab.stream, result) if lab.stream else step()
    result.repeatable = all(torch.equal(a, b) for a, b in zip(gradients, again, strict=True))


def _measure_on_device(step: Step, lab: Lab, stream: torch.cuda.Stream, result: Result) -> Sequence[Tensor]:
    """Launches and, if asked for, times of the captured step; returns what its replays computed."""
    captured = capture(step, stream)
    if lab.flush is not None:
        times = time_graph(captured, stream, lab.flush, lab.reps)
        result.us, result.us_min, result.us_max = times.median_us, times.min_us, times.max_us
        result.reps = times.reps
    else:
        captured.graph.replay()
    lab.wait()
    result.launches, result.launches_from = _count_launches(captured, step, lab, stream)
    return captured.outputs


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
