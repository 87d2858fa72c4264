"""What the finding stage needs to know about one FX node: is it a reduction, pointwise, a view, and how big.

Takes nodes of a functional post-grad graph, answers questions, changes nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch
from torch.fx import Node

from ..loops.ir import AMAX, AMIN, SUM, ReductionKind

aten = torch.ops.aten
prims = torch.ops.prims

REDUCTIONS: dict[object, ReductionKind] = {
    aten.sum.dim_IntList: SUM,
    aten.amax.default: AMAX,
    aten.amin.default: AMIN,
}

VIEWS = frozenset(
    {
        aten.view.default,
        aten.reshape.default,
        aten._unsafe_view.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.squeeze.default,
        aten.expand.default,
    }
)

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


@dataclasses.dataclass(frozen=True)
class Space:
    """The shared iteration space of a pair: `rows` x `cols` elements, rows outermost."""

    rows: int
    cols: int

    @property
    def numel(self) -> int:
        return self.rows * self.cols

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols}"


def fake(node: Node) -> torch.Tensor | None:
    """The fake tensor that a node produces, None if it does not produce exactly one tensor."""
    val = node.meta.get("val")
    return val if isinstance(val, torch.Tensor) else None


def is_static(node: Node) -> bool:
    val = fake(node)
    return val is not None and all(isinstance(n, int) for n in (*val.shape, *val.stride()))


@functools.cache
def _is_pointwise_target(target: object) -> bool:
    from torch._inductor.lowering import fallbacks, lowerings

    if target is prims.convert_element_type.default:
        return True
    return (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.pointwise in target.tags
        and torch.Tag.nondeterministic_seeded not in target.tags
        and target in lowerings
        and target not in fallbacks
        and not target._schema.is_mutable
    )


def is_view(node: Node) -> bool:
    return node.op == "call_function" and node.target in VIEWS


def is_pointwise(node: Node) -> bool:
    return node.op == "call_function" and _is_pointwise_target(node.target)


def reduction_kind(node: Node) -> ReductionKind | None:
    return REDUCTIONS.get(node.target) if node.op == "call_function" else None


def reduced_dims(node: Node) -> tuple[int, ...]:
    """The dims that a reduction node reduces, non-negative and sorted; all of them if none are given."""
    ndim = fake(node.args[0]).dim()  # type: ignore[arg-type,union-attr]
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if dims is None or dims == []:
        return tuple(range(ndim))
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(d % ndim for d in dims))  # type: ignore[union-attr,operator]


def keeps_dims(node: Node) -> bool:
    return bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False))


def inner_space(node: Node) -> Space | None:
    """The space of a reduction over trailing dims, None for any other node."""
    return _space(node, inner=True)


def outer_space(node: Node) -> Space | None:
    """The space of a reduction over leading dims, None for any other node."""
    return _space(node, inner=False)


def _space(node: Node, inner: bool) -> Space | None:
    if reduction_kind(node) is None or not isinstance(node.args[0], Node):
        return None
    source = fake(node.args[0])
    if source is None or not is_static(node.args[0]):
        return None
    shape, reduced = source.shape, frozenset(reduced_dims(node))
    leading = {d for d in range(len(shape)) if (d in reduced) != inner}
    long = [d for d in range(len(shape)) if shape[d] != 1]
    # The dims of the leading group must all come before the others; dims of size 1 fit anywhere.
    first_trailing = min((d for d in long if d not in leading), default=len(shape))
    if any(d > first_trailing for d in long if d in leading):
        return None
    rows = math.prod(shape[d] for d in leading)
    return Space(rows, math.prod(shape) // rows) if math.prod(shape) else None


def split_point(shape: tuple[int, ...], space: Space) -> int | None:
    """`k` with prod(shape[:k]) == rows and prod(shape[k:]) == cols, None if the shape is not of the space."""
    if math.prod(shape) != space.numel:
        return None
    rows = 1
    for k, size in enumerate((*shape, 1)):
        if rows == space.rows:
            return k
        rows *= size
    return None


def is_full(node: Node, space: Space) -> bool:
    val = fake(node)
    return val is not None and is_static(node) and split_point(tuple(val.shape), space) is not None


def is_small(node: Node, space: Space) -> bool:
    """A row vector, a column vector or a scalar of the space, whatever its number of dims."""
    val = fake(node)
    return val is not None and is_static(node) and val.numel() in (1, space.rows, space.cols)
