"""What the writers of all kernels share: parameters, casts of what is loaded, steps of a reduction."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable
from typing import Any

import sympy
import torch

from ..inductor.printing import AT_ONCE, COMPARED, IndentedBuffer, triton_compute_type
from ..ir.dtypes import INTEGERS, computed_in
from ..ir.program import (
    Axis,
    Buffer,
    BufferRole,
    Compute,
    Exchange,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Store,
)
from ..ir.reductions import ReductionKind
from .op_printer import OpPrinter
from .source import KernelSource, LaunchConfig

_REDUCER = """\
@triton.jit
def {}_or_nan(a, b):
    return {}


"""


class KernelText:
    """The text of one nest's kernel, or of a function that kernels call, in `code`. `exact`: results have
    eager's bits."""

    def __init__(self, program: LoopProgram, nest: Nest, loops: Iterable[Axis], exact: bool = False) -> None:
        self.program, self.nest = program, nest
        self.code = IndentedBuffer()
        self.ops = OpPrinter(self.code, {axis.symbol: axis.size for axis in loops}, exact)
        self.deps = nest.dependence()
        self.buffers = buffers_of(program, nest)
        self.sizes = tuple(map(str, program.sizes_of(nest)))
        statements, symbols = nest.statements, dict.fromkeys(self.ops.loops, sympy.S.One)
        accesses = (s for s in statements if isinstance(s, Load | Store | PartialAccumulate))
        self.indices = tuple(dict.fromkeys(s.index for s in accesses))
        # Sizes that are values. A loop's symbol as a value is cast where it is used (`ScalarPrinter`).
        args = (arg for s in statements if isinstance(s, Compute) for arg in s.args)
        self.numbers = [arg.xreplace(symbols) for arg in args if isinstance(arg, sympy.Expr)]
        self.compared = False  # whether maxima are comparisons, where their instruction is not to be used
        self.reducers: dict[str, str] = {}  # functions that the kernel calls for maxima, by their ops

    def begin_function(self, *parameters: str, name: str = "KERNEL") -> None:
        """Begin the kernel, or a function of this name, which has the buffers as its first parameters."""
        pointers = [buffer.pointer for buffer in self.buffers]
        self.code.writeline("@triton.jit")
        self.code.writeline(f"def {name}({', '.join([*pointers, *parameters])}):")
        self.code.do_indent()

    def begin_kernel(self, wide: Collection[str], *parameters: str, name: str = "KERNEL") -> None:
        """Begin the kernel, which also has symbolic sizes as parameters: those in `wide` in 64 bits."""
        self.begin_function(*self.sizes, *parameters, name=name)
        for size in self.sizes:
            if size in wide:
                self.code.writeline(f"{size} = tl.full([], {size}, tl.int64)")

    def text(self) -> str:
        """The kernel, behind the functions that it calls."""
        return "".join((*self.reducers.values(), self.code.getvalue()))

    def source(self, name: str, grid: int | sympy.Expr, config: LaunchConfig, **launch: Any) -> KernelSource:
        """The kernel; `launch` has other fields of its record."""
        name, text = named(name, self.text())
        written = _written(self.program, self.nest)
        return KernelSource(
            name,
            text,
            buffers=tuple(b.name for b in self.buffers),
            written=tuple(b.name for b in self.buffers if b.name in written),
            sizes=self.sizes,
            grid=int(grid) if sympy.sympify(grid).is_number else grid,
            config=config,
            **launch,
        )

    def pointer(self, buffer: str) -> str:
        """The parameter for a buffer, or for the input whose memory it reuses."""
        return self.program.memory(buffer).pointer

    def dtype(self, stmt: PartialAccumulate) -> torch.dtype:
        """What a partial is accumulated in."""
        return computed_in(self.program.buffer(stmt.buffer).dtype)

    def cast(self, load: Load, text: str) -> str:
        """What is loaded, in the dtype that it is computed with."""
        if self.program.buffer(load.buffer).dtype == load.dtype:
            return text
        return f"{text}.to({triton_compute_type(load.dtype)})"

    def combined(self, kind: ReductionKind, left: str, right: str, dtype: torch.dtype) -> str:
        """The text of two values of a reduction, combined."""
        if _in_one_instruction(kind, dtype):
            return (COMPARED if self.compared else AT_ONCE)[kind.combine].format(left, right)
        return self.ops.combine(kind.combine, left, right, dtype)

    def reduced_along(
        self, kind: ReductionKind, dtype: torch.dtype, value: str, place: int, rank: int
    ) -> str:
        """A tensor of this rank, reduced along one of its dims, which stays with size 1."""
        kept = ", ".join("None" if i == place else ":" for i in range(rank))
        return f"{self.reduced_once(kind, dtype, value, place)}[{kept}]"

    def reduced_once(self, kind: ReductionKind, dtype: torch.dtype, value: str, place: int) -> str:
        """A value reduced along one of its dims, which it loses."""
        if not _in_one_instruction(kind, dtype):
            return f"{kind.tile}({value}, {place})"
        self.reducers[kind.combine] = _REDUCER.format(kind.combine, self.combined(kind, "a", "b", dtype))
        return f"tl.reduce({value}, {place}, {kind.combine}_or_nan)"


def _in_one_instruction(kind: ReductionKind, dtype: torch.dtype) -> bool:
    """Whether a reduction is a maximum or a minimum of float32. Inductor's functions compare an element twice
    and select it: four instructions or five. From compute capability 8.0 on, GPUs have one that propagates
    NaN as eager does; for others Triton writes the comparisons."""
    return kind.selects and dtype == torch.float32


def reshaped(value: str, shape: Iterable[int]) -> str:
    """Triton text: a tensor with other dims."""
    return f"tl.reshape({value}, [{', '.join(map(str, shape))}])"


def permuted(value: str, order: Iterable[int]) -> str:
    """Triton text: a tensor with its dims in another order."""
    return f"tl.permute({value}, ({', '.join(map(str, order))}))"


def identity(kind: ReductionKind, dtype: torch.dtype) -> str:
    """The identity of a reduction in a dtype, as arguments of `tl.full`."""
    return f"{_literal(kind, dtype)}, {triton_compute_type(dtype)}"


def filler(kind: ReductionKind, dtype: torch.dtype) -> str:
    """The identity for use with values of `dtype`; an integer gets a width, which a literal lacks."""
    if dtype in INTEGERS:
        return f"tl.full([1, 1], {identity(kind, dtype)})"
    return _literal(kind, dtype)


def _literal(kind: ReductionKind, dtype: torch.dtype) -> str:
    value = kind.identity if dtype.is_floating_point else int(kind.identity)
    return f"float('{value}')" if math.isinf(value) else str(value)


def named(name: str, text: str) -> tuple[str, str]:
    """The name of a kernel, with a hash of its text, and the text with that name for `KERNEL`."""
    name = f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return name, text.replace("def KERNEL(", f"def {name}(", 1)


def _written(program: LoopProgram, nest: Nest) -> frozenset[str]:
    """Names of the buffers that a kernel writes; for an output that reuses an input, that input."""
    stored = (s.buffer for s in nest.statements if isinstance(s, Store | PartialAccumulate | Exchange))
    return frozenset(program.buffer(name).over or name for name in stored)


def buffers_of(program: LoopProgram, nest: Nest) -> list[Buffer]:
    """The parameters of a kernel. An output that reuses an input's memory has no pointer of its own."""
    read = {program.memory(s.buffer).name for s in nest.statements if isinstance(s, Load)}
    used = read | _written(program, nest)
    order = (BufferRole.INPUT, BufferRole.OUTPUT, BufferRole.WORKSPACE, BufferRole.MAILBOX)
    return [b for role in order for b in program.role(role) if b.name in used]
