"""Moves: permutations of rows behind a region's reductions, such as of heads and tokens.

What lies behind a move is computed where its element is, and stored at another place: in the layout that a
copy for a matrix product has, for instance. Each node behind a move has the steps from the rows' own order
to its index. Nodes of different steps do not meet in one node of a region: an element of one would need a
reduction of another row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import torch
from torch.fx import Node

from .gathers import is_gather
from .nodes import is_view, shape_of
from .sizes import Size

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Step:
    """From one index to the next: the dims in `order`, or, without one, as an index into `shape`.

    `shape`: of the operand where there is an order, else of the result.
    """

    shape: tuple[Size, ...]
    order: tuple[int, ...] | None = None


Steps = tuple[Step, ...]


def is_move(node: Node) -> bool:
    """Whether a node puts whole rows in another order, and copies nothing."""
    return node.op == "call_function" and node.target is aten.permute.default and is_gather(node)


def steps_to(node: Node, operand_steps: Iterable[Steps]) -> Steps | None:
    """The steps to a node from those of the operands that depend on a reduction; None where these differ."""
    steps, *others = dict.fromkeys(operand_steps)
    shape = shape_of(node)
    if others or shape is None:
        return None
    if is_move(node):
        source = node.args[0]
        assert isinstance(source, Node)
        order = tuple(d % len(shape) for d in node.args[1])  # type: ignore[union-attr,operator]
        return (*steps, Step(shape_of(source) or (), order))
    if steps and is_view(node):
        return (*steps, Step(shape))
    return steps


def moved(nodes: Iterable[Node], operands_of: Mapping[Node, list[Node]]) -> dict[Node, Steps]:
    """The steps to each node behind a move. `nodes`: in graph order. `operands_of`: for each node that
    depends on a reduction of theirs, the operands of which the same is true."""
    steps: dict[Node, Steps] = {}
    for node in nodes:
        if live := operands_of.get(node):
            found = steps_to(node, (steps.get(a, ()) for a in live))
            assert found is not None
            if found:
                steps[node] = found
    return steps
