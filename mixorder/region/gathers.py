"""Gathers: ops that only move elements, and read each of them at another place than they write it.

A region may compute a gather above its reductions: the loops then read the operands at the gather's index.
It never computes one behind them, where every row is written at its own place. An op that moves elements
along the last dim is not counted as a gather, because loops read memory along that dim.

Takes nodes of a functional post-grad graph, answers questions, changes nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.fx import Node

from .nodes import argument, fake, is_readable_dtype, operands, shape_of, size_of
from .sizes import Size

aten = torch.ops.aten
prims = torch.ops.prims

SPLITS = frozenset({aten.split.Tensor, aten.split_with_sizes.default})
VIEWS = frozenset({aten.permute.default, aten.slice.Tensor, aten.select.int})
COPIES = frozenset(
    {
        aten.cat.default,
        aten.constant_pad_nd.default,
        aten.slice_scatter.default,
        aten.select_scatter.default,
    }
)


def is_split(node: Node) -> bool:
    """Whether a node gives several tensors, the pieces of one. A piece, a `getitem`, joins a region together
    with the split."""
    return node.op == "call_function" and node.target in SPLITS


def is_piece(node: Node) -> bool:
    return node.target is operator.getitem and isinstance(node.args[0], Node) and is_split(node.args[0])


def is_gather_view(node: Node) -> bool:
    """Whether a node is a gather that copies nothing: other users need no memory for it."""
    return is_gather(node) and node.target not in COPIES


def is_gather(node: Node) -> bool:
    """Whether a node only moves elements, and leaves those of a row next to each other."""
    if is_piece(node):
        return is_gather(node.args[0])  # type: ignore[arg-type]
    if node.op != "call_function" or node.target not in SPLITS | VIEWS | COPIES:
        return False
    shapes = [shape_of(a) for a in operands(node)]
    if not shapes or any(shape is None for shape in shapes) or not _has_known_places(node):
        return False
    return _keeps_rows(node, shapes[0] or ())


def is_made_of_pieces(node: Node) -> bool:
    """Whether a node is a concatenation that a region may compute, such as of the gradients of queries, keys
    and values."""
    return node.target is aten.cat.default and is_gather(node) and is_readable(node)


def is_readable(node: Node) -> bool:
    """Whether a region can read all that a node computes with: by rows, and in a dtype that is taken."""
    return all(is_readable(a) if is_gather_view(a) else _reads_by_rows(a) for a in operands(node))


def _reads_by_rows(node: Node) -> bool:
    val, shape = fake(node), shape_of(node)
    if val is None or shape is None:
        return False
    last = _last_long(shape)
    return is_readable_dtype(val.dtype) and (last is None or size_of(val.stride(last)) in (0, 1))


def _last_long(shape: Sequence[Size]) -> int | None:
    """The innermost dim of more than one element."""
    return next((d for d in reversed(range(len(shape))) if shape[d] != 1), None)


def _has_known_places(node: Node) -> bool:
    """Whether a node's bounds are numbers, or sizes of what it reads: what a kernel can be told."""
    sizes = [n for a in operands(node) for n in shape_of(a) or () if not isinstance(n, int)]
    known = {symbol for size in sizes for symbol in size.free_symbols}
    bounds = [size_of(a.meta["val"]) for a in node.all_input_nodes if a not in operands(node)]
    return all(isinstance(n, int) or n.free_symbols <= known for n in bounds)


def _keeps_rows(node: Node, shape: tuple[Size, ...]) -> bool:
    last, target = _last_long(shape), node.target
    if target is aten.permute.default:
        order = [d % len(shape) for d in node.args[1]]  # type: ignore[union-attr,operator]
        long = [d for d in order if shape[d] != 1]
        return last is None or long[-1] == last
    if target is aten.select.int:
        return argument(node, 1, "dim", 0) % len(shape) != last
    if target is aten.slice.Tensor:
        return argument(node, 4, "step", 1) == 1 or argument(node, 1, "dim", 0) % len(shape) != last
    if target is aten.select_scatter.default:
        return isinstance(node.args[3], int)
    if target is aten.cat.default:
        return all(len(shape_of(a) or ()) == len(shape) for a in operands(node))
    return True
