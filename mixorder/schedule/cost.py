"""What fusing a region saves: bytes that move between device memory and its kernels.

As separate kernels, each nest of a region reads its inputs and writes its outputs once. The fused kernels
read and write once what several nests need, and also write and read the workspace once. Each op that joins a
growing region saves a round trip through memory, so the larger of two regions never moves more bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable

import sympy

from ..errors import Decline, DeclineReason
from ..ir.program import (
    NUM_SPLITS,
    Buffer,
    BufferRole,
    Load,
    LoopProgram,
    Statement,
    Store,
)
from .layout import along_rows


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that move between device memory and a region's kernels.

    `workspace` counts twice: the main kernel writes it and the finalisation reads it. `copied` counts twice:
    `copies` kernels read and write these bytes, before the main kernel reads them or behind it. `joined` is
    of results that the graph copies into one tensor behind the kernels, and counts twice as well: Inductor's
    kernels would write them there.
    """

    read: int
    written: int
    workspace: int
    copied: int
    copies: int = 0
    joined: int = 0

    @property
    def total(self) -> int:
        return self.read + self.written + 2 * (self.workspace + self.copied + self.joined)


def traffic(
    merged: LoopProgram,
    num_splits: int,
    copied: Collection[str] = (),
    joined: Collection[str] = (),
) -> Traffic:
    """The traffic of a merged program with `num_splits` programs. The buffers in `copied` are copied for it,
    and those in `joined` behind it."""
    statements = [s for nest in merged.nests for s in nest.statements]
    return Traffic(
        _read(merged, statements),
        _written(merged, statements),
        workspace_bytes(merged, num_splits),
        size(merged, copied),
        len(copied),
        size(merged, joined),
    )


def workspace_bytes(program: LoopProgram, num_splits: int) -> int:
    """Bytes of the partials that `num_splits` programs write, and of their mailbox."""
    return sum(
        int(program.hint(b.numel.xreplace({NUM_SPLITS: sympy.Integer(num_splits)}))) * b.dtype.itemsize
        for role in (BufferRole.WORKSPACE, BufferRole.MAILBOX)
        for b in program.role(role)
    )


def _read(program: LoopProgram, statements: Iterable[Statement]) -> int:
    """Bytes of inputs that are loaded. Loads at different offsets are of different elements, such as the
    slices of a `split`; those at one offset are of the same."""
    touched: dict[str, dict[sympy.Expr, int]] = {}
    start = {axis.symbol: sympy.S.Zero for nest in program.nests for axis in nest.loops}
    for stmt in statements:
        if isinstance(stmt, Load):
            buffer = program.buffer(stmt.buffer)
            if buffer.role is BufferRole.INPUT:
                offset, slices = stmt.index.xreplace(start), touched.setdefault(buffer.name, {})
                slices[offset] = max(slices.get(offset, 0), _touched(program, buffer, stmt.index))
    return sum(min(sum(slices.values()), size(program, [name])) for name, slices in touched.items())


def _written(program: LoopProgram, statements: Iterable[Statement]) -> int:
    stored = {s.buffer for s in statements if isinstance(s, Store)}
    return size(program, [name for name in stored if program.buffer(name).role is BufferRole.OUTPUT])


def size(program: LoopProgram, buffers: Collection[str]) -> int:
    """Bytes of some of a program's buffers."""
    return sum(program.hint(b.numel) * b.dtype.itemsize for b in map(program.buffer, buffers))


def _touched(program: LoopProgram, buffer: Buffer, index: sympy.Expr) -> int:
    """Bytes of a buffer that an index covers; along an axis that it lacks, elements are the same."""
    axes = {axis for nest in program.nests for axis in nest.loops if axis.symbol in index.free_symbols}
    elements = math.prod(program.hint(axis.size) for axis in axes)
    numel = program.hint(buffer.numel)
    return min(elements, numel) * buffer.dtype.itemsize


def across_memory(program: LoopProgram) -> tuple[str, ...]:
    """The buffers whose full tiles have columns that are not contiguous: up to 32 times the traffic.

    Stride 0 is a broadcast. An index with divisions is contiguous for some of its length, and passes. Where
    most bytes are contiguous along the rows, these tensors pass as well: a tile of several rows has whole
    accesses then, as Triton orders the elements of a tile by its loads.
    """
    strided: dict[str, None] = {}
    down: set[str] = set()
    full = program.nests[0].accesses(program.tile_axes)
    for stmt in full:
        stride = sympy.expand(stmt.index).coeff(program.tile_axes[1].symbol)
        if program.tile_axes[1].size != 1 and stride not in (0, 1):
            strided[stmt.buffer] = None
            if along_rows(program, stmt):
                down.add(stmt.buffer)
    rest = {stmt.buffer for stmt in full} - down
    passing = down if size(program, down) > size(program, rest) else set()
    return tuple(b for b in strided if b not in passing)


def check_layout(program: LoopProgram, across: Collection[str]) -> None:
    """Raise `Decline` if more bytes of full tiles are in `across`, and have to be copied, than are not."""
    full = {stmt.buffer for stmt in program.nests[0].accesses(program.tile_axes)}
    if size(program, full & set(across)) > size(program, full - set(across)):
        buffer = program.buffer(min(across))
        detail = f"a tensor of shape {buffer.shape} has strides {buffer.stride}, and others are like it"
        raise Decline(DeclineReason.LAYOUT, detail)
