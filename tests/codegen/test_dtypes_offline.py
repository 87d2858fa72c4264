"""Each value of a kernel has in Triton the dtype that the IR states, as compiled without a GPU."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32, f64, generating, traced
from offline import Known, needs_a_compiler
from reduced_dtypes import CASES, Reduction, case_name, program
from torch._inductor.codegen.triton import triton_compute_type
from torch._inductor.lowering import lowerings
from triton.compiler import ASTSource

from mixorder import pipeline
from mixorder.codegen.op_printer import OpPrinter
from mixorder.codegen.source import KernelSource
from mixorder.inductor.graphs import is_lowered_pointwise
from mixorder.ir.program import Compute, LoopProgram
from mixorder.options import Options
from mixorder.tune.compile import compile_job, job_of

aten = torch.ops.aten
pytestmark = needs_a_compiler

OPTIONS = Options(enabled=True, strict=True, interpret=True, min_numel=0)
SM_90 = ("cuda", 90, 32)


@pytest.fixture
def made(
    monkeypatch: pytest.MonkeyPatch, plan_with: Callable[..., None]
) -> list[tuple[LoopProgram, KernelSource]]:
    """The kernels of a pass, with an assertion about each value behind its line."""
    found: list[tuple[LoopProgram, KernelSource]] = []
    line = OpPrinter.line

    def asserting(self: OpPrinter, text: str, dtype: torch.dtype) -> Any:
        variable = line(self, text, dtype)
        stated = "tl.int1" if dtype == torch.bool else triton_compute_type(dtype)
        self.code.writeline(f"tl.static_assert({variable}.dtype == {stated}, '{variable} is to be {stated}')")
        return variable

    def noting(generate: Any, loops: LoopProgram, *rest: Any) -> Any:
        kernels = generate(loops, *rest)
        found.extend((loops, kernel) for kernel in kernels)
        return kernels

    monkeypatch.setattr(OpPrinter, "line", asserting)
    plan_with(strategies=generating(noting))
    return found


def compiled(made: list[tuple[LoopProgram, KernelSource]]) -> int:
    for loops, kernel in made:
        assert "tl.static_assert" in kernel.text
        compile_job(job_of(loops, kernel, SM_90))
    return len(made)


class Asserted(Exception):
    """Triton's own IR is made, and with it what is asserted is true."""


def check_ir(made: list[tuple[LoopProgram, KernelSource]], monkeypatch: pytest.MonkeyPatch) -> None:
    make_ir = ASTSource.make_ir

    def make_and_stop(self: ASTSource, *args: Any) -> None:
        make_ir(self, *args)
        raise Asserted

    monkeypatch.setattr(ASTSource, "make_ir", make_and_stop)
    assert len(made) >= 2
    for one in made:
        with contextlib.suppress(Asserted):  # a finalisation may have been compiled for another case
            compiled([one])


# To machine code a few: that is most of the time, and says nothing more of dtypes.
@pytest.mark.parametrize(
    ("chosen", "whole"), [(c, i % 4 == 0) for i, c in enumerate(CASES[::2])], ids=case_name
)
def test_reductions(
    chosen: list[Reduction],
    whole: bool,
    made: list[tuple[LoopProgram, KernelSource]],
    known: Known,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = traced(program(chosen, inside=True), ((300, 24), f32), ((300, 24), f32))
    pipeline.run(graph, OPTIONS)
    if known(SM_90, *made):
        return
    if whole:
        assert compiled(made) >= 2
        return
    check_ir(made, monkeypatch)


def bytes_that_overflow(x: Any, y: Any) -> Any:
    """Triton makes 32-bit numbers of such expressions, which a byte's would not be."""
    z = x * (x * y).sum(-1, keepdim=True)
    small = (z * 8).to(torch.uint8)
    halved = (small // 2 + 200) * 3 - ~small
    return z, (z * y).sum(0), halved, halved * small, halved.to(torch.int8) << 1


def test_bytes(made: list[tuple[LoopProgram, KernelSource]], known: Known) -> None:
    pipeline.run(traced(bytes_that_overflow, ((300, 24), f32), ((300, 24), f32)), OPTIONS)
    assert known(SM_90, *made) or compiled(made) >= 2


@pytest.mark.parametrize("graph", ["layer", "rms"])
def test_norms(graph: str, made: list[tuple[LoopProgram, KernelSource]], known: Known) -> None:
    make = {"layer": graphs.layer_norm_backward, "rms": graphs.rms_norm_backward}[graph]
    pipeline.run(make(512, 256), OPTIONS)
    assert known(SM_90, *made) or compiled(made) == 2


def test_a_negative_zero_keeps_its_sign(made: list[tuple[LoopProgram, KernelSource]]) -> None:
    """Triton makes +0 of the number -0.0."""

    def function(x: Any, y: Any) -> Any:
        z = x * (x * y).sum(-1, keepdim=True)
        return torch.where(y > 0, -0.0, z), (z * y).sum(0)

    pipeline.run(traced(function, ((300, 24), f32), ((300, 24), f32)), OPTIONS)
    kernel = compile_job(job_of(*made[0], SM_90))
    assert re.search(r"arith.constant (dense<)?-0\.0+e\+00", kernel.asm["ttir"])


QUOTIENTS: dict[str, Callable[..., Any]] = {
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, a * b + 2, value=3),
    "addcdiv_of_one": lambda a, b: torch.addcdiv(a, b, a * b + 2),
}


@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_quotients_of_float64(
    quotient: str, made: list[tuple[LoopProgram, KernelSource]], known: Known
) -> None:
    """Triton has no `tl.div_rn` of float64."""

    def function(x: Any, y: Any, a: Any, b: Any) -> Any:
        z = x * (x * y).sum(-1, keepdim=True)
        return z, (z * y).sum(0), (QUOTIENTS[quotient](a, b) * z).sum(0)

    pipeline.run(traced(function, *[((300, 24), f32)] * 2, *[((300, 24), f64)] * 2), OPTIONS)
    assert any(" / " in kernel.text for _, kernel in made)
    assert known(SM_90, *made) or compiled(made) >= 2


def test_fp8_is_not_read(made: list[tuple[LoopProgram, KernelSource]], known: Known) -> None:
    """Triton has no masked load of it. What chooses between tensors of it reads them."""
    f8 = torch.float8_e4m3fn

    def function(x: Any, y: Any, a: Any, b: Any) -> Any:
        z = x * (x * y).sum(-1, keepdim=True)
        return z, (z * y).sum(0), (torch.where(y > 0, a, b).to(f32) * z).sum(0)

    pipeline.run(traced(function, *[((300, 24), f32)] * 2, *[((300, 24), f8)] * 2), OPTIONS)
    assert known(SM_90, *made) or compiled(made) >= 2
    assert f8 not in {buffer.dtype for loops, _ in made for buffer in loops.buffers}


POWERS = (aten.pow.Scalar, aten.pow.Tensor_Tensor)


def operators(dtype: torch.dtype) -> list[Callable[..., Any]]:
    """Inductor's pointwise operators that eager has for tensors of this dtype, as functions of three."""
    numbers = [torch.ones(3, dtype=dtype) for _ in range(3)]
    found = []
    for target in sorted(filter(is_lowered_pointwise, list(lowerings)), key=str):
        if target in POWERS and not dtype.is_floating_point:
            continue  # Inductor calls eager's kernel
        for rounding in ("floor", "trunc") if target is aten.div.Tensor_mode else (None,):
            call = functools.partial(called, target, rounding)
            with contextlib.suppress(Exception):  # it is not eager's, or not for this dtype
                call(*(t.to("meta") for t in numbers))
                found += [call] * isinstance(call(*numbers), torch.Tensor)
    return found


def called(target: Any, rounding: str | None, *tensors: torch.Tensor) -> Any:
    given, args, kwargs = iter(tensors), [], {}
    for argument in target._schema.arguments:
        if argument.name == "rounding_mode":
            kwargs["rounding_mode"] = rounding
        elif str(argument.type) == "Tensor":
            args.append(next(given) > 0 if argument.name == "condition" else next(given))
        elif not argument.has_default_value():
            args.append(f32 if argument.name == "dtype" else 3)
        elif argument.kwarg_only and argument.name in ("alpha", "value"):
            kwargs[argument.name] = 3
    return target(*args, **kwargs)


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (bf16, f32, f64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, *FLOAT8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_pointwise_operator(
    dtype: torch.dtype,
    made: list[tuple[LoopProgram, KernelSource]],
    known: Known,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, stored = operators(dtype), f32 if dtype in FLOAT8 else dtype  # no kernel reads these
    assert len(found) > (5 if dtype in FLOAT8 else 80)

    def function(x: Any, y: Any, *given: Any) -> Any:
        z = x * (x * y).sum(-1, keepdim=True)
        total = sum(call(*(t.to(dtype) for t in given)).to(f32) for call in found)
        return z, (z * y).sum(0), (total * z).sum(0)

    pipeline.run(traced(function, *[((300, 24), f32)] * 2, *[((300, 24), stored)] * 3), OPTIONS)
    assert len(found) < sum(isinstance(s, Compute) for s in made[0][0].nests[0].statements)
    if known(SM_90, *made):
        return
    if dtype in (f64, *FLOAT8):
        assert compiled(made) >= 2
    else:
        check_ir(made, monkeypatch)
