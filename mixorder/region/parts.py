"""Results that are parts of what a `cat` makes, such as the gradients of the pieces of a split.

A kernel of ours writes such a part to its place in the whole, as Inductor's loops do. Nothing is copied then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

import torch
from torch.fx import Node

from ..inductor.tensors import padded_strides
from .layouts import is_read_as_stated, is_row_major
from .nodes import argument, fake, shape_of

aten = torch.ops.aten

BOUNDARY = 16  # elements: Inductor takes a view that starts at a multiple of so many for aligned


@dataclasses.dataclass(frozen=True)
class Part:
    """A result's place in a tensor.

    `whole`: the `cat` that makes the tensor.
    `stride`: of the result's dims in it.
    `offset`: of the result's first element.
    """

    whole: Node
    stride: tuple[int, ...]
    offset: int


def parts_of(nodes: Iterable[Node], members: Collection[Node]) -> dict[Node, Part]:
    """The places of those nodes whose memory is a part of a larger tensor."""
    found = {node: _part_of(node, members) for node in nodes}
    return {node: part for node, part in found.items() if part is not None}


def _part_of(node: Node, members: Collection[Node]) -> Part | None:
    """The place that a kernel can write a result to: a `cat` takes it, and nothing else but `members` does;
    the whole is stored, and the place starts at a boundary of memory."""
    users = [user for user in node.users if user not in members]
    if len(users) != 1 or users[0].target is not aten.cat.default or not is_read_as_stated(users[0]):
        return None
    whole, operands = users[0], list[Node](users[0].args[0])  # type: ignore[arg-type]
    val, *vals = map(fake, (whole, *operands))
    if val is None or None in map(shape_of, (whole, *operands)):
        return None
    if operands.count(node) != 1 or any(one.dtype != val.dtype for one in vals):  # type: ignore[union-attr]
        return None
    if not is_row_major(whole) or padded_strides(val) is not None:  # Inductor may put gaps between its rows
        return None
    dim: int = argument(whole, 1, "dim", 0)
    before = [shape_of(n)[dim] for n in operands[: operands.index(node)]]  # type: ignore[index]
    if not all(isinstance(n, int) for n in (*before, *val.stride())):
        return None
    offset = sum(before) * val.stride(dim)  # type: ignore[arg-type]
    return Part(whole, val.stride(), offset) if offset % BOUNDARY == 0 else None
