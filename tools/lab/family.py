"""A case of the family, or a program as people write it: its backward by stock Inductor and mixorder, beside
the limit, on this GPU.

Runs in a process of `lab/pool.py`: processes compile side by side, and each has a `Turn` on the GPU for all
that runs there. The backward is compiled with the forward, before anything runs.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from support.case import Shape
from support.cases import GROUPS, Case, Compile, Example
from support.compilers import STOCK, ahead_of_time, inductor
from support.sources import lost, told
from torch import Tensor
from torch._functorch import config as functorch
from torch._inductor import config

from mixorder.errors import Decline, MixorderError
from mixorder.inspection.accuracy import largest_error
from mixorder.inspection.backward import gradients, roots_of
from mixorder.report import RegionRecord, collect

from .processes import Turn
from .stopwatch import here, stopwatch
from .whole import candidates_in
from .written import BY_HAND, KEPT, PROGRAMS, UNSEEN, Written

# Inductor's own mix-order reduction fails to compile in fp64 (torch 2.11).
EXACT = STOCK | {"triton.mix_order_reduction": False}
MOST_LOCKED_S = 60
MOST_TOLD = 1000

WRITTEN: Mapping[str, Mapping[str, Callable[[], Written]]] = {
    "programs": PROGRAMS,
    "unseen": UNSEEN,
    "by hand": BY_HAND,
    "kept": KEPT,
}
NAMES = {group: tuple(cases) for group, cases in (GROUPS | WRITTEN).items()}


@dataclasses.dataclass(frozen=True)
class Task:
    """A case by its group and name, the device, the file of the `Turn`. `shape`, `dtype`: of a case of the
    family, where they are not its own at training size, and bf16."""

    group: str
    name: str
    device: str
    turn: str
    shape: Shape | None = None
    dtype: str = "bfloat16"


@dataclasses.dataclass
class Way:
    """Of stock or mixorder. `us`: the median, 0 where nothing is timed. `num_bytes`: what its kernels read
    and write. `error`: the largest relative error of a result against float64."""

    us: float = 0.0
    launches: int = 0
    num_bytes: int = 0
    error: float = math.nan


@dataclasses.dataclass
class Outcome:
    """What a process answers. `limit_us`: of an addition of as many bytes as must be read and written.
    `lost`: the process can no longer use the GPU. `on`: the day, the card, the versions, and the commit if
    the record is kept."""

    group: str
    name: str
    limit_us: float = 0.0
    stock: Way = dataclasses.field(default_factory=Way)
    ours: Way = dataclasses.field(default_factory=Way)
    fused: list[str] = dataclasses.field(default_factory=list)
    declined: list[str] = dataclasses.field(default_factory=list)
    message: str = ""
    seconds: float = 0.0
    lost: bool = False
    on: str = ""


def work(task: Task) -> Outcome:
    """Runs in a process of the pool. Never raises: errors are in the outcome."""
    outcome = Outcome(task.group, task.name, on=here(task.device))
    turn, started = Turn(task.turn, MOST_LOCKED_S), time.perf_counter()
    try:
        # What is donated may not be read again, and each backward runs several times.
        with candidates_in(turn), functorch.patch(donated_buffer=False):
            _measure(task, outcome, turn)
    except Exception as error:  # the next task goes on
        outcome.message = told(error)[-MOST_TOLD:]
        outcome.lost = lost(told(error))
    finally:
        turn.give_back()
        torch._dynamo.reset()
    outcome.seconds = round(time.perf_counter() - started, 1)
    return outcome


def _measure(task: Task, outcome: Outcome, turn: Turn) -> None:
    turn.take()
    watch, example = stopwatch(task.device), _example(task)
    steps = {}
    for name, way in (("stock", outcome.stock), ("ours", outcome.ours)):
        failures = list[MixorderError]()
        with watch.running(), collect(failures) as records:
            count = ByteCount(records)
            step = steps[name] = example.step(_compiler(task.device, name == "ours", turn, count))
            step()
        if failures:
            raise failures[0]
        watch.wait()
        way.num_bytes = count.backward or count.forward
        outcome.fused = [str(r.space) for r in records if isinstance(r, RegionRecord)]
        outcome.declined = [r.reason.value for r in records if isinstance(r, Decline)]
    exact = example.exact(inductor(EXACT))
    for name, way in (("stock", outcome.stock), ("ours", outcome.ours)):
        way.error = largest_error(zip(steps[name](), exact, strict=True))
    del exact
    watch.free()
    if (limit := watch.limit(example.num_bytes)) is not None:
        timed = watch.time({**steps, "limit": limit})
        outcome.limit_us = round(timed["limit"].times.median_us, 2)
        for name, way in (("stock", outcome.stock), ("ours", outcome.ours)):
            way.us = round(timed[name].times.median_us, 2)
            way.launches = sum((timed[name].launches or {}).values())
    del steps, limit
    gc.collect()
    watch.free()


def _compiler(device: str, mixorder: bool, turn: Turn, count: ByteCount) -> Compile:
    """Compiles forward and backward without the turn, and takes it for the run that follows."""
    compile_graph = ahead_of_time(device, mixorder)

    def backend(gm: Any, inputs: Any) -> Any:
        turn.give_back()
        now = functorch.patch(force_non_lazy_backward_lowering=True)
        with now, config.patch(_post_fusion_custom_pass=count):
            call = compile_graph(gm, inputs)
        turn.take()
        return call

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        return torch.compile(function, backend=backend, dynamic=False, fullgraph=True)

    return compile


def _example(task: Task) -> Example | Program:
    torch.manual_seed(0)
    if task.group in WRITTEN:
        with torch.device(task.device):
            return Program(WRITTEN[task.group][task.name]())
    case: Case = GROUPS[task.group][task.name]
    return Example(case, task.shape or case.shapes.training, getattr(torch, task.dtype), task.device)


class Program:
    """A program of `lab/written.py`, used as an `Example` is. Its results' gradients are random numbers, the
    same for each way."""

    def __init__(self, written: Written) -> None:
        self.written = written
        self.upstream = list[Tensor]()

    @property
    def num_bytes(self) -> int:
        return self.written.backward_bytes(self.upstream)

    def step(self, compile: Compile) -> Callable[[], Sequence[Tensor]]:
        """Compile and run the module. Returns a function that computes the gradients of all inputs and
        parameters, repeatedly from one forward."""
        module, inputs = self.written.module, self.written.inputs
        roots = roots_of(compile(module)(*inputs))
        while len(self.upstream) < len(roots):
            self.upstream.append(torch.randn_like(roots[len(self.upstream)]))
        leaves = [*inputs, *(p for p in module.parameters() if p.requires_grad)]
        return lambda: torch.autograd.grad(roots, leaves, self.upstream, retain_graph=True)

    def exact(self, stock: Compile) -> list[Tensor]:
        """The step's expected results: in float64, by eager."""
        module = copy.deepcopy(self.written.module).double()
        inputs = [x.detach().double().requires_grad_() for x in self.written.inputs]
        leaves = [*inputs, *(p for p in module.parameters() if p.requires_grad)]
        found = gradients(roots_of(module(*inputs)), leaves, [t.double() for t in self.upstream])
        return [gradient for gradient in found if gradient is not None]


# Bytes. Inductor's metric (`metrics.num_bytes_accessed`) is the sum of `get_read_write_buffers_sizes` over
# the scheduled kernels: of each distinct buffer that a kernel reads or writes, the smaller of its size and
# the elements accessed. It counts what a user-defined Triton kernel writes twice, as an argument and as its
# mutation. Partial sums of fused kernels are not counted, neither mixorder's nor those of Inductor's own
# mix-order reduction, which are no buffers of the graph.


class ByteCount:
    """A pass over Inductor's scheduled kernels that changes nothing, and counts bytes per graph.

    `records`: the list of `mixorder.report.collect`; it has a graph's regions when the graph is counted.
    """

    def __init__(self, records: Sequence[RegionRecord | Decline]) -> None:
        self.records = records
        self.seen = 0
        self.forward = self.backward = 0

    def __call__(self, nodes: list[Any]) -> list[Any]:
        from torch._inductor.virtualized import V

        new, self.seen = self.records[self.seen :], len(self.records)
        partials = sum(2 * r.traffic.workspace for r in new if isinstance(r, RegionRecord))
        total = sum(map(accessed_bytes, nodes)) - partials
        if V.graph.is_backward:
            self.backward = total
        else:
            self.forward = total
        return nodes


def accessed_bytes(node: Any) -> int:
    """Bytes that one scheduled kernel reads and writes."""
    from torch._inductor.ir import UserDefinedTritonKernel

    kernels = [part.node for part in node.get_nodes() if isinstance(part.node, UserDefinedTritonKernel)]
    if not kernels:
        return node.get_read_write_buffers_sizes()
    assert len(kernels) == len(node.get_nodes()), "Inductor fused something into a kernel of ours"
    return sum(map(passed_bytes, kernels))


def passed_bytes(kernel: Any) -> int:
    """Bytes of the distinct tensors passed to a user-defined Triton kernel; all sizes are known.

    A tensor that is both read and written, by in-place reuse, counts as two tensors.
    """
    tensors: dict[Any, int] = {}
    written = {arg.get_name() for arg in kernel.mutable_args}
    for name, buffer in kernel.kwargs.items():
        if buffer not in kernel.inputs:
            continue  # a size
        layout = buffer.get_layout()
        size, stride = ([int(n) for n in ns] for ns in (layout.size, layout.stride))
        extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))  # less where it broadcasts
        elements = min(math.prod(size), extent)
        key = (buffer.get_name(), int(layout.offset), *size, *stride)
        passes = 2 if name.startswith("in") and buffer.get_name() in written else 1
        tensors[key] = passes * elements * layout.dtype.itemsize
    return sum(tensors.values())
