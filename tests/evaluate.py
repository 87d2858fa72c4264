"""What a loop program computes, with PyTorch, a statement at a time for all points of its loops.

Reductions, and partial sums in memory, are in float64, so that the order of a loop does not show in a
result. Reads and writes beyond a tensor are errors, and what is read must have been written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch

from mixorder.codegen.quotients import FUNCTIONS
from mixorder.inductor.symbols import INDEX_FUNCTIONS
from mixorder.ir.dtypes import computed_in
from mixorder.ir.program import (
    NUM_SPLITS,
    SPLIT_SYMBOL,
    BufferRole,
    Carry,
    Compute,
    Exchange,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Ref,
    Statement,
    Store,
)
from mixorder.ir.reductions import ReductionKind
from mixorder.region.region import Region
from mixorder.transform.branches import PREFIX
from mixorder.transform.cooperative import MAILBOX
from mixorder.transform.few_bits import QUOTIENT
from mixorder.transform.quotients import CORRECTED, INVERSE
from mixorder.transform.rounding import ROUNDED

Tensor = torch.Tensor
f32 = torch.float32


def inputs_of(region: Region, program: LoopProgram) -> dict[str, Tensor]:
    """Random tensors for the inputs of a region's program, by their buffers; in float64 whole numbers."""
    torch.manual_seed(0)
    found = {}
    for name, node in region.input_buffers.items():
        shape = [program.hint(n) for n in program.buffer(name).shape]
        stride = [program.hint(n) for n in program.buffer(name).stride]
        dtype = node.meta["val"].dtype
        value = torch.randn(shape) if dtype.is_floating_point else torch.randint(0, 2, shape)
        value = value.mul(4).round() if dtype == torch.float64 else value
        found[name] = torch.empty_strided(shape, stride, dtype=dtype).copy_(value)
    return found


def evaluated(program: LoopProgram, inputs: Mapping[str, Tensor], splits: int = 3) -> dict[str, Tensor]:
    """Each output of a program in its shape, for so many groups of programs."""
    return _Evaluation(program, inputs, splits).outputs()


class _Evaluation:
    def __init__(self, program: LoopProgram, inputs: Mapping[str, Tensor], splits: int) -> None:
        self.program, self.splits = program, splits
        self.memory, self.written = dict[str, Tensor](), dict[str, Tensor]()
        spaces = (*program.role(BufferRole.WORKSPACE), *program.role(BufferRole.ACCUMULATOR))
        self.wide = {b.name for b in spaces if b.dtype == f32}
        for buffer in program.buffers:
            size = self.number(
                buffer.numel if buffer.role is not BufferRole.OUTPUT else buffer.max_offset + 1
            )
            if buffer.role is BufferRole.INPUT:
                given = inputs[buffer.name]
                self.memory[buffer.name] = given.as_strided((self.number(buffer.max_offset) + 1,), (1,))
            else:
                dtype = torch.float64 if buffer.name in self.wide else buffer.dtype
                self.memory[buffer.name] = torch.zeros(size, dtype=dtype)
                self.written[buffer.name] = torch.zeros(size, dtype=torch.bool)

    def outputs(self) -> dict[str, Tensor]:
        producer_nest = () if self.program.producer_nest is None else (self.program.producer_nest,)
        for nest in (*producer_nest, *self.program.nests):
            _Run(self, nest).run()
        found = {}
        for buffer in self.program.role(BufferRole.OUTPUT):
            size, stride = ([self.number(n) for n in dims] for dims in (buffer.shape, buffer.stride))
            assert self.written[buffer.name].as_strided(size, stride).all(), buffer.name
            found[buffer.name] = self.memory[buffer.name].as_strided(size, stride)
        return found

    def number(self, size: sympy.Expr) -> int:
        return self.program.hint(sympy.sympify(size).subs(NUM_SPLITS, self.splits))


class _Run:
    """One nest. A value has a dim for each loop but that over splits, of one element where it varies not."""

    def __init__(self, whole: _Evaluation, nest: Nest) -> None:
        self.whole, self.nest = whole, nest
        by_split = any(isinstance(s, PartialAccumulate) for s in nest.body)
        self.axes = [a for a in nest.loops if not (by_split and a.symbol == SPLIT_SYMBOL)]
        self.sizes = [whole.number(axis.size) for axis in self.axes]
        self.at: dict[sympy.Symbol, Any] = {}
        for i, (axis, size) in enumerate(zip(self.axes, self.sizes, strict=True)):
            shape = [size if j == i else 1 for j in range(len(self.axes))]
            self.at[axis.symbol] = torch.arange(size).reshape(shape)
        self.values: dict[str, Tensor] = {}

    def run(self) -> None:
        for stmt in self.nest.statements:
            made = self.of(stmt)
            if made is not None:
                self.values[stmt.name] = made  # type: ignore[union-attr]

    def of(self, stmt: Statement) -> Tensor | None:
        match stmt:
            case Load() if self.whole.program.buffer(stmt.buffer).role is BufferRole.ACCUMULATOR:
                return self.read(stmt.buffer, self.index(stmt.index, split=0)).to(stmt.dtype)
            case Load():
                found = self.load(stmt)
                return found if stmt.buffer in self.whole.wide else found.to(stmt.dtype)
            case Compute():
                if stmt.op == "index_expr":
                    return self.index(stmt.args[0]).to(stmt.dtype)
                found = computed(stmt, self.values)
                return found if found.ndim else found.reshape([1] * len(self.axes))
            case Reduce():
                dims = [i for i, axis in enumerate(self.axes) if axis.symbol in stmt.axes]
                value = self.spread(stmt.value, dims)
                value = value if stmt.peak is None else (value - self.values[stmt.peak.name]).exp()
                return reduced(stmt.kind, value, dims).to(stmt.dtype)
            case Carry():
                return self.values[stmt.value.name]
            case Store():
                self.write(stmt.buffer, self.index(stmt.index), self.values[stmt.value.name])
            case PartialAccumulate():
                self.accumulate(stmt)
            case Exchange():
                pass  # all parts of a row are here
        return None

    def spread(self, ref: Ref, dims: list[int] | range) -> Tensor:
        """A value with as many elements along some dims as their loops have."""
        value = self.values[ref.name]
        return value.expand([n if i in dims else value.shape[i] for i, n in enumerate(self.sizes)])

    def index(self, expr: sympy.Expr, split: Any = None) -> Tensor:
        at = {**self.at, **({} if split is None else {SPLIT_SYMBOL: split})}
        expr = sympy.sympify(expr).xreplace(dict(self.whole.program.hints))
        found = sympy.lambdify(list(at), expr, modules=[INDEX_FUNCTIONS])(*at.values())
        return torch.as_tensor(found).reshape([1] * len(self.axes)) if isinstance(found, int) else found

    def load(self, stmt: Load) -> Tensor:
        index = self.index(stmt.index)
        if stmt.predicate is None:
            return self.read(stmt.buffer, index)
        index, read = torch.broadcast_tensors(index, self.values[stmt.predicate.name])
        found = self.read(stmt.buffer, torch.where(read, index, int(index[read][0]) if read.any() else 0))
        return torch.where(read, found, torch.zeros((), dtype=found.dtype))

    def read(self, buffer: str, index: Tensor) -> Tensor:
        assert index.min() >= 0, buffer
        assert buffer not in self.whole.written or self.whole.written[buffer][index].all(), buffer
        return self.whole.memory[buffer][index]

    def write(self, buffer: str, index: Tensor, value: Tensor) -> None:
        memory = self.whole.memory[buffer]
        index, value = torch.broadcast_tensors(index, value)
        assert index.min() >= 0, buffer
        value = value.reshape(-1).contiguous()
        bits = buffer == MAILBOX and value.dtype == f32
        memory[index.reshape(-1)] = value.view(memory.dtype) if bits else _cast(value, memory.dtype)
        self.whole.written[buffer][index.reshape(-1)] = True

    def accumulate(self, stmt: PartialAccumulate) -> None:
        """Rows are dealt out to the splits one by one."""
        kept = [i for i, axis in enumerate(self.axes) if axis.symbol in stmt.index.free_symbols]
        others = [i for i in range(len(self.axes)) if i not in kept]
        value = self.spread(stmt.value, range(len(self.axes))).permute(*others, *kept)
        value = value.reshape(-1, *value.shape[len(others) :])
        dtype = self.whole.memory[stmt.buffer].dtype
        for split in range(self.whole.splits):
            own = value[split :: self.whole.splits]
            own = own if stmt.peak is None else (own - own.amax(0)).exp()
            total = reduced(stmt.kind, own, [0]).to(dtype)
            place = self.index(stmt.index, split).permute(*others, *kept).reshape(total.shape[1:])
            self.write(stmt.buffer, place, total[0])


def computed(stmt: Compute, values: Mapping[str, Tensor]) -> Tensor:
    """The value of an op that is of no loop's index, by the values of others."""
    args = [values[a.name] if isinstance(a, Ref) else a for a in stmt.args]
    match stmt.op:
        case "constant":
            return torch.tensor(args[0], dtype=stmt.dtype)
        case "to_dtype":
            exact = dict(stmt.kwargs).get("use_compute_types", True)
            return _cast(args[0], computed_in(args[1]) if exact else args[1]).to(stmt.dtype)
        case "to_dtype_bitcast":
            return args[0].contiguous().view(args[1])
    op = stmt.op.removeprefix(PREFIX).removeprefix("libdevice_")
    return OPS.get(op, getattr(torch, op, None))(*args).to(stmt.dtype)


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a.double() * b + c).to(a.dtype)


OPS: dict[str, Callable[..., Tensor]] = {
    "truediv": torch.div,
    "div_rn": torch.div,
    "identity": lambda x: x,
    "and_": torch.logical_and,
    "or_": torch.logical_or,
    "fma": _fma,
    QUOTIENT: lambda divisor, dividend: torch.div(torch.full_like(divisor, dividend), divisor),
    INVERSE: torch.reciprocal,
    CORRECTED: FUNCTIONS[CORRECTED].meaning,
    ROUNDED: lambda x: x.bfloat16().float(),
}


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """As a GPU casts: to float8 what is too large becomes the largest number."""
    if value.dtype != dtype and dtype.is_floating_point and dtype.itemsize == 1:
        most = torch.finfo(dtype).max
        value = value.clamp(-most, most)
    return value.to(dtype)


def reduced(kind: ReductionKind, value: Tensor, dims: list[int]) -> Tensor:
    wide = value.double() if value.is_floating_point() else value
    match kind.name:
        case "sum":
            return wide.sum(dims, keepdim=True)
        case "amax" | "amin":
            return getattr(wide, kind.name)(dims, keepdim=True)
    assert kind.name == "xor"
    for dim in dims:
        wide = functools.reduce(torch.bitwise_xor, wide.split(1, dim))
    return wide
