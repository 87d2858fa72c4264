"""Results that are slices of what a `cat` makes, such as the gradients of the pieces of a split.

A kernel of ours writes such a slice to its place in the whole, as Inductor's loops do. Nothing is copied
then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

import sympy
import torch
from torch.fx import Node

from ..inductor.tensors import padded_strides
from .layouts import is_read_as_stated, is_row_major, is_strided
from .nodes import argument, fake, shape_of

aten = torch.ops.aten

BOUNDARY = 16  # elements: Inductor takes a view that starts at a multiple of so many for aligned


@dataclasses.dataclass(frozen=True)
class CatSlice:
    """A result's place in a tensor.

    `whole`: the `cat` that makes the tensor.
    `stride`: of the result's dims in it.
    `offset`: of the result's first element.
    """

    whole: Node
    stride: tuple[int, ...]
    offset: int


def cat_slices_of(nodes: Iterable[Node], members: Collection[Node]) -> dict[Node, CatSlice]:
    """The places of those nodes whose memory is a slice of a larger tensor."""
    places = {node: _cat_slice_of(node, members) for node in nodes}
    return {node: cat_slice for node, cat_slice in places.items() if cat_slice is not None}


def _cat_slice_of(node: Node, members: Collection[Node]) -> CatSlice | None:
    """The place that a kernel can write a result to: a `cat` takes it, or a view of it, and nothing else but
    `members` does; the whole is stored, and the place starts at a boundary of memory."""
    shown = [node]
    while (user := _only_user(shown[-1], members)) is not None and is_strided(user):
        shown.append(user)
    return None if user is None or user.target is not aten.cat.default else cat_slice_of(user, shown)


def cat_slice_of(cat: Node, shown: Sequence[Node]) -> CatSlice | None:
    """The place of `shown[0]` in what a `cat` makes, which takes its last view; None where no kernel can
    write to it."""
    operands: list[Node] = list(cat.args[0])  # type: ignore[arg-type]
    whole, *vals = map(fake, (cat, *operands))
    if whole is None or not is_read_as_stated(cat) or None in map(shape_of, (cat, *operands, *shown)):
        return None
    if operands.count(shown[-1]) != 1 or any(val.dtype != whole.dtype for val in vals):  # type: ignore[union-attr]
        return None
    if not is_row_major(cat) or padded_strides(whole) is not None:  # Inductor may put gaps between its rows
        return None
    dim: int = argument(cat, 1, "dim", 0)
    before = [shape_of(n)[dim] for n in operands[: operands.index(shown[-1])]]  # type: ignore[index]
    if not all(isinstance(n, int) for n in (*before, *whole.stride())):
        return None
    place = _place(cat, dim, sum(before), shown)  # type: ignore[arg-type]
    return place if place is not None and place.offset % BOUNDARY == 0 else None


def _only_user(node: Node, members: Collection[Node]) -> Node | None:
    users = [user for user in node.users if user not in members]
    return users[0] if len(users) == 1 else None


def _place(whole: Node, dim: int, start: int, shown: Sequence[Node]) -> CatSlice | None:
    """The place of `shown[0]`, whose last view is the slice of `whole` from `start` on. None if its dims
    have no strides there that are numbers."""
    every = (m for n in (whole, *shown) for m in shape_of(n) or ())
    symbols = {s for m in every if not isinstance(m, int) for s in m.free_symbols}
    large = {s: sympy.Integer(sympy.prime(1000 + i)) for i, s in enumerate(sorted(symbols, key=str))}

    def sizes(node: Node) -> list[int]:
        return [n if isinstance(n, int) else int(n.xreplace(large)) for n in shape_of(node) or ()]

    val = torch.empty_strided(sizes(whole), fake(whole).stride(), device="meta")  # type: ignore[union-attr]
    val = val.narrow(dim, start, sizes(shown[-1])[dim])
    try:
        for view, source in zip(shown[:0:-1], shown[-2::-1], strict=True):
            val = _unviewed(val, view, sizes(source))
    except (RuntimeError, ValueError):
        return None
    if any(n and n % prime == 0 for n in val.stride() for prime in large.values()):
        return None
    return CatSlice(whole, val.stride(), int(val.storage_offset()))


def _unviewed(shown: torch.Tensor, view: Node, shape: list[int]) -> torch.Tensor:
    """What a view shows of a tensor of some shape, given what it is itself. Raises RuntimeError or
    ValueError where that has no strides."""
    if view.target is not aten.permute.default:
        return shown.view(shape)
    order: list[int] = list(view.args[1])  # type: ignore[arg-type]
    order = [d % len(order) for d in order]
    return shown.permute([order.index(d) for d in range(len(order))])
