"""A row of the benchmark of norms: the backward of every provider versus the limit, on this GPU.

Runs in a process of `lab/pool.py`. Without a GPU, errors are measured and nothing is timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch.nn.functional as F
from support.sources import lost, told
from torch import Tensor

from mixorder.inspection.accuracy import relative_error
from mixorder.report import RegionRecord, collect

from .stopwatch import Stopwatch, stopwatch

Forward = Callable[[Tensor, Tensor, Tensor | None], Tensor | tuple[Tensor, Tensor]]
Gradients = Sequence[Tensor]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
EPS = {"rms": 1e-6, "layer": 1e-5}
MOST_TOLD = 2000


@dataclasses.dataclass(frozen=True)
class Case:
    """A norm and its sizes. The dtypes are names such as "bf16".

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


@dataclasses.dataclass(frozen=True)
class Task:
    """A case, the names of its providers, and "cuda" or "cpu"."""

    case: Case
    providers: tuple[str, ...]
    device: str


@dataclasses.dataclass
class Result:
    """What a provider gave. `us`: the median of replays. `error`: why there is no result; of a package that
    is not installed, `absent` is true. `repeatable`: two runs gave the same bits."""

    us: float | None = None
    error: str = ""
    absent: bool = False
    note: str = ""
    launches: dict[str, int] = dataclasses.field(default_factory=dict)
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    repeatable: bool | None = None

    @property
    def reason(self) -> str:
        """The error on one line."""
        return " ".join(self.error.split())[:200]


@dataclasses.dataclass
class Row:
    """What a process answers. `limit_medians`: of the limit, microseconds in the first turns and in the last.
    `lost`: it ended before its times were taken, and its process is of no more use."""

    case: Case
    limit_medians: list[float] = dataclasses.field(default_factory=list)
    results: dict[str, Result] = dataclasses.field(default_factory=dict)
    lost: bool = False

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
        if result is None or result.error or not result.us or self.limit_us is None:
            return None
        return self.limit_us / result.us * 100


class Absent(Exception):
    """The provider's package cannot be imported here."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Operands of a norm backward: x and dy (rows, cols), w and b (cols); no b for RMSNorm.

    `residual` (rows, cols): the gradient of x that is added to the norm's, if there is one.
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
    """Random operands: the same for a shape in every process on the same device."""
    generator = torch.Generator(device).manual_seed(case.rows * 1_000_003 + case.cols)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    dtype, weight_dtype = DTYPES[case.dtype], DTYPES[case.weight_dtype]
    x, dy = (normal(case.rows, case.cols).to(dtype) for _ in range(2))
    w = (1 + 0.5 * normal(case.cols)).to(weight_dtype)
    b = normal(case.cols).to(weight_dtype) if case.norm == "layer" else None
    residual = normal(case.rows, case.cols).to(dtype) if case.residual else None
    return Inputs(x, dy, w, b, EPS[case.norm], residual)


def reference_gradients(inputs: Inputs) -> list[Tensor]:
    """dx, dw and, with a bias, db, by eager in float64."""
    x, w, *b = leaves = [t.detach().double().requires_grad_() for t in inputs.leaves()]
    y = F.layer_norm(x, w.shape, w, *b, eps=inputs.eps) if b else F.rms_norm(x, w.shape, w, inputs.eps)
    dx, *gradients = torch.autograd.grad(y, leaves, inputs.dy.double())
    return [dx if inputs.residual is None else dx + inputs.residual.double(), *gradients]


def work(task: Task) -> Row:
    """Runs in a process of the pool. Never raises: errors are in the results."""
    row = Row(task.case, results={name: Result() for name in task.providers})
    try:
        with functorch_config.patch(donated_buffer=False):  # they forbid retain_graph
            _measure(task, row)
    except Exception as error:  # inputs, reference, limit, times, or the device is lost
        row.lost = True
        for result in row.results.values():
            result.error = result.error or told(error)[:MOST_TOLD]
    gc.collect()
    return row


def _measure(task: Task, row: Row) -> None:
    from .providers import PROVIDERS

    watch = stopwatch(task.device)
    inputs = make_inputs(task.case, task.device)
    reference = reference_gradients(inputs)
    steps: dict[str, Callable[[], Gradients]] = {}
    for name, result in row.results.items():
        torch._dynamo.reset()
        try:
            with fusions_into(result) if name.startswith("mixorder") else contextlib.nullcontext():
                steps[name] = checked(PROVIDERS[name](task.case), inputs, reference, watch, result)
        except Exception as error:
            result.error, result.absent = told(error)[:MOST_TOLD], isinstance(error, Absent)
            if lost(told(error)):
                raise
    del reference
    if task.device != "cuda":
        return
    with watch.running():
        timed = watch.time({"limit": limit(inputs), **steps})
    row.limit_medians = timed.pop("limit").times.halves()
    for name, outcome in timed.items():
        row.results[name].us, row.results[name].launches = outcome.times.median_us, outcome.launches or {}


@contextlib.contextmanager
def fusions_into(result: Result) -> Any:
    """Note what mixorder fuses inside: each region's strategy and schedule, and the gain from tuning."""
    with collect() as records:
        yield
    fused = [r for r in records if isinstance(r, RegionRecord)]
    for region in fused:
        lines = (region.strategy, *str(region.schedule).splitlines(), region.planning.tuning or "not tuned")
        result.note += f" {region.name}: {', '.join(map(str, lines))};"
    result.note += "".join(f" declined: {r}" for r in records if r not in fused)


def limit(inputs: Inputs) -> Callable[[], Gradients]:
    """`torch.add(x, dy, out=dx)`, or, with a residual, the sum of three tensors as Inductor compiles it."""
    if inputs.residual is None:
        dx = torch.empty_like(inputs.x)
        return lambda: [torch.add(inputs.x, inputs.dy, out=dx)]
    three = torch.compile(lambda x, dy, residual: x + dy + residual, dynamic=False)
    return lambda: [three(inputs.x, inputs.dy, inputs.residual)]


def checked(
    forward: Forward, inputs: Inputs, reference: Gradients, watch: Stopwatch, result: Result
) -> Callable[[], Gradients]:
    """The backward, after some calls whose errors are in `result`. Raises ArithmeticError on a gradient that
    is not finite."""
    watch.wait()  # the inputs come from another stream
    with watch.running():  # autograd runs a backward on the stream of its forward
        leaves = inputs.leaves()
        y = forward(leaves[0], leaves[1], leaves[2] if len(leaves) > 2 else None)
        incoming = inputs.dy if inputs.residual is None else (inputs.dy, inputs.residual)

        def step() -> Gradients:
            return torch.autograd.grad(y, leaves, incoming, retain_graph=True)

        step()
        gradients, again = step(), step()
    watch.wait()
    names = ("dx", "dw", "db")
    not_finite = [n for n, g in zip(names, gradients, strict=False) if not g.isfinite().all()]
    if not_finite:
        raise ArithmeticError(f"not finite: {', '.join(not_finite)}")
    for name, got, want in zip(names, gradients, reference, strict=False):
        result.errors[name] = relative_error(got, want)
    result.repeatable = all(torch.equal(a, b) for a, b in zip(gradients, again, strict=True))
    return step
