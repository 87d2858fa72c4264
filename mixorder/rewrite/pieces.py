"""Tensors that are made of pieces along a dim, such as the gradient of a tensor that was sliced.

They can be canonicalised to a `cat` of the pieces: a kernel writes its piece to its place there. Eager adds
zeros to a piece, which makes 0 of -0; so does what a sum is canonicalised to.

Reads the graph, never writes it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ..region.cat_slices import cat_slice_of
from ..region.layouts import is_read_as_stated
from ..region.nodes import argument, fake, operands, shape_of, unviewed
from ..region.padding import PRODUCTS
from ..region.space_analysis import takes_operands

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Piece:
    """A range of a tensor along a dim.

    `size`: along the dim.
    `source`: what has it, or the number that fills it.
    `start`: where it begins in the source.
    `lifted`: whether the source lacks the dim.
    `added`: whether 0 is added to it.
    """

    size: int
    source: Node | float
    start: int = 0
    lifted: bool = False
    added: bool = False


@dataclasses.dataclass
class Pieces:
    """What a tensor is made of: `all` pieces in order along `dim`, which the nodes `inside` put together."""

    dim: int
    all: list[Piece]
    inside: list[Node]


def pieces_of(node: Node) -> Pieces | None:
    """The pieces of a tensor that is stored, of which loops compute some; None for any other node, and where
    it is no matter of pieces along one dim."""
    dim = None if node.target is aten.cat.default else _dim(node)
    if dim is None or not is_read_as_stated(node) or any(user.target in PRODUCTS for user in node.users):
        return None
    pieces = joined_of(node)
    computed = (p.source for p in pieces.all if isinstance(p.source, Node)) if pieces else ()
    return pieces if any(takes_operands(unviewed(n)) for n in computed) else None


def shared_pieces(node: Node) -> list[Node]:
    """The operands of a `cat` that others read as well, and that a kernel can copy to their place, beside
    those that loops compute; none for any other node."""
    if node.target is not aten.cat.default or not any(takes_operands(unviewed(n)) for n in operands(node)):
        return []
    return [n for n in operands(node) if len(n.users) > 1 and cat_slice_of(node, [n])]


def pieces_read(node: Node) -> Pieces | None:
    """The pieces that a slice takes of a larger tensor, or that a pad cuts off at an end; None for any other
    node, and where the tensor is not made of pieces along that dim."""
    whole = node.args[0] if node.target in _CUTTING and not _has_symbols(node) else None
    dim = _dim(whole) if isinstance(whole, Node) else None
    if dim is None or dim != _dim_cut(node):
        return None
    pieces = Pieces(dim, [], [])
    try:
        pieces.all = _cut(node, pieces, _pieces(whole, pieces, True))  # type: ignore[arg-type]
    except _Mixed:
        return None
    return pieces if pieces.all and any(isinstance(p.source, Node) for p in pieces.all) else None


def joined_of(node: Node) -> Pieces | None:
    """The pieces of a tensor that is put together along a dim; None for any other node."""
    if (dim := _dim(node)) is None:
        return None
    pieces = Pieces(dim, [], [])
    try:
        pieces.all = _pieces(node, pieces, True)
    except _Mixed:
        return None
    return pieces if len(pieces.all) > 1 else None


class _Mixed(Exception):
    """Elements of a tensor are computed from those of several, or it is not known of which."""


_PUTTING_TOGETHER = (
    aten.add.Tensor,
    aten.cat.default,
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.constant_pad_nd.default,
)
_CUTTING = (aten.slice.Tensor, aten.constant_pad_nd.default)


def _dim(node: Node) -> int | None:
    """The dim along which a node puts pieces together; None if it does not, or by sizes that are symbolic."""
    val = fake(node) if node.target in _PUTTING_TOGETHER else None
    if val is None or not all(isinstance(n, int) for n in val.shape):
        return None
    if _has_symbols(node):
        return None
    if node.target is aten.add.Tensor:
        below = [_dim(arg) for arg in node.args if isinstance(arg, Node) and list(arg.users) == [node]]
        return next((dim for dim in below if dim is not None), None)
    if node.target is aten.cat.default:
        return argument(node, 1, "dim", 0) % val.ndim
    if node.target in (aten.slice_scatter.default, aten.select_scatter.default):
        return argument(node, 2, "dim", 0) % val.ndim
    if node.target is aten.constant_pad_nd.default:
        return _dim_padded(node)
    return None


def _has_symbols(node: Node) -> bool:
    """Whether a number among the arguments is a node, also if torch knows its value by now."""
    return operands(node) != node.all_input_nodes


def _dim_padded(node: Node) -> int | None:
    """The only dim whose size a pad changes."""
    pads: Any = node.args[1]
    dims = {len(shape_of(node) or ()) - 1 - i // 2 for i, n in enumerate(pads) if n}
    return dims.pop() if len(dims) == 1 else None


def _dim_cut(node: Node) -> int | None:
    """The dim along which a node of `_CUTTING` takes a part; None where it takes all, or not all in order."""
    if node.target is aten.constant_pad_nd.default:
        return _dim_padded(node) if min(node.args[1]) < 0 else None  # type: ignore[arg-type,type-var]
    ndim = len(shape_of(node) or ())
    return None if argument(node, 4, "step", 1) != 1 else argument(node, 1, "dim", 0) % ndim


def _pieces(node: Node, pieces: Pieces, is_root: bool = False) -> list[Piece]:
    val = fake(node)
    assert val is not None
    if val.ndim <= pieces.dim or not all(isinstance(n, int) for n in val.shape):
        raise _Mixed
    size: int = val.shape[pieces.dim]
    filled = unviewed(node)
    if filled.target is aten.copy.default and fake(filled.args[1]).dtype == val.dtype:  # type: ignore[arg-type,union-attr]
        filled = unviewed(filled.args[1])  # type: ignore[arg-type]
    if filled.target is aten.full.default and not isinstance(filled.args[1], Node):
        return [Piece(size, filled.args[1])]  # type: ignore[arg-type]
    if _dim(node) != pieces.dim or not (is_root or len(node.users) == 1):
        return [Piece(size, node)]
    pieces.inside.append(node)
    first: Any = node.args[0]
    if node.target is aten.cat.default:
        if any(operand.meta["val"].dtype != val.dtype for operand in first):
            raise _Mixed
        return [piece for operand in first for piece in _pieces(operand, pieces)]
    if node.target is aten.add.Tensor:
        second: Any = node.args[1]
        if node.kwargs or any(not isinstance(a, Node) or not _is_like(fake(a), val) for a in node.args):
            raise _Mixed
        return _sum(_pieces(first, pieces), _pieces(second, pieces))
    if node.target is aten.constant_pad_nd.default:
        return _cut(node, pieces, _pieces(first, pieces))
    source: Any = node.args[1]
    if node.target is aten.select_scatter.default:
        start: int = argument(node, 3, "index") % size
        written, end = [Piece(1, source, lifted=True)], start + 1
    else:
        start, end = bounds(node, 3, size)
        if start == end or argument(node, 5, "step", 1) != 1:
            raise _Mixed
        same = fake(source).dtype == val.dtype  # type: ignore[union-attr]  # else each element is cast once
        written = _pieces(source, pieces) if same else [Piece(end - start, source)]
    base = _pieces(first, pieces)
    return [*between(base, 0, start), *written, *between(base, end, size)]


def _cut(node: Node, pieces: Pieces, inner: Sequence[Piece]) -> list[Piece]:
    """The pieces of a slice or pad of a tensor with the pieces `inner`."""
    size = sum(piece.size for piece in inner)
    if node.target is aten.slice.Tensor:
        return between(inner, *bounds(node, 2, size))
    pads: Any = node.args[1]
    before, behind = pads[2 * (len(shape_of(node) or ()) - 1 - pieces.dim) :][:2]
    value: Any = argument(node, 2, "value", 0)
    kept = between(inner, max(0, -before), size + min(0, behind))
    return [p for p in (Piece(max(0, before), value), *kept, Piece(max(0, behind), value)) if p.size]


def _is_like(val: torch.Tensor | None, whole: torch.Tensor) -> bool:
    return val is not None and (val.shape, val.dtype) == (whole.shape, whole.dtype)


def bounds(node: Node, place: int, size: int) -> tuple[int, int]:
    """The start and the end of a slice along a dim. `place`: that of the start among the arguments."""
    start, end, _ = slice(argument(node, place, "start"), argument(node, place + 1, "end")).indices(size)
    return start, max(start, end)


def between(pieces: Sequence[Piece], start: int, end: int) -> list[Piece]:
    """The pieces of a part of a tensor."""
    overlap, at = list[Piece](), 0
    for piece in pieces:
        first, last = max(start, at), min(end, at + piece.size)
        if first < last:
            overlap.append(dataclasses.replace(piece, start=piece.start + first - at, size=last - first))
        at += piece.size
    return overlap


def _sum(a: Sequence[Piece], b: Sequence[Piece]) -> list[Piece]:
    ends = {end for pieces in (a, b) for end in itertools.accumulate(p.size for p in pieces)}
    ranges = itertools.pairwise(sorted({0, *ends}))
    return [_added(*(between(pieces, *span)[0] for pieces in (a, b))) for span in ranges]


def _added(a: Piece, b: Piece) -> Piece:
    """The sum of two pieces of one size. Raises `_Mixed` where both have elements."""
    for zero, term in ((a, b), (b, a)):
        if not isinstance(zero.source, Node) and zero.source == 0:
            return dataclasses.replace(term, added=True)
    raise _Mixed
