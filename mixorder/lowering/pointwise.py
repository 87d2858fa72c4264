"""The pointwise operators, views and gathers of a region as `TensorBox`es, lowered by Inductor.

A box's operands are leaves, with numbers: a load from a leaf calls back for the value of an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..inductor.graphs import ROUNDED
from ..inductor.lowerings import TensorBox, evaluated, is_loop, leaf, lowered
from ..region.gathers import is_piece
from ..region.nodes import fake, is_pointwise, is_view, shape_of, size_of
from .index_map import Index


class Boxes:
    """The boxes of a region's nodes. Nodes that compute the same of operands that are alike share one."""

    def __init__(self, value: Callable[[Node, Index], Any]) -> None:
        self._value = value
        self._boxes: dict[Node, Any] = {}

    def element(self, node: Node, index: Index) -> Any:
        """An element of a node, from the values of its operands, by the handler of `ops` in force. Raises
        `Decline` for an op whose lowering is not a loop."""
        stated = node.args[0] if is_piece(node) else node
        if stated not in self._boxes:
            self._boxes[stated] = _box(stated)
        box = self._boxes[stated] if stated is node else self._boxes[stated][node.args[1]]
        if not is_loop(box):
            detail = f"{node.target} is not a pointwise loop"
            raise Decline(DeclineReason.UNSUPPORTED_OP, detail, node.name)
        operands = stated.all_input_nodes
        return evaluated(box, index, lambda number, at: self._value(operands[number], at))


def _box(node: Node) -> Any:
    numbers = {operand: i for i, operand in enumerate(node.all_input_nodes)}
    key: Hashable | None = None
    # The lowerings of others look at users, and results that the graph returns may be rounded.
    if (is_pointwise(node) or is_view(node)) and all(user.op != "output" for user in node.users):
        key = node.target, bool(node.meta.get(ROUNDED)), _seen((node.args, node.kwargs), numbers)
    return lowered(node, lambda operand: _operand(operand, numbers[operand]), key)


def _operand(node: Node, number: int) -> TensorBox | sympy.Expr | int | float:
    if (value := _number(node)) is not None:
        return value
    like = fake(node)
    assert like is not None
    return leaf(number, like, symbolic(like.shape))


def _number(node: Node) -> sympy.Expr | int | float | None:
    """A number, or the expression of a symbolic one; None for a tensor."""
    val = node.meta["val"]
    if isinstance(val, torch.SymInt):
        return sympy.sympify(size_of(val))
    if isinstance(val, torch.SymFloat):
        return val.node.expr
    return val if isinstance(val, int | float) else None  # such as a size that torch knows by now


def _seen(arg: Any, numbers: Mapping[Node, int]) -> Hashable:
    """What a lowering sees of an argument."""
    if isinstance(arg, Node):
        like = fake(arg)
        return _number(arg) if like is None else (numbers[arg], like.dtype, like.device, shape_of(arg))
    if isinstance(arg, list | tuple):
        return tuple(_seen(item, numbers) for item in arg)
    if isinstance(arg, dict):
        return tuple((name, _seen(value, numbers)) for name, value in arg.items())
    return exactly(arg)


def exactly(arg: Any) -> Hashable:
    """An argument as its type and value. Python's == alone would take 1, 1.0 and True for the same, and 0.0
    and -0.0."""
    return type(arg), repr(arg) if isinstance(arg, float | complex) else arg


def symbolic(sizes: Iterable[int | torch.SymInt]) -> tuple[sympy.Expr, ...]:
    """Sizes or strides as expressions."""
    return tuple(sympy.sympify(size_of(n)) for n in sizes)
