"""Measurements of one backward for the benchmark: error, time, launches.

In: a forward, its inputs and a reference. Out: numbers in a `Result`, and the timed graph, which is timed
again in turns with others. Independent of providers, tables and the command line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mixorder.inspection.accuracy import relative_error
from mixorder.tune.timing import Captured, capture

from .results import Case, Result
from .timing import Times, count_graph_nodes, time_in_turns

Forward = Callable[[Tensor, Tensor, Tensor | None], Tensor | tuple[Tensor, Tensor]]
Gradients = Sequence[Tensor]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
EPS = {"rms": 1e-6, "layer": 1e-5}


@dataclass(frozen=True)
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


# One provider on one case.


@dataclass
class Setup:
    """Where and how to measure: `stream` is None on the CPU, `flush` where no times are wanted."""

    device: str
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

    def times(self, graphs: dict[str, Captured[Any]]) -> dict[str, Times]:
        """Of graphs in turns; of none where no times are wanted."""
        if not (self.stream and self.flush is not None):
            return {}
        return time_in_turns(graphs, self.stream, self.flush)


def limit(inputs: Inputs, setup: Setup) -> Captured[Gradients] | None:
    """The limit: `torch.add(x, dy, out=dx)` in a CUDA graph, or, with a residual, the sum of three
    tensors as Inductor compiles it. None where no times are wanted."""
    if not (setup.stream and setup.flush is not None):
        return None
    dx = torch.empty_like(inputs.x)
    three = torch.compile(lambda x, dy, residual: x + dy + residual, dynamic=False)

    def add() -> Gradients:
        if inputs.residual is not None:
            return [three(inputs.x, inputs.dy, inputs.residual)]
        return [torch.add(inputs.x, inputs.dy, out=dx)]

    setup.wait()  # another stream may still use the memory of dx
    with setup.on_stream():
        add()  # compiled before it is captured
    return capture(add, setup.stream)


def measure(
    forward: Forward, inputs: Inputs, reference: Gradients, setup: Setup, result: Result
) -> Captured[Gradients] | None:
    """Fill `result` with errors, times and launches, in this order; values filled before an exception
    stay. Returns the graph, if it was timed. Raises ArithmeticError on a gradient that is not finite.
    """
    setup.wait()  # the inputs come from another stream
    with setup.on_stream():
        leaves = inputs.leaves()
        y = forward(leaves[0], leaves[1], leaves[2] if len(leaves) > 2 else None)

        incoming = inputs.dy if inputs.residual is None else (inputs.dy, inputs.residual)

        def step() -> Gradients:
            return torch.autograd.grad(y, leaves, incoming, retain_graph=True)

        for _ in range(3):
            gradients = step()
    setup.wait()
    names = ("dx", "dw", "db")
    not_finite = [n for n, g in zip(names, gradients, strict=False) if not g.isfinite().all()]
    if not_finite:
        raise ArithmeticError(f"not finite: {', '.join(not_finite)}")
    for name, got, want in zip(names, gradients, reference, strict=False):
        result.errors[name] = relative_error(got, want)
    captured = capture(step, setup.stream) if setup.stream else None
    if captured:
        _measure_graph(captured, setup, result)
    again = captured.outputs if captured else step()
    result.repeatable = all(torch.equal(a, b) for a, b in zip(gradients, again, strict=True))
    return captured if setup.flush is not None else None


def _measure_graph(captured: Captured[Gradients], setup: Setup, result: Result) -> None:
    """Times, if they are wanted, and launches, if the driver counts them."""
    if times := setup.times({"": captured}):
        result.take(times[""].samples)
    else:
        captured.graph.replay()
    setup.wait()
    with contextlib.suppress(RuntimeError, OSError, AttributeError):
        result.launches = count_graph_nodes(captured.graph.raw_cuda_graph())
