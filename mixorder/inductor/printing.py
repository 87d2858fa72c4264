"""Inductor's printer of scalar ops as Triton text, and the text tools around it."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable
from torch._inductor.codegen.triton import TritonOverrides, texpr, triton_compute_type
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import ValueRanges

from .ops import DefaultHandler, handling, result_dtype, unwrapped
from .symbols import INT32_LIMIT, wide_symbols

__all__ = ["CSEVariable", "IndentedBuffer", "texpr", "triton_compute_type"]

# Inductor's kernels call libdevice for these in float64. `tl.sqrt_rn` has no float64 version.
_LIBDEVICE_FP64 = ("exp", "sqrt", "cos", "sin", "log")
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
COMPARED = {  # NaN is propagated
    "maximum": "tl.where(({0} > {1}) | ({0} != {0}), {0}, {1})",
    "minimum": "tl.where(({0} < {1}) | ({0} != {0}), {0}, {1})",
}
AT_ONCE = {op: f"tl.{op}({{}}, {{}}, propagate_nan=tl.PropagateNan.ALL)" for op in COMPARED}
_DIV_RN = "tl.div_rn({}, {})"  # Inductor's printer has it in some versions only
_EXACT = COMPARED | {"truediv": _DIV_RN, "reciprocal": "tl.div_rn(1.0, {})"}
_ON_FLOAT8 = ("to_dtype", "to_dtype_bitcast", "where")  # what Triton can do with it
_TYPED = ("to_dtype", "to_dtype_bitcast", "constant")  # ops whose text states the dtype


@contextlib.contextmanager
def printing_triton() -> Iterator[None]:
    """Inside, Inductor's printers find the part of a graph that they read."""
    device = torch.device("cuda", 0)
    graph = types.SimpleNamespace(current_device=device, get_current_device_or_throw=lambda: device)
    with V.set_graph_handler(graph):
        yield


class ScalarPrinter(DefaultHandler):
    """Prints ops on variables as lines `tmpN = ...` of `code`. `code` may be replaced between lines.

    `loops`: the sizes of loop symbols. `names`: names of loop symbols in the text, where they differ.
    `exact`: divisions in float32 are rounded to the nearest, as in eager (Triton's `/` has an error of 2
    ulp), and maxima are comparisons unless they are `at_once`: where values are cast to floats of one byte,
    ptxas of CUDA 12 may write wrong bytes beside its own instruction for a maximum that propagates NaN
    (triton-lang/triton#11111).
    """

    def __init__(
        self, code: IndentedBuffer, loops: Mapping[sympy.Symbol, sympy.Expr], exact: bool = False
    ) -> None:
        self.code = code
        self.loops = loops
        self.exact = exact
        self.at_once = False
        self.names: Mapping[sympy.Symbol, sympy.Symbol] = {}
        self._printer = TritonOverrides()
        self._count = 0
        # Some of Inductor's printers ask the kernel for names of intermediate values.
        cse = types.SimpleNamespace(varname_map={}, generate=self._generate)
        self._kernel = types.SimpleNamespace(min_elem_per_thread=0, compute=code, cse=cse)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this the handler of `ops`: some of Inductor's printers call other printers through `ops`."""
        with handling(self), V.set_kernel_handler(self._kernel):
            yield

    def _generate(self, code: IndentedBuffer, text: str, *, dtype: torch.dtype, **_: Any) -> CSEVariable:
        return self.line(text, dtype)

    def line(self, text: str, dtype: torch.dtype) -> CSEVariable:
        """Write `tmpN = text` and return the variable."""
        variable = CSEVariable(f"tmp{self._count}", ValueRanges.unknown(), dtype)
        self._count += 1
        self.code.writeline(f"{variable} = {text}")
        return variable

    def combine(self, op: str, left: str, right: str, dtype: torch.dtype) -> str:
        """The text of a binary op on two expressions of one dtype."""
        operands = (CSEVariable(text, ValueRanges.unknown(), dtype) for text in (left, right))
        return str(getattr(self._printer, op)(*operands))

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = tuple(map(unwrapped, args))
        dtype = result_dtype(name, args, kwargs)
        return self.print(name, args, kwargs, dtype)

    def print(
        self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
    ) -> CSEVariable:
        """Write an op on variables, and return the variable of its result, which has this dtype."""
        if op == "index_expr":  # Inductor's printer needs one of Inductor's kernels for it
            return self.line(self._index(args[0], triton_compute_type(dtype)), dtype)
        if op == "constant" and dtype in _INTEGERS:
            args = (_wrapped(args[0], dtype), *args[1:])
        if op == "constant" and dtype.is_floating_point and repr(float(args[0])) == "-0.0":
            return self._negative_zero(dtype)
        if op == "constant" and _is_float8(dtype):  # triton 3.6 makes none
            wide = self.print(op, (args[0], torch.float32), {}, torch.float32)
            return self.print("to_dtype", (wide, dtype), {}, dtype)
        if op.startswith("logical_"):  # Triton's `|` of a truth value and a number is a number
            args = tuple(self.line(f"{a} != 0", dtype) if a.dtype in _INTEGERS else a for a in args)
        if op not in _ON_FLOAT8 and any(_is_float8(getattr(a, "dtype", None)) for a in args):
            return self._in_float32(op, args, kwargs, dtype)
        if op == "to_dtype" and _is_float8(args[0].dtype):  # Inductor's printer asks a GPU how it has them
            args = (self.line(f"{args[0]}.to(tl.float32)", torch.float32), args[1])
            kwargs = {name: value for name, value in kwargs.items() if name != "src_dtype"}
        if op == "to_dtype" and args[0].dtype == torch.float64 and _is_float8(dtype):
            # Via float32, as in eager: Triton has no cast from float64 to fp8.
            args = (self.line(f"{args[0]}.to(tl.float32)", torch.float32), *args[1:])
        if self.exact and dtype == torch.float32 and op in _EXACT:
            text = AT_ONCE[op] if self.at_once and op in AT_ONCE else _EXACT[op]
            return self.line(text.format(*args), dtype)
        if op == "neg" and dtype.is_floating_point:
            # Triton's `-x` is `0 - x`: an instruction of its own, and +0 where eager has -0.
            return self.line(f"{args[0]} * -1.0", dtype)
        if op == "div_rn":  # Triton's `/` of float64 is rounded to the nearest; `tl.div_rn` takes no float64
            text = "({} / {})" if dtype == torch.float64 else _DIV_RN
            return self.line(text.format(*args), dtype)
        if op == "fma":  # Inductor's printer has it in some versions only
            return self.line(f"tl.fma({', '.join(map(str, args))})", dtype)
        if op in _LIBDEVICE_FP64 and args[0].dtype == torch.float64:
            return self.line(f"libdevice.{op}({args[0]})", dtype)
        text = unwrapped(getattr(self._printer, op)(*args, **kwargs))
        if dtype in _INTEGERS and op not in _TYPED:
            # Triton computes `byte // 2` in 32 bits, which do not overflow as a byte does.
            text = f"({text}).to({triton_compute_type(dtype)})"
        return text if isinstance(text, CSEVariable) else self.line(text, dtype)

    def _negative_zero(self, dtype: torch.dtype) -> CSEVariable:
        """The number -0.0, of which Triton makes +0."""
        wide = torch.float32 if _is_float8(dtype) else dtype
        zero = self.line(f"tl.full([], 0.0, {triton_compute_type(wide)}) * -1.0", wide)
        return zero if wide == dtype else self.print("to_dtype", (zero, dtype), {}, dtype)

    def _in_float32(
        self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
    ) -> CSEVariable:
        """An op on float8, which Triton and its libraries mostly have not."""
        f32 = torch.float32
        narrow = [_is_float8(getattr(a, "dtype", None)) for a in args]
        wide = (self.line(f"{a}.to(tl.float32)", f32) if n else a for a, n in zip(args, narrow, strict=True))
        result = self.print(op, tuple(wide), kwargs, f32 if _is_float8(dtype) else dtype)
        return self.print("to_dtype", (result, dtype), {}, dtype) if _is_float8(dtype) else result

    def offset(self, index: sympy.Expr) -> str:
        """The text of an index expression."""
        return offset_text(index.xreplace(self.names))

    def _index(self, expr: sympy.Expr, dtype: str) -> str:
        """An index or a size as a value; in 64 bits where a part of it may need them."""
        if not expr.free_symbols & self.loops.keys():
            return f"tl.full([], {texpr(expr)}, {dtype})"
        if wide_symbols([expr], self.loops):
            names = {s: f"{self.names.get(s, s)}.to(tl.int64)" for s in self.loops}
            wide = {s: sympy.Symbol(name, integer=True, nonnegative=True) for s, name in names.items()}
            expr = expr.xreplace(wide)
        return f"({self.offset(expr)}).to({dtype})"


def offset_text(index: sympy.Expr) -> str:
    """The text of an offset. Triton would take a number between 2**31 and 2**32 as one of 32 bits."""
    large = index.is_number and index >= INT32_LIMIT
    return f"tl.full([], {index}, tl.int64)" if large else texpr(index)


def _wrapped(value: int, dtype: torch.dtype) -> int:
    """A number as an integer dtype has it, such as 1 << 31 in 32 bits."""
    limits = torch.iinfo(dtype)
    return (int(value) - limits.min) % (limits.max - limits.min + 1) + limits.min


def _is_float8(dtype: torch.dtype | None) -> bool:
    return dtype is not None and dtype.is_floating_point and dtype.itemsize == 1
