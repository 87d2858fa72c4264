"""Rewrite every outer reduction into a pointwise `partial_accumulate` and a reduction over the splits.

Takes the lowered program; returns one without reductions over rows. Each nest with such reductions becomes
two nests. The first accumulates partials of `split` rows into a workspace. The second reduces the workspace
and runs what followed the reduction (the epilogue: casts, scales, adds).

A program may add hundreds of rows one after the other. The rounding errors matter if the result is stored in
fp32 (H200, RMSNorm 32768x2048 fp32: error of dw 2.2e-7, Inductor's 1.3e-7). Such sums are compensated, and
their partials are added up in fp64. A result that is cast to half precision has larger rounding errors.
"""

from __future__ import annotations

import dataclasses

import sympy
import torch

from ..errors import Decline, DeclineReason
from ..ir.dtypes import added_up_in
from ..ir.program import (
    NUM_SPLITS,
    SPLIT_SYMBOL,
    Axis,
    AxisClass,
    Buffer,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Ref,
    Statement,
    Store,
    closure,
)

# By the name of an outer reduction: the buffer of its partials, and the index into it.
_Workspaces = dict[str, tuple[str, sympy.Expr]]


def split_outer(program: LoopProgram) -> LoopProgram:
    """Split each reduction over the row axis; nests without one stay as they are."""
    row = program.axis(AxisClass.ROW)
    assert row is not None
    split = Axis(SPLIT_SYMBOL, NUM_SPLITS, AxisClass.SPLIT)
    buffers = list(program.buffers)
    nests: list[Nest] = []
    for nest in program.nests:
        outers = [s for s in nest.body if isinstance(s, Reduce) and row.symbol in s.axes]
        if not outers:
            nests.append(nest)
            continue
        relative = [r for r in outers if r.peak is not None]
        if relative and program.axis(AxisClass.COMMON) is not None:
            detail = "sums of exponentials along an axis that the inner reduction reduces too"
            raise Decline(DeclineReason.AXIS_CLASS, detail, relative[0].name.partition(".")[0])
        col_loops = _result_loops(nest)
        buffers_of = {r.name: _workspace(i, r.dtype, col_loops) for i, r in enumerate(outers)}
        buffers.extend(buffers_of.values())
        workspaces = {name: (ws.name, _index(ws, col_loops)) for name, ws in buffers_of.items()}
        plain = (r for r in outers if r.kind.compensable and r.peak is None)
        compensated = [r for r in plain if _is_stored_in_fp32(program, nest, r)]
        nests.append(_partial_nest(nest, outers, compensated, workspaces, split))
        nests.append(final_nest(nest, outers, compensated, workspaces, split, col_loops))
    return dataclasses.replace(program, buffers=tuple(buffers), nests=tuple(nests))


def _result_loops(nest: Nest) -> tuple[Axis, ...]:
    """The loops that an outer reduction's result still runs over."""
    return tuple(a for a in nest.loops if a.kind in (AxisClass.BATCH, AxisClass.COLUMN))


def _workspace(i: int, dtype: torch.dtype, loops: tuple[Axis, ...]) -> Buffer:
    shape = (NUM_SPLITS, *(axis.size for axis in loops))
    stride = [sympy.S.One]
    for size in reversed(shape[1:]):
        stride.insert(0, stride[0] * size)
    return Buffer(f"ws{i}", BufferRole.WORKSPACE, dtype, shape, tuple(stride))


def _index(buffer: Buffer, loops: tuple[Axis, ...]) -> sympy.Expr:
    places = [SPLIT_SYMBOL, *(axis.symbol for axis in loops)]
    return sum((at * stride for at, stride in zip(places, buffer.stride, strict=True)), sympy.S.Zero)


def _partial_nest(
    nest: Nest, outers: list[Reduce], compensated: list[Reduce], workspaces: _Workspaces, split: Axis
) -> Nest:
    loops: list[Axis] = []
    for axis in nest.loops:
        loops.extend((split, axis) if axis.kind is AxisClass.ROW else (axis,))
    roots = [
        PartialAccumulate(
            *workspaces[r.name],
            r.kind,
            r.value,
            r in compensated,
            workspaces[r.peak.name][0] if r.peak else None,
        )
        for r in sorted(outers, key=lambda r: r.peak is None)  # before the maxima, which they change with
    ]
    return Nest(tuple(loops), closure(nest.body, roots))


def _is_stored_in_fp32(program: LoopProgram, nest: Nest, reduce: Reduce) -> bool:
    stores = (s for s in nest.body if isinstance(s, Store))
    exact = {b.name for b in program.buffers if b.dtype == torch.float32 and not b.widened}
    return reduce.dtype == torch.float32 and any(
        store.buffer in exact and reduce in closure(nest.body, [store]) for store in stores
    )


def final_nest(
    nest: Nest,
    outers: list[Reduce],
    compensated: list[Reduce],
    workspaces: _Workspaces,
    split: Axis,
    col_loops: tuple[Axis, ...],
) -> Nest:
    """The nest that adds up the partials of `outers` over the splits, and computes what follows from them.
    `workspaces`: by the name of each, its buffer and the index into it."""
    body: list[Statement] = []
    for r in sorted(outers, key=lambda r: r.peak is not None):  # behind the maxima
        dtype = added_up_in(r.dtype) if r in compensated else r.dtype
        partial = Load(f"{r.name}.partial", *workspaces[r.name], dtype)
        total = Reduce(r.name, r.kind, Ref(partial.name), (split.symbol,), dtype, r.stored)
        body.append(partial)
        if r.peak is not None:
            body += (scaled := _relative_to_all(partial, r.peak.name))
            total = dataclasses.replace(total, value=Ref(scaled[-1].name))
        if dtype == r.dtype:
            body.append(total)
        else:
            total = dataclasses.replace(total, name=f"{r.name}.total")
            rounded = Compute(r.name, "to_dtype", (Ref(total.name), r.dtype), (), r.dtype)
            body.extend((total, rounded))
    replaced = {r.name for r in outers}
    body.extend(s for s in nest.body if not (isinstance(s, Reduce) and s.name in replaced))
    stores = [s for s in nest.body if isinstance(s, Store)]
    body = [s for s in body if not isinstance(s, Store)]
    return Nest((*col_loops, split), closure(body, stores))


def _relative_to_all(partial: Load, peak: str) -> list[Compute]:
    """A program's sum of exponentials, relative to the maximum of all programs instead of its own: nothing
    where its elements are all minus infinity, and NaN as in eager mode where those of all programs are."""
    own, dtype, name = Ref(f"{peak}.partial"), partial.dtype, partial.name
    return [
        Compute(f"{name}.difference", "sub", (own, Ref(peak)), (), dtype),
        Compute(f"{name}.factor", "exp", (Ref(f"{name}.difference"),), (), dtype),
        Compute(f"{name}.scaled", "mul", (Ref(name), Ref(f"{name}.factor")), (), dtype),
    ]
