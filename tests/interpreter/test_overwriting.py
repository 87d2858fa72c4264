"""Kernels that write dx over dy give the same bits as those that have a tensor of its own for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import Block, HFRMSNorm, bf16, f32, f64, pair, randomised
from running import OFF, ON, Tensors, check, exact_gradients, gradients
from torch import nn

from mixorder import pipeline
from mixorder.errors import TooWide
from mixorder.inductor.interpreter import compile_for_interpreter
from mixorder.ir.program import LoopProgram
from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import H200
from mixorder.schedule.persistent import Workload, workload
from mixorder.schedule.schedule import Schedule
from mixorder.transform.reread import reload

SHAPE = (3, 37, 40)


def overwritten(records: list[object]) -> int:
    kernels = [record.kernels[0] for record in records if isinstance(record, RegionRecord)]
    return sum(name.startswith("in") for kernel in kernels for name in kernel.written)


def both(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensors, Tensors, int]:
    """Gradients with inputs overwritten, and without; and how many were."""
    torch.manual_seed(0)
    dtype = next(module.parameters()).dtype
    x, dy = (torch.randn(SHAPE).to(dtype) for _ in range(2))
    with collect() as records:
        ours = gradients(module, x, dy, ON)
    count = overwritten(records)
    check(ours, gradients(module, x, dy, OFF), exact_gradients(module, x, dy), 111)
    monkeypatch.setattr(pipeline, "dead_after", lambda region: ())
    with collect() as records:
        apart = gradients(module, x, dy, ON)
    assert overwritten(records) == 0
    return ours, apart, count


NORMS: dict[str, Callable[[int], nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "hf": HFRMSNorm}


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("norm", NORMS)
def test_same_bits(norm: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two norms and the GELU get their gradient from a product, the last norm from the caller."""
    module = randomised(Block(40, NORMS[norm]), dtype)
    ours, apart, count = both(module, monkeypatch)
    assert count == 3
    assert all(map(torch.equal, ours, apart))


def test_same_bits_where_rows_are_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(loops: LoopProgram) -> LoopProgram:
        read_twice.append(reload(loops))
        return read_twice[-1]

    def choose(work: Workload, *args: Any) -> Schedule:
        if not read_twice or work != workload(read_twice[-1]):
            raise TooWide(99, "for the test")
        return chosen(work, *args)

    read_twice: list[LoopProgram] = []
    chosen = pipeline.choose
    monkeypatch.setattr(pipeline, "reload", twice)
    monkeypatch.setattr(pipeline, "choose", choose)
    alone = dataclasses.replace(H200, exchanges=False)
    monkeypatch.setattr(pipeline, "device_info", lambda _: alone)
    ours, apart, count = both(randomised(Block(40), f32), monkeypatch)
    assert read_twice and count == 3
    assert all(map(torch.equal, ours, apart))


def test_symbolic_rows() -> None:
    """One compile serves both batches."""
    module = randomised(Block(40), f32)
    with collect() as records:
        torch._dynamo.reset()
        compiled = torch.compile(module, backend=compile_for_interpreter(ON), dynamic=True)
        found = []
        for batch in (3, 5):
            x, dy = torch.randn(batch, 37, 40).requires_grad_(), torch.randn(batch, 37, 40)
            found.append((x, dy, torch.autograd.grad(compiled(x), [x, *module.parameters()], dy)))
    assert overwritten(records) == 3
    for x, dy, ours in found:
        check(ours, gradients(module, x, dy, OFF), exact_gradients(module, x.detach(), dy), 37 * len(x))


def test_a_result_is_overwritten_by_the_next_region() -> None:
    """Its memory was a product's before. They are two, since the second one waits for dw."""

    def function(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> Any:
        dx, dw = pair(x, g @ w)
        return dw, *pair(torch.cumsum(z * dw, 1), dx)

    torch.manual_seed(0)
    shapes = (37, 40), (37, 8), (8, 40), (37, 40)
    args = [torch.randn(shape, dtype=f64) for shape in shapes]
    with collect() as records:
        torch._dynamo.reset()
        ours = torch.compile(function, backend=compile_for_interpreter(ON), dynamic=False)(*args)
    assert len(records) == 2 and overwritten(records) == 2
    torch.testing.assert_close(list(ours), list(function(*args)))
