"""Pieces of PTX for one element versus Triton's own, for all 2**32 float32."""

from __future__ import annotations

import pytest
import torch

from mixorder.codegen.load import load_function
from mixorder.codegen.op_printer import FUNCTIONS
from mixorder.transform.branches import FUNCTIONS as OF_LIBRARY
from mixorder.transform.branches import PREFIX
from mixorder.transform.few_bits import LEAST_DIVISOR, QUOTIENT
from mixorder.transform.quotients import CORRECTED, INVERSE, LEAST, MOST
from mixorder.transform.rounding import ROUNDED

BLOCK, CALLS = 1024, 64
MODULE = """\
import triton
import triton.language as tl
from torch._inductor.runtime.triton_helpers import libdevice


@triton.jit
def compare(count_ptr, start):
    x = (start + tl.program_id(0).to(tl.int64) * 1024 + tl.arange(0, 1024)).to(tl.int32).to(tl.float32, bitcast=True)
    ours = {ours}
    theirs = {theirs}
    same = (ours.to(tl.int32, bitcast=True) == theirs.to(tl.int32, bitcast=True)) | ((ours != ours) & (theirs != theirs))
    tl.atomic_add(count_ptr, tl.sum((~same).to(tl.int32)))
"""  # noqa: E501


def called(op: str, *args: object) -> str:
    return FUNCTIONS[op].called(op, *args)


def cases() -> dict[str, tuple[str, str]]:
    found = {name: (called(PREFIX + name, "x"), f"libdevice.{name}(x)") for name in OF_LIBRARY}
    size = "tl.abs(x)"
    used = f"(({size} >= {LEAST}) & ({size} <= {MOST})) | (x == 0.0) | ({size} == float('inf')) | (x != x)"
    inverses = (called(INVERSE, "x"), "tl.div_rn(1.0, x)")
    ours, theirs = (f"tl.where({used}, {inverse}, 0.0)" for inverse in inverses)
    found["inverse"] = (ours, theirs)
    return found | {"bfloat16": (called(ROUNDED, "x"), "x.to(tl.bfloat16).to(tl.float32)")}


@pytest.mark.parametrize("name", sorted(cases()))
def test_every_float32(name: str) -> None:
    ours, theirs = cases()[name]
    kernel = load_function(MODULE.format(ours=ours, theirs=theirs), "compare")
    differing = torch.zeros(1, dtype=torch.int32, device="cuda")
    each = 2**32 // CALLS
    for call in range(CALLS):
        kernel[(each // BLOCK,)](differing, -(2**31) + call * each)
    assert differing.item() == 0


QUOTIENTS = """\
import triton
import triton.language as tl


@triton.jit
def divide(in_ptr, out_ptr):
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    x = tl.load(in_ptr + at).to(tl.float32)
    tl.store(out_ptr + at, {quotient})
"""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dividend", [448.0, 57344.0, 6.0, 4.0, 1000003.0])
def test_quotients_by_every_number_in_half_precision(dividend: float, dtype: torch.dtype) -> None:
    kernel = load_function(QUOTIENTS.format(quotient=called(QUOTIENT, "x", dividend)), "divide")
    x = torch.arange(2**16, dtype=torch.int32, device="cuda").to(torch.int16).view(dtype)
    found = torch.full((2**16,), 77.0, device="cuda")
    kernel[(2**16 // 1024,)](x, found)
    wanted = torch.tensor(dividend, device="cuda") / x.float()
    used = (x.float() >= LEAST_DIVISOR) & ~x.isnan()
    assert int(used.sum()) > 29000 and torch.equal(found[used], wanted[used])
    assert found[x.isnan()].isnan().all()


CORRECTIONS = """\
import triton
import triton.language as tl


@triton.jit
def divide(a_ptr, s_ptr, out_ptr):
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    a, s = tl.load(a_ptr + at), tl.load(s_ptr + at)
    inverse = {inverse}
    tl.store(out_ptr + at, {quotient})
"""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_quotients_of_numbers_by_divisors_in_range(dtype: torch.dtype) -> None:
    inverse = called(INVERSE, "s")
    quotient = called(CORRECTED, "a", "s", "inverse")
    kernel = load_function(CORRECTIONS.format(inverse=inverse, quotient=quotient), "divide")
    size = 2**26
    generator = torch.Generator("cuda").manual_seed(0)

    def drawn(low: int, high: int) -> torch.Tensor:
        mantissas = 1 + torch.rand(size, device="cuda", generator=generator, dtype=torch.float64)
        exponents = torch.randint(low, high, (size,), device="cuda", generator=generator)
        return torch.ldexp(mantissas, exponents).float()

    a = drawn(-40, 40) * torch.randn(size, device="cuda", generator=generator).sign()
    a = a.to(dtype).float()
    s = drawn(-60, 60)
    a[:5] = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 3.0], device="cuda")
    s[4] = float("inf")
    found = torch.full((size,), 77.0, device="cuda")
    kernel[(size // 1024,)](a, s, found)
    bits = [
        x.nan_to_num(nan=7.0, posinf=float("inf"), neginf=-float("inf")).view(torch.int32)
        for x in (found, a / s)
    ]
    assert torch.equal(*bits)


SIGMOID = """\
import triton
import triton.language as tl


@triton.jit
def sigmoid(in_ptr, out_ptr):
    at = tl.program_id(0).to(tl.int64) * 1024 + tl.arange(0, 1024)
    x = tl.load(in_ptr + at)
    tl.store(out_ptr + at, {sigmoid})
"""


def test_the_sigmoid_of_every_float32_is_that_of_eager() -> None:
    """But for the last bit of subnormal numbers."""
    kernel = load_function(SIGMOID.format(sigmoid=called(f"{PREFIX}sigmoid", "x")), "sigmoid")
    each = 2**32 // CALLS
    for call in range(CALLS):
        bits = torch.arange(each, device="cuda") + (call * each - 2**31)
        x = bits.to(torch.int32).view(torch.float32)
        found = torch.full_like(x, 77.0)
        kernel[(each // 1024,)](x, found)
        wanted = torch.sigmoid(x)
        off = (found.view(torch.int32) - wanted.view(torch.int32)).abs()
        right = (off == 0) | ((wanted < 2.0**-126) & (off == 1)) | (x.isnan() & found.isnan())
        assert bool(right.all())
