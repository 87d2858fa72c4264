"""Print pointwise ops as Triton, through Inductor's own op printer.

Takes `Compute` statements one by one, appends `tmpN = ...` lines to a buffer, and hands out the variables.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable
from torch._inductor.codegen.triton import TritonOverrides, texpr, triton_compute_type
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.utils import IndentedBuffer
from torch._inductor.virtualized import OpsValue, V
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ..errors import Decline, DeclineReason
from ..ir.dtypes import FLOAT8, INTEGERS
from ..ir.program import Compute, Load, LoopProgram, Reduce, Ref

_INT32_LIMIT = 2**31
# What Inductor's kernels call libdevice for in float64. Of these `tl.sqrt_rn` takes no float64 at all.
_LIBDEVICE_FP64 = ("exp", "sqrt", "cos", "sin", "log")
_TYPED = ("to_dtype", "to_dtype_bitcast", "constant")  # ops whose text states the dtype


@contextlib.contextmanager
def printing_triton() -> Iterator[None]:
    """The little of a graph and a kernel that Inductor's printers look at while they print."""
    device = torch.device("cuda", 0)
    graph = types.SimpleNamespace(current_device=device, get_current_device_or_throw=lambda: device)
    with V.set_graph_handler(graph):
        yield


def check_printable(program: LoopProgram) -> LoopProgram:
    """The program, unchanged. Raises `Decline` for an op that Inductor cannot print with such operands."""
    with printing_triton():
        for nest in program.nests:
            printer = OpPrinter(IndentedBuffer(), {axis.symbol: axis.size for axis in nest.loops})
            with printer.active():
                for stmt in nest.statements:
                    if isinstance(stmt, Compute):
                        printer.check(stmt)
                    elif isinstance(stmt, Load | Reduce):
                        printer.define(stmt.name, stmt.dtype, stmt.name)
    return program


class OpPrinter(DefaultHandler):
    """One kernel's variables. `code` is where the next line goes; the kernel writer moves it along.

    `variables`: IR values by name. `names`: what loop symbols are called in the text, if not by their own
    names.
    """

    def __init__(self, code: IndentedBuffer, loops: Mapping[sympy.Symbol, sympy.Expr]) -> None:
        self.code = code
        self.loops = loops
        self.variables: MutableMapping[str, CSEVariable] = {}
        self.names: Mapping[sympy.Symbol, sympy.Symbol] = {}
        self._printer = TritonOverrides()
        self._dtypes = DtypePropagationOpsHandler()
        self._count = 0
        # What some of Inductor's printers ask of the kernel: names for values on the way.
        cse = types.SimpleNamespace(varname_map={}, generate=self._generate)
        self._kernel = types.SimpleNamespace(min_elem_per_thread=0, compute=code, cse=cse)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this the handler of `ops`: some of Inductor's printers call others through it."""
        with V.set_ops_handler(self), V.set_kernel_handler(self._kernel):
            yield

    def _generate(self, code: IndentedBuffer, text: str, *, dtype: torch.dtype, **_: Any) -> CSEVariable:
        return self.define(text, dtype)

    def define(self, text: str, dtype: torch.dtype, name: str | None = None) -> CSEVariable:
        """Write `tmpN = text` and return the variable, known as the IR value `name` if one is given."""
        variable = CSEVariable(f"tmp{self._count}", ValueRanges.unknown(), dtype)
        self._count += 1
        self.code.writeline(f"{variable} = {text}")
        if name is not None:
            self.variables[name] = variable
        return variable

    def compute(self, stmt: Compute) -> None:
        args = tuple(self._resolve(a) for a in stmt.args)
        kwargs = {k: self._resolve(v) for k, v in stmt.kwargs}
        self.variables[stmt.name] = self._print(stmt.op, args, kwargs, stmt.dtype)

    def check(self, stmt: Compute) -> None:
        """Print a statement. Raises `Decline`, with the name of the node it comes from, if that fails."""
        try:
            self.compute(stmt)
        except Exception as error:
            detail = f"ops.{stmt.op} cannot be printed: {type(error).__name__}: {error}"
            raise Decline(DeclineReason.UNSUPPORTED_OP, detail, stmt.name.split(".")[0]) from error

    def combine(self, op: str, left: str, right: str, dtype: torch.dtype) -> str:
        """The text of a binary op on two expressions of one dtype."""
        operands = (CSEVariable(text, ValueRanges.unknown(), dtype) for text in (left, right))
        return str(getattr(self._printer, op)(*operands))

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = tuple(a.value if isinstance(a, OpsValue) else a for a in args)
        dtype = getattr(self._dtypes, name)(*args, **kwargs)
        return self._print(name, args, kwargs, dtype)

    def _print(
        self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
    ) -> CSEVariable:
        if op == "index_expr":  # Inductor's printer asks a kernel of its own for it
            return self.define(self._index(args[0], triton_compute_type(dtype)), dtype)
        if op == "to_dtype" and args[0].dtype == torch.float64 and dtype in FLOAT8:
            # By float32, as eager does: Triton has no way from float64 to fp8.
            args = (self.define(f"{args[0]}.to(tl.float32)", torch.float32), *args[1:])
        if op == "fma":  # which Inductor's printer has in some versions only
            return self.define(f"tl.fma({', '.join(map(str, args))})", dtype)
        if op in _LIBDEVICE_FP64 and args[0].dtype == torch.float64:
            return self.define(f"libdevice.{op}({args[0]})", dtype)
        text = getattr(self._printer, op)(*args, **kwargs)
        text = text.value if isinstance(text, OpsValue) else text
        if dtype in INTEGERS and op not in _TYPED:
            # Triton makes `byte // 2` a 32-bit number, which would not overflow as a byte does.
            text = f"({text}).to({triton_compute_type(dtype)})"
        return text if isinstance(text, CSEVariable) else self.define(text, dtype)

    def offset(self, index: sympy.Expr) -> str:
        """The text of an index expression."""
        return texpr(index.xreplace(self.names))

    def _index(self, expr: sympy.Expr, dtype: str) -> str:
        """An index or a size as a value; in 64 bits where some part of it may need them."""
        if not expr.free_symbols & self.loops.keys():
            return f"tl.full([], {texpr(expr)}, {dtype})"
        ranges = {s: ValueRanges(0, n - 1) for s, n in self.loops.items() if n.is_number}
        parts = [e for e in sympy.preorder_traversal(expr) if isinstance(e, sympy.Expr)]
        bounds = [bound_sympy(e, ranges) for e in parts] if expr.free_symbols <= ranges.keys() else []
        if not bounds or any(b.lower < -_INT32_LIMIT or b.upper >= _INT32_LIMIT for b in bounds):
            names = {s: f"{self.names.get(s, s)}.to(tl.int64)" for s in self.loops}
            wide = {s: sympy.Symbol(name, integer=True, nonnegative=True) for s, name in names.items()}
            expr = expr.xreplace(wide)
        return f"({self.offset(expr)}).to({dtype})"

    def _resolve(self, arg: Any) -> Any:
        return self.variables[arg.name] if isinstance(arg, Ref) else arg
