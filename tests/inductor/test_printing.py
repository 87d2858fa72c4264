"""Scalar ops as Triton text, where Inductor's printer is not asked or asked otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch

from mixorder.inductor.printing import IndentedBuffer, ScalarPrinter, printing_triton

X = sympy.Symbol("x", integer=True, nonnegative=True)
N = sympy.Symbol("n", integer=True, positive=True)


def printed(op: str, dtypes: list[torch.dtype], result: torch.dtype, *rest: Any) -> list[str]:
    """The lines of an op on variables of these dtypes, which are called `tmp0` and so on."""
    code = IndentedBuffer()
    printer = ScalarPrinter(code, {X: sympy.Integer(100)})
    with printing_triton(), printer.active():
        args = [printer.line("given", dtype) for dtype in dtypes]
        printer.print(op, (*args, *rest), {}, result)
    return code.getvalue().splitlines()[len(dtypes) :]


F32, F64, U8, F8 = torch.float32, torch.float64, torch.uint8, torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("op", "dtypes", "result", "rest", "last"),
    [
        ("add", [F32, F32], F32, (), "tmp2 = tmp0 + tmp1"),
        ("fma", [F32] * 3, F32, (), "tmp3 = tl.fma(tmp0, tmp1, tmp2)"),
        ("exp", [F64], F64, (), "tmp1 = libdevice.exp(tmp0)"),
        ("neg", [F32], F32, (), "tmp1 = tmp0 * -1.0"),
        ("neg", [F64], F64, (), "tmp1 = tmp0 * -1.0"),
        ("neg", [torch.int32], torch.int32, (), "tmp1 = (-tmp0).to(tl.int32)"),
        ("add", [U8, U8], U8, (), "tmp2 = (tmp0 + tmp1).to(tl.uint8)"),
        ("index_expr", [], torch.int64, (), "tmp0 = (x).to(tl.int64)"),
        ("constant", [], F32, (-0.0, F32), "tmp0 = tl.full([], 0.0, tl.float32) * -1.0"),
        ("constant", [], F8, (-0.0, F8), "tmp1 = tmp0.to(tl.float8e4nv)"),
        ("div_rn", [F32, F32], F32, (), "tmp2 = tl.div_rn(tmp0, tmp1)"),
        ("div_rn", [F64, F64], F64, (), "tmp2 = (tmp0 / tmp1)"),
        ("logical_or", [torch.bool, torch.int64], torch.bool, (), "tmp3 = tmp0 | tmp2"),
        ("mul", [F8, F8], F8, (), "tmp5 = tmp4.to(tl.float8e4nv)"),
    ],
)
def test_ops(op: str, dtypes: list[torch.dtype], result: torch.dtype, rest: Any, last: str) -> None:
    rest = (X, result) if op == "index_expr" else rest
    assert printed(op, dtypes, result, *rest)[-1] == last


def test_float64_becomes_fp8_by_way_of_float32() -> None:
    first, _ = printed("to_dtype", [F64], torch.float8_e5m2, torch.float8_e5m2)
    assert first == "tmp1 = tmp0.to(tl.float32)"


def test_fp8_becomes_another_dtype_by_way_of_float32() -> None:
    assert printed("to_dtype", [torch.float8_e4m3fn], F32, F32)[0] == "tmp1 = tmp0.to(tl.float32)"
    assert printed("to_dtype", [torch.float8_e4m3fn], U8, U8)[-1].startswith("tmp2 = tmp1.to(")


@pytest.mark.parametrize(
    ("value", "dtype", "text"), [(1 << 31, "int32", "-2147483648"), (-1, "uint8", "255")]
)
def test_integers_are_wrapped_to_their_dtype(value: int, dtype: str, text: str) -> None:
    (line,) = printed("constant", [], getattr(torch, dtype), value, getattr(torch, dtype))
    assert line == f"tmp0 = tl.full([], {text}, tl.{dtype})"


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (sympy.Integer(7), "tl.full([], 7, tl.int32)"),
        (X * 2**24, "(16777216*x).to(tl.int32)"),
        (X * 2**25, "(33554432*x.to(tl.int64)).to(tl.int32)"),
    ],
)
def test_an_index_is_computed_in_64_bits_where_it_may_need_them(expr: sympy.Expr, text: str) -> None:
    assert printed("index_expr", [], torch.int32, expr, torch.int32) == [f"tmp0 = {text}"]


def test_a_symbolic_size_may_need_64_bits() -> None:
    (line,) = printed("index_expr", [], torch.int32, X * N, torch.int32)
    assert "x.to(tl.int64)" in line


def test_two_expressions_are_combined() -> None:
    printer = ScalarPrinter(IndentedBuffer(), {})
    with printing_triton(), printer.active():
        assert printer.combine("add", "a", "b", F32) == "a + b"
        assert "maximum" in printer.combine("maximum", "a", "b", F32)
