"""Tensors that are made of pieces along a dim, such as the gradient of a tensor that was sliced.

They are spelled as a `cat` of the pieces while regions are looked for: a kernel writes its piece to its place
there. Eager adds zeros to a piece, which makes 0 of -0; so does what a sum is spelled as. What no kernel
writes a piece of is spelled as before at the end.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ..inductor.graphs import triton_kernel_wrapper_functional
from ..region.layouts import is_read_as_stated
from ..region.nodes import fake, is_constant, unviewed
from ..region.padding import PRODUCTS
from ..region.space_analysis import takes_operands
from ..region.walk import by_position

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


class Pieced:
    """A node that is spelled as a `cat`, and how it was spelled. No reduction is added: `joins` is false."""

    joins = False

    def __init__(self, graph: Graph, node: Node, found: Pieces) -> None:
        self.graph, self.node = graph, node
        inside = by_position({*found.inside, node})
        self.before = [(one, one.target, one.args, one.kwargs, one.meta["val"]) for one in inside]
        sources = (arg for one in inside for arg in one.all_input_nodes)
        self.sources = [arg for arg in dict.fromkeys(sources) if arg not in inside]
        self.made: list[Node] = []
        self.readers: dict[Node, Node] = {}  # of sources that others than the node read now
        operands = [self._operand(piece, found.dim) for piece in found.all]
        self.places = {n: i for i, n in enumerate(operands)}
        node.target, node.args, node.kwargs = aten.cat.default, (operands, found.dim), {}
        for one in inside[:-1]:  # which stand idle, so that they can be put back
            one.target, one.args, one.kwargs = int, (0,), {}
            del one.meta["val"]

    def _operand(self, piece: Piece, dim: int) -> Node:
        whole = fake(self.node)
        assert whole is not None
        if not isinstance(piece.source, Node):
            shape = [piece.size if d == dim else n for d, n in enumerate(whole.shape)]
            kwargs = {"dtype": whole.dtype, "device": whole.device, "pin_memory": False}
            return self._add(aten.full.default, shape, piece.source, **kwargs)
        value = piece.source
        if piece.added and whole.dtype.is_floating_point:
            value = self._add(aten.add.Tensor, value, 0)
        if piece.lifted:
            return self._add(aten.unsqueeze.default, value, dim)
        if piece.size != fake(value).shape[dim]:  # type: ignore[union-attr]
            return self._add(aten.slice.Tensor, value, dim, piece.start, piece.start + piece.size)
        return value

    def _add(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        val = fake(self.node)
        assert val is not None
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(target, args, kwargs)
        made.meta.update({k: v for k, v in self.node.meta.items() if k != "val"})
        with val.fake_mode:  # type: ignore[attr-defined]
            made.meta["val"] = target(*torch.fx.map_arg(args, lambda n: n.meta["val"]), **kwargs)
        self.made.append(made)
        self.readers.update((n, made) for n in made.all_input_nodes)
        return made

    def end(self, alive: set[Node]) -> None:
        """Restore the node, if no kernel writes a piece of it and no region has it. `alive`: the nodes of the
        graph."""
        now = self._now(alive)
        for one, target, args, kwargs, val in self.before if now is not None else ():
            one.target = target
            one.args, one.kwargs = (
                torch.fx.map_arg(given, (now or {}).__getitem__) for given in (args, kwargs)
            )
            one.meta["val"] = val
        idle = [one for one, *_ in self.before[:-1]] if now is None else self.made
        for one in (*reversed(idle), *filter(is_constant, self.sources)):
            if one in alive and not one.users:
                self.graph.erase_node(one)
                alive.discard(one)

    def _now(self, alive: set[Node]) -> dict[Node, Node] | None:
        """What stands for each source, as regions may have computed it; None if the node stays as it is."""
        if not alive.issuperset((self.node, *self.made)) or self.node.target is not aten.cat.default:
            return None
        operands: Any = self.node.args[0]
        now = {one: one for one in (*self.sources, *(one for one, *_ in self.before))}
        now |= {one: reader.all_input_nodes[0] for one, reader in self.readers.items() if one in now}
        now |= {one: operands[i] for one, i in self.places.items() if one in now}
        return None if any(map(_is_launched, operands)) or not alive.issuperset(now.values()) else now


def _is_launched(operand: Node) -> bool:
    source = unviewed(operand)
    return source.target is operator.getitem and source.args[0].target is triton_kernel_wrapper_functional  # type: ignore[union-attr]


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
    found = Pieces(dim, [], [])
    try:
        found.all = _pieces(node, found, True)
    except _Mixed:
        return None
    computed = (p.source for p in found.all if isinstance(p.source, Node))
    return found if len(found.all) > 1 and any(takes_operands(unviewed(n)) for n in computed) else None


class _Mixed(Exception):
    """Elements of a tensor are computed from those of several, or it is not known of which."""


def _dim(node: Node) -> int | None:
    """The dim along which a node puts pieces together; None if it does not, or by sizes that are symbolic."""
    val = fake(node) if node.op == "call_function" else None
    if val is None or not all(isinstance(n, int) for n in val.shape):
        return None
    if any(isinstance(n.meta.get("val"), torch.SymInt) for n in node.all_input_nodes):
        return None
    if node.target is aten.add.Tensor:
        below = [_dim(arg) for arg in node.args if isinstance(arg, Node) and list(arg.users) == [node]]
        return next((dim for dim in below if dim is not None), None)
    if node.target is aten.cat.default:
        return _argument(node, 1, "dim", 0) % val.ndim
    if node.target in (aten.slice_scatter.default, aten.select_scatter.default):
        return _argument(node, 2, "dim", 0) % val.ndim
    if node.target is aten.constant_pad_nd.default:
        pads: Any = node.args[1]
        dims = {val.ndim - 1 - i // 2 for i, n in enumerate(pads) if n}
        return dims.pop() if len(dims) == 1 and min(pads) >= 0 else None
    return None


def _pieces(node: Node, found: Pieces, is_root: bool = False) -> list[Piece]:
    val = fake(node)
    assert val is not None
    if not all(isinstance(n, int) for n in val.shape):
        raise _Mixed
    size: int = val.shape[found.dim]
    filled = unviewed(node)
    if filled.target is aten.full.default and not isinstance(filled.args[1], Node):
        return [Piece(size, filled.args[1])]  # type: ignore[arg-type]
    if _dim(node) != found.dim or not (is_root or len(node.users) == 1):
        return [Piece(size, node)]
    found.inside.append(node)
    first: Any = node.args[0]
    if node.target is aten.cat.default:
        if any(one.meta["val"].dtype != val.dtype for one in first):
            raise _Mixed
        return [piece for one in first for piece in _pieces(one, found)]
    if node.target is aten.add.Tensor:
        second: Any = node.args[1]
        if node.kwargs or any(not isinstance(a, Node) or not _is_like(fake(a), val) for a in node.args):
            raise _Mixed
        return _sum(_pieces(first, found), _pieces(second, found))
    if node.target is aten.constant_pad_nd.default:
        pads: Any = node.args[1]
        before, behind = pads[2 * (val.ndim - 1 - found.dim) :][:2]
        value = node.args[2] if len(node.args) > 2 else 0
        inner = _pieces(first, found)
        return [p for p in (Piece(before, value), *inner, Piece(behind, value)) if p.size]  # type: ignore[arg-type]
    source: Any = node.args[1]
    if node.target is aten.select_scatter.default:
        start: int = node.args[3] % size  # type: ignore[operator,assignment]
        written, end = [Piece(1, source, lifted=True)], start + 1
    else:
        start, end = (_bound(node, i, size) for i in (3, 4))
        if _argument(node, 5, "step", 1) != 1:
            raise _Mixed
        written = _pieces(source, found)
    base = _pieces(first, found)
    return [*_range(base, 0, start), *written, *_range(base, end, size)]


def _is_like(val: torch.Tensor | None, whole: torch.Tensor) -> bool:
    return val is not None and (val.shape, val.dtype) == (whole.shape, whole.dtype)


def _argument(node: Node, place: int, name: str, default: int) -> int:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)  # type: ignore[return-value]


def _bound(node: Node, place: int, size: int) -> int:
    """The start or the end of a slice."""
    given: Any = _argument(node, place, ("start", "end")[place - 3], (0, size)[place - 3])
    given = (0, size)[place - 3] if given is None else given
    return min(given + size if given < 0 else given, size)


def _range(pieces: Sequence[Piece], start: int, end: int) -> list[Piece]:
    """The pieces of a part of a tensor."""
    found, at = list[Piece](), 0
    for piece in pieces:
        first, last = max(start, at), min(end, at + piece.size)
        if first < last:
            found.append(dataclasses.replace(piece, start=piece.start + first - at, size=last - first))
        at += piece.size
    return found


def _sum(a: Sequence[Piece], b: Sequence[Piece]) -> list[Piece]:
    ends = sorted({end for pieces in (a, b) for end in itertools.accumulate(p.size for p in pieces)})
    ranges = list(zip([0, *ends[:-1]], ends, strict=True))
    return [_added(*(_range(pieces, *one)[0] for pieces in (a, b))) for one in ranges]


def _added(a: Piece, b: Piece) -> Piece:
    """The sum of two pieces of one size. Raises `_Mixed` where both have elements."""
    for one, other in ((a, b), (b, a)):
        if not isinstance(one.source, Node) and one.source == 0:
            return dataclasses.replace(other, added=True)
    raise _Mixed
