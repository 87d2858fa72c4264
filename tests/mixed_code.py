"""Inductor's code for a GPU that is not there, and its mix-order kernels in Triton's interpreter.

`main` is run in a process of its own, after `fake_cuda.load()`: see tests/inductor/test_mix_order.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch._inductor.scheduler as scheduler
import triton
from support.stand_in import Driver
from torch import Tensor
from torch._inductor.codecache import PyCodeCache
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode

from mixorder.inductor import versions

ROWS, COLS = 40961, 129
FEW = (37, 24)


class Case(NamedTuple):
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...] = ((ROWS, COLS),)
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = {}
    dynamic: bool = False


def sums(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), x.sum(0)


def after(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    return lambda x: (function(x).amax(-1), function(x).sum(0))


def affine(x: Tensor) -> Tensor:
    return x * 2 + 0.25


def kept(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), x.sum(0, keepdim=True)


def kept_and_viewed(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), x.sum(0, keepdim=True).view(-1)


def kept_and_divided(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), x.sum(0, keepdim=True) / 3


def kept_and_multiplied(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), x.sum(0, keepdim=True) @ w


def of_both(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax((-1, -2)), x.sum(0)


def turned(x: Tensor) -> tuple[Tensor, Tensor]:
    largest, total = of_both(x.transpose(1, 2))
    return largest, total.sin()


def turned_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors in one order vote for it, a result in the other against."""
    return of_both(x.transpose(1, 2) * y.transpose(1, 2))


def in_a_table(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.amax(-1), torch.cat([x.sum(0), (x * x).sum(0)])


def of_halves(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    joined = torch.cat([x, y], 1) + 1
    return joined @ joined.t()[:, :3], *sums(joined)


WHOLE = {"split_reductions": False}
SMALL = WHOLE | {"triton.mix_order_reduction_non_strict_mode": True}
DESCRIPTORS = WHOLE | {"triton.use_tensor_descriptor": True, "assume_aligned_inputs": True}
CUBE = ((ROWS, 16, 32),)
HALVES = ((ROWS, 64), (ROWS, 65))

CASES = {
    "affine": Case(after(affine)),
    "exp": Case(after(torch.exp)),
    "few rows": Case(after(affine), (FEW,), options=SMALL),
    "product": Case(lambda x: (x.amax(-1), x.prod(0)), (FEW,), options=SMALL),
    "plain": Case(sums),
    "bfloat16": Case(sums, dtype=torch.bfloat16),
    "keepdim": Case(kept),
    "keepdim, viewed": Case(kept_and_viewed),
    "keepdim, divided": Case(kept_and_divided),
    "keepdim, multiplied": Case(kept_and_multiplied, ((ROWS, COLS), (COLS, 8))),
    "two dims": Case(of_both, CUBE),
    "integers": Case(sums, dtype=torch.int64),
    "counts": Case(lambda x: (x.amax(-1), (x > 0).sum(0))),
    "float64": Case(sums, dtype=torch.float64),
    "float64 of float32": Case(lambda x: (x.amax(-1), x.sum(0, dtype=torch.float64))),
    "table": Case(in_a_table, options=WHOLE),
    "turned": Case(turned, CUBE),
    "turned, whole": Case(turned, CUBE, options=WHOLE),
    "turned twice": Case(turned_twice, CUBE * 2),
    "block pointers": Case(sums, options={"triton.use_block_ptr": True}),
    "descriptors": Case(sums, options=DESCRIPTORS),
    "s0 + s1": Case(of_halves, HALVES, dynamic=True),
}


class Stop(Exception):
    pass


def code_of(case: Case, options: dict[str, Any]) -> str:
    """The code of a graph, which is not loaded."""
    codes: list[str] = []

    def stop(graph: GraphLowering) -> None:
        codes.append(graph.codegen()[0].value)
        raise Stop

    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(shape, dtype=case.dtype, device="cuda") for shape in case.shapes]
    for tensor in inputs if case.dynamic else ():
        torch._dynamo.mark_dynamic(tensor, 1, min=2, max=4096)
    dynamic = None if case.dynamic else False
    options = options | case.options | {"fx_graph_cache": False}
    compiled = torch.compile(case.function, options=options, dynamic=dynamic)
    with mock.patch.object(GraphLowering, "_compile_to_module", stop):
        try:
            compiled(*inputs)
        except Exception as error:
            assert "Stop" in repr(error), error
    (code,) = codes
    return code


def error_of(code: str, case: Case) -> float:
    """Of what a mix-order kernel of a small tensor gives for the columns, relative to the largest."""
    start = code.index("@triton.jit")
    text = code[start : code.index("\n'''", start)]
    imports = "import triton\nimport triton.language as tl\n"
    imports += "from torch._inductor.runtime import triton_helpers\n"
    (name,) = re.findall(r"^def (\w+)", text, re.MULTILINE)
    kernel = getattr(PyCodeCache.load(imports + text), name)
    torch.manual_seed(0)
    x = torch.randn(FEW)
    rows, cols = FEW
    partial = torch.empty(-(-rows // 32), cols)
    kernel[(len(partial),)](x, torch.empty(rows), partial, rows, cols, 4, 32, 1)
    exact = case.function(x.double())[1]
    found = partial.double().prod(0) if "prod" in name else partial.double().sum(0)
    return float((found - exact).abs().max() / exact.abs().max())


ALONE = {"mixorder": True, "mixorder_strict": True, "mixorder_min_numel": 2**62}
STOCK = {"mixorder": False}


def main() -> None:
    """The codes by case: of what mixorder leaves alone (`ours`), also with torch as it once was
    (`old`), and of Inductor without it. Errors of kernels of few rows."""
    scheduler.has_triton = lambda *_: True  # type: ignore[attr-defined]
    triton.runtime.driver.set_active(Driver())
    found: dict[str, dict[str, Any]] = {name: {"ours": code_of(case, ALONE)} for name, case in CASES.items()}
    for name in ("plain", *(name for name in CASES if name.startswith("keepdim")), "s0 + s1"):
        with mock.patch.object(versions, "_in_mix_order", lambda _: False):
            found[name]["old"] = code_of(CASES[name], ALONE)
    for name in ("affine", "integers", "few rows", "product"):
        found[name]["stock"] = code_of(CASES[name], STOCK)
    for name in ("few rows", "product"):
        codes = found[name].items()
        found[name]["errors"] = {who: error_of(code, CASES[name]) for who, code in codes}
    json.dump(found, sys.stdout)
