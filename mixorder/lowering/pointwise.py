"""The pointwise operators, views and gathers of a region as `TensorBox`es, lowered by Inductor.

A box's operands are leaves: a load from a leaf calls back for the value of its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..inductor.lowerings import TensorBox, is_loop, leaf, lowered
from ..region.gathers import is_piece
from ..region.nodes import fake, size_of
from .index_map import Index


class Boxes:
    """The boxes of a region's nodes, each lowered once. `value` gives a node's value at an index while
    `recorder` is the handler of `ops`."""

    def __init__(self, value: Callable[[Node, Index], Any], recorder: Any) -> None:
        self._value = value
        self._recorder = recorder
        self._boxes: dict[Node, TensorBox] = {}
        self._pieces: dict[Node, list[TensorBox]] = {}

    def of(self, node: Node) -> TensorBox:
        """The box of a node. Raises `Decline` for an op whose lowering is not a loop."""
        if node not in self._boxes:
            if is_piece(node):
                whole, i = node.args
                result = self._split(whole)[i]  # type: ignore[arg-type,index]
            else:
                result = lowered(node, self._operand)
            if not is_loop(result):
                raise Decline(
                    DeclineReason.UNSUPPORTED_OP,
                    f"{node.target} is not a pointwise loop",
                    node.name,
                )
            self._boxes[node] = result
        return self._boxes[node]

    def _split(self, split: Node) -> list[TensorBox]:
        if split not in self._pieces:
            self._pieces[split] = lowered(split, self._operand)
        return self._pieces[split]

    def _operand(self, node: Node) -> TensorBox | sympy.Expr:
        val = node.meta["val"]
        if isinstance(val, torch.SymInt):
            return sympy.sympify(size_of(val))
        if isinstance(val, torch.SymFloat):
            return val.node.expr
        like = fake(node)
        assert like is not None
        return leaf(node, like, symbolic(like.shape), self._value, self._recorder)


def symbolic(sizes: Iterable[int | torch.SymInt]) -> tuple[sympy.Expr, ...]:
    """Sizes or strides as expressions."""
    return tuple(sympy.sympify(size_of(n)) for n in sizes)
