"""What `tune.py` tunes: the regions of a norm's backward, of an activation's behind a bias, and of the cases.

Graphs are traced with fake tensors, as Inductor has them after its post-grad passes; nothing is computed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support.cases import CASES, Example
from support.compilers import looking
from torch._dynamo.utils import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from mixorder.errors import Decline
from mixorder.ir.program import LoopProgram
from mixorder.lowering.lower import lower
from mixorder.region.find import find_regions
from mixorder.schedule import cost
from mixorder.transform.fma import form_fma
from mixorder.transform.reorder import reorder
from mixorder.transform.same_bits import simplify_exactly
from mixorder.transform.split import split_outer

from .corpus import load


@dataclasses.dataclass(frozen=True)
class Target:
    """A region to tune. `limit_numel`: elements of the `dtype` tensors whose sum is its limit."""

    name: str
    program: LoopProgram
    limit_numel: int
    dtype: torch.dtype


def capture(run: Callable[[Callable[..., Any]], Any]) -> list[tuple[LoopProgram, int]]:
    """The merged programs of all regions that `run` meets, given what compiles; and the bytes they move."""
    from torch._inductor.fx_passes.post_grad import post_grad_passes

    programs: list[tuple[LoopProgram, int]] = []

    def look(gm: torch.fx.GraphModule, inputs: Any) -> None:
        post_grad_passes(gm, is_inference=False)
        _regions(gm.graph, programs)

    torch._dynamo.reset()
    run(functools.partial(torch.compile, backend=looking(look), dynamic=False))
    return programs


def _regions(graph: torch.fx.Graph, programs: list[tuple[LoopProgram, int]]) -> None:
    for region in find_regions(graph):
        if isinstance(region, Decline):
            continue
        lowered = lower(region)
        loops = simplify_exactly(split_outer(lowered), saturates=True, runs_ptx=True)
        program = form_fma(reorder(loops))
        moved = cost.traffic(program, 0)
        programs.append((program, moved.read + moved.written))


class Biased(torch.nn.Module):
    """What follows a Linear's product: its bias and an activation."""

    def __init__(self, activation: torch.nn.Module, cols: int, **kwargs: Any) -> None:
        super().__init__()
        self.activation = activation
        self.bias = torch.nn.Parameter(torch.zeros(cols, **kwargs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x + self.bias)  # type: ignore[no-any-return]


KINDS: dict[str, Callable[..., torch.nn.Module]] = {
    "layer": torch.nn.LayerNorm,
    "rms": torch.nn.RMSNorm,
    "gelu": functools.partial(Biased, torch.nn.GELU()),
    "gelu-tanh": functools.partial(Biased, torch.nn.GELU(approximate="tanh")),
    "relu": functools.partial(Biased, torch.nn.ReLU()),
}


def traced_on() -> str:
    """Where graphs are traced. A GPU's forward keeps statistics in fp32, a CPU's does not, and what is loaded
    decides the time: Triton prefetches no scalar of two bytes."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def norm_step(norm: str, rows: int, cols: int, dtype: torch.dtype) -> Callable[[Callable[..., Any]], None]:
    """Forward and backward of a norm on a (rows, cols) tensor, given what compiles the forward.

    "rms+residual" adds an incoming gradient to dx. To be made and called with fake tensors."""
    kind, _, residual = norm.partition("+")
    module = KINDS[kind](cols, dtype=dtype, device=traced_on())
    x = torch.randn(rows, cols, dtype=dtype, device=traced_on(), requires_grad=True)

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (module(x), x.clone()) if residual else (module(x),)

    def step(compile: Callable[..., Any]) -> None:
        outputs = compile(forward)(x)
        torch.autograd.backward(outputs, [torch.ones_like(x) for _ in outputs])

    return step


def norm_target(norm: str, rows: int, cols: int, dtype: torch.dtype) -> Target:
    """The backward of a norm, see `norm_step`."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        ((program, _),) = capture(norm_step(norm, rows, cols, dtype))
    tensors = 4 if norm.endswith("+residual") else 3  # that are read and written; the limit's sum has three
    return Target(f"{norm} {rows}x{cols}", program, rows * cols * tensors // 3, dtype)


def case_targets(name: str, dtype: torch.dtype) -> list[Target]:
    """All regions of a case at its training size."""
    case = CASES[name]
    with FakeTensorMode(allow_non_fake_inputs=True):
        example = Example(case, case.shapes.training, dtype, traced_on())
        programs = capture(lambda compile: example.step(compile)())
    return [
        Target(f"{name}, region {i}", program, moved // (3 * dtype.itemsize), dtype)
        for i, (program, moved) in enumerate(programs)
    ]


def entry_targets(path: Path, prefix: str) -> list[Target]:
    """All regions of a corpus's entry, by how its key begins."""
    entry = next(candidate for candidate in load(path) if candidate.key.startswith(prefix))
    programs: list[tuple[LoopProgram, int]] = []
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        gm = entry.module(traced_on())
        inputs = [
            torch.empty_strided(*tensor.hint, dtype=getattr(torch, tensor.dtype), device=traced_on())
            for tensor in entry.inputs
        ]
        FakeTensorProp(gm, detect_fake_mode(inputs)).propagate(*inputs)
        _regions(gm.graph, programs)
    return [
        Target(f"entry {prefix}, region {i}", program, moved // (3 * 2), torch.bfloat16)
        for i, (program, moved) in enumerate(programs)
    ]
