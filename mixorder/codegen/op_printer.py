"""Print pointwise statements as Triton, through Inductor's own op printer.

Takes `Compute` statements one by one, appends `tmpN = ...` lines to a buffer, and returns the variables.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import sympy
import torch

from ..errors import Decline, DeclineReason
from ..inductor.printing import CSEVariable, IndentedBuffer, ScalarPrinter, printing_triton
from ..ir.program import Compute, Load, LoopProgram, Reduce, Ref
from . import bfloat16, branchless, quotients

FUNCTIONS = {**branchless.FUNCTIONS, **bfloat16.FUNCTIONS, **quotients.FUNCTIONS}


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


class OpPrinter(ScalarPrinter):
    """One kernel's variables. Lines go to `code`, to which the kernel writer appends as well.

    `variables`: IR values by name.
    """

    def __init__(
        self, code: IndentedBuffer, loops: Mapping[sympy.Symbol, sympy.Expr], exact: bool = False
    ) -> None:
        super().__init__(code, loops, exact)
        self.variables: MutableMapping[str, CSEVariable] = {}

    def define(self, text: str, dtype: torch.dtype, name: str | None = None) -> CSEVariable:
        """Write `tmpN = text` and return the variable, known as the IR value `name` if one is given."""
        variable = self.line(text, dtype)
        if name is not None:
            self.variables[name] = variable
        return variable

    def compute(self, stmt: Compute) -> None:
        args = tuple(self._resolve(a) for a in stmt.args)
        kwargs = {k: self._resolve(v) for k, v in stmt.kwargs}
        self.variables[stmt.name] = self.print(stmt.op, args, kwargs, stmt.dtype)

    def print(
        self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
    ) -> CSEVariable:
        if (function := FUNCTIONS.get(op)) is not None:
            return self.line(function.called(op, *args), dtype)
        return super().print(op, args, kwargs, dtype)

    def check(self, stmt: Compute) -> None:
        """Print a statement. Raises `Decline`, with the name of the node it comes from, if that fails."""
        try:
            self.compute(stmt)
        except Exception as error:
            detail = f"ops.{stmt.op} cannot be printed: {type(error).__name__}: {error}"
            raise Decline(DeclineReason.UNSUPPORTED_OP, detail, stmt.name.split(".")[0]) from error

    def _resolve(self, arg: Any) -> Any:
        return self.variables[arg.name] if isinstance(arg, Ref) else arg
