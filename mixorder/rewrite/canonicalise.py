"""Canonicalises nodes to the reductions, or the `cat`, that they are, while regions are looked for.

The largest of all elements is the largest of each column's largest: the first step is a reduction over the
rows, as a pair's outer one, and may be computed where a region has the tensor at hand. The sum of all is that
of each row's sum, beside a sum of each column, or else that of each column's sum: the first step makes a pair
or joins a pointwise loop. Sums over several sets of dims begin with one over those that all are over. A sum
of what is linear in another sum's result is one of sums that need none: a region has all of them at once. The
extremum of a long row is that of its blocks' extrema: a pair has the blocks. Every other element of a tensor
is a reduction over pairs of which one element is 0: a tile of blocks has both, and can pack them.
A reduction of each row of `x.t()` is one of each column of `x`: a pair with those of its rows. What is
computed of an expanded tensor and permuted is computed of that tensor, permuted and expanded. A norm over
dims in the middle is computed with these last. A reduction of one element each is a view. What is reduced
of a `cat` is reduced of its pieces, and a sum over rows of values of rows is that of a column. Of two equal
masks, a region computes the one that reads less, and Inductor reads what is stored.

No result differs but for the order in which elements are added up, and for the sign of a zero that is the
largest: eager does not state which of 0 and -0 that is. What no region takes is restored at the end.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from ..errors import Decline, DeclineReason
from ..inductor.graphs import TWO_MASKS, triton_kernel_wrapper_functional
from ..inductor.tensors import empty
from ..ir.program import PACKED
from ..ir.reductions import SUM
from ..region.layouts import follow, followers, has_stated_order, is_read_as_stated, lie_alike
from ..region.nodes import (
    REDUCTIONS,
    Reduced,
    argument,
    fake,
    is_pair,
    is_permutation,
    is_pointwise,
    is_variance,
    is_view,
    keeps_dims,
    operands,
    reduced,
    reduced_dims,
    shape_of,
    size_of,
    stated_by,
    unviewed,
)
from ..region.orders import is_loop
from ..region.sizes import Size, product
from ..region.space_analysis import takes_operands
from ..region.tile import is_within_tile
from ..region.walk import by_position, closure, descendants, position, sources
from .added_first import MEAN, First, added_first, is_traced
from .graph_writer import is_launched
from .linear import chained, is_same_along
from .pieces import Piece, Pieces, between, joined_of, pieces_of, pieces_read, shared_pieces
from .piecewise import (
    ADDED,
    Piecewise,
    Range,
    find_piecewise,
    is_elementwise,
    is_inlined,
    permuted,
    range_of,
    reshaped,
)
from .sizes import Sizes

aten, prims = torch.ops.aten, torch.ops.prims
_OF_ROWS = {
    aten.amax.default: aten.amax.default,
    aten.max.default: aten.amax.default,
    aten.amin.default: aten.amin.default,
    aten.min.default: aten.amin.default,
}
_EXTREMA = _OF_ROWS | {aten.max.dim: aten.amax.default, aten.min.dim: aten.amin.default}
BLOCKS = (1024, 512)  # columns of a block of a long row
# Elements of a row, in all tensors that its extremum is computed of, at most: with more, rows are in blocks
# (docs/lab/tuning.md, "Casts by blocks").
LONG_ROW = 32768
_SUM = aten.sum.dim_IntList
_BYTES = (torch.uint8, torch.int8)
SHORT = 1024  # elements along the dims of a norm over dims in the middle, at most
_ALONG = (  # reductions that may keep their dims
    aten.sum.dim_IntList,
    aten.mean.dim,
    aten.amax.default,
    aten.amin.default,
    aten.var.correction,
)


class Canonicaliser:
    """The nodes of a graph that become reductions or a `cat`. `joining`: those reductions that may join a
    region, but that none is to be looked for, and what was added in front of each."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.sizes = graph, Sizes(graph)
        self.rewrites: list[_Rewrite] = []

    @property
    def joining(self) -> dict[Node, frozenset[Node]]:
        return {rewrite.made[-1]: frozenset(rewrite.made[:-1]) for rewrite in self.rewrites if rewrite.joins}

    def begin(self) -> None:
        """Canonicalise nodes to reductions, then others to a `cat`."""
        nodes = self.operators()
        for node in filter(_is_of_one_element, nodes):
            self.canonicalise(_as_operand, [node])
        for node in filter(_is_of_one_each, nodes):
            self.canonicalise(_by_place, [node])
        for order, members in _across(nodes):
            self.canonicalise(_in_order, members, order)
        for piecewise in find_piecewise(nodes):
            self.canonicalise(_by_piece, piecewise.nodes, piecewise)
        for node, whole in list(_of_row_values(self.graph)):
            self.canonicalise(_by_columns_of_rows, [node], whole)
        above = functools.cache(_above)  # of a deep network's residual stream, all layers
        begun = added_first(nodes, above)
        for node, needing in chained(nodes, begun).items():
            self.canonicalise(_by_terms, [node], needing)
        if len(nodes) != len(now := self.operators()):
            nodes, above = now, functools.cache(_above)
            begun = added_first(nodes, above)
        reduced_roots = {n: root for n in nodes if (root := _reduced_root(n))}
        roots = {root for root, _ in reduced_roots.values() if not is_permutation(root)}
        reductions = [_unpermuted_dims(n, root) for n, (root, _) in reduced_roots.items()]
        for node in nodes:
            if node.meta.get(TWO_MASKS) and all(n.op == "call_function" for n in operands(node)):
                self.canonicalise(_by_value, [node])
            elif (kept := _columns(node)) is not None:
                self.canonicalise(_by_columns, [node], kept)
            elif node in begun:
                self.canonicalise(_add_first, [node], begun[node])
            elif (piece := _piece(node)) is not None:
                self.canonicalise(_by_pairs, [node], *piece)
            elif (path := reduced_roots.get(node)) and _joins(node, path[0], roots, reductions):
                self.canonicalise(_unpermuted, [node], *path)
            elif (block := _block(node, reductions, above)) is not None:
                self.canonicalise(_by_blocks, [node], block)
            elif (expanded := _expanded(node)) is not None:
                self.canonicalise(_permuted_first, [node], *expanded)
            elif (read := pieces_read(node)) is not None:
                self.canonicalise(_from_pieces, [node], read)
        for node in reversed(nodes):
            if (pieces := pieces_of(node)) is not None:
                self.canonicalise(_of_pieces, [node], pieces)
            elif shared := shared_pieces(node):
                self.canonicalise(_of_copies, [node], shared)
        self.sizes.erase_unused()

    def operators(self) -> list[Node]:
        return [n for n in self.graph.nodes if n.op == "call_function"]

    def canonicalise(self, how: Callable[..., None], nodes: Collection[Node], *args: Any) -> None:
        """Canonicalise nodes in a way. They stay as they are if one would be another tensor, or the way needs
        a guard."""
        rewrite = _Rewrite(self.sizes, nodes)
        try:
            how(rewrite, *args)
        except (_Differs, Decline):
            rewrite.restore(rewrite.before)
            rewrite.erase({*rewrite.made}, rewrite.made)
        else:
            rewrite.finish()
            self.rewrites.append(rewrite)

    def end(self) -> None:
        """Restore those that no region has taken."""
        for rewrite in reversed(self.rewrites):
            rewrite.end(set(self.graph.nodes))
        self.rewrites.clear()
        self.sizes.erase_unused()


class _Differs(Exception):
    """A canonical form has another dtype, shape or device than the node has, or strides that a reader takes
    as the graph states them."""


State: TypeAlias = tuple[Any, Any, Any, Any]
"""A node's target, arguments, keyword arguments and value."""


def _state(node: Node) -> State:
    return node.target, node.args, node.kwargs, node.meta["val"]


class _Rewrite:
    """Nodes that come to read what was `made`, one after the other: now `node`. What they are computed of
    without is `replaced`: it stands idle where nothing reads it, so that all can be put back. `before`: what
    each was. `read`: the operands of what reads the same now. `joins`: `made[-1]` is a reduction that may
    join a region, and no region is looked for it."""

    joins = False

    def __init__(self, sizes: Sizes, nodes: Collection[Node]) -> None:
        self.sizes, self.graph, self.nodes = sizes, sizes.graph, by_position(nodes)
        self.node = self.nodes[-1]
        self.before: dict[Node, State] = {}
        self.made: list[Node] = []
        self.replaced: set[Node] = set()
        self.read: dict[Node, list[Node]] = {}

    def each(self) -> Iterator[Node]:
        """The nodes in graph order, each in its turn."""
        for node in self.nodes:
            self.node = node
            yield node

    def add(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a node before the present one. Raises `Decline` if that needs a guard on a symbolic size."""
        args = map_aggregate(args, self._size)
        val = self.value(target, args, kwargs)
        with self.graph.inserting_before(self.node):
            made = self.graph.call_function(target, args, kwargs)
        made.meta.update({k: v for k, v in self.node.meta.items() if k != "val"})
        made.meta["val"] = val
        self.made.append(made)
        return made

    def add_again(self, nodes: Sequence[Node], source: Node, value: Node) -> Node:
        """Add what operators on one tensor each, the last one first, compute of another value than of
        `source`."""
        for node in reversed(nodes):
            args = (value if a in (source, *nodes) else a for a in node.args)
            value = self.add(node.target, *args, **node.kwargs)
        return value

    def cast(self, value: Node, dtype: torch.dtype) -> Node:
        same = fake(value).dtype == dtype  # type: ignore[union-attr]
        return value if same else self.add(prims.convert_element_type.default, value, dtype)

    def places(self, size: Any, dim: int = 0, ndim: int = 1) -> Node:
        """The places along one dim of a tensor of so many dims."""
        device = self.node.meta["val"].device
        kwargs = {"start": 0, "step": 1, "dtype": torch.int64, "device": device, "requires_grad": False}
        places = self.add(prims.iota.default, size, **kwargs)
        shape = [size if d == dim else 1 for d in range(ndim)]
        return places if ndim == 1 else self.add(aten.reshape.default, places, shape)

    def zero(self, value: Node) -> Node:
        """The number 0 in the dtype of a value."""
        val: Any = fake(value)
        return self.add(aten.full.default, [], 0, dtype=val.dtype, device=val.device, pin_memory=False)

    def _size(self, argument: Any) -> Any:
        """An argument of an operator, with a node for a symbolic size."""
        if not isinstance(argument, torch.SymInt | sympy.Expr):
            return argument
        size = size_of(argument) if isinstance(argument, torch.SymInt) else argument
        if (known := self.sizes.of(size)) is None:
            raise Decline(DeclineReason.DYNAMIC_SHAPE, f"no input has the size {size}")
        return known

    def value(self, target: Any, args: Any, kwargs: Any) -> Any:
        val = fake(self.node)
        assert val is not None
        with val.fake_mode:  # type: ignore[attr-defined]
            return target(*torch.fx.map_arg(args, lambda n: n.meta["val"]), **kwargs)

    def canonicalise_as(self, target: Any, *args: Any, **kwargs: Any) -> None:
        """Make the present node a function of what was added. Raises `_Differs` or `Decline` with the node
        unchanged."""
        args = map_aggregate(args, self._size)
        node, val, before = self.node, self.value(target, args, kwargs), _state(self.node)
        old = before[-1]
        alike = (val.dtype, val.device) == (old.dtype, old.device) and _are_equal(val.shape, old.shape)
        node.target, node.args, node.kwargs = target, args, kwargs
        stated = not takes_operands(node)  # what reads a loop's result says how it is stored
        if not alike or (stated and not lie_alike(val, old) and has_stated_order(node)):
            node.target, node.args, node.kwargs, _ = before
            raise _Differs
        if stated:
            node.meta["val"] = val
            follow(node)
        self.before[node] = before

    def finish(self) -> None:
        """Let what is replaced stand idle."""
        for node in reversed(by_position(self.replaced)):
            if not node.users:
                self.before.setdefault(node, _state(node))
                node.target, node.args, node.kwargs = int, (0,), {}
                del node.meta["val"]
        self.read = {n: _read_by((n.args, n.kwargs)) for n in (*self.made, *self.before)}

    def lay(self, made: Node, order: Sequence[int]) -> None:
        """State for what a loop computes those strides by which its dims in some order lie as the present
        node's."""
        val, strides = made.meta["val"], self.node.meta["val"].stride()
        laid = [strides[order.index(d)] for d in range(len(order))]
        made.meta["val"] = empty(val.fake_mode, val.shape, laid, val.dtype, val.device)

    def stand_for(self, value: Node) -> None:
        """Make the present node a view of what was added."""
        self.canonicalise_as(aten.expand.default, value, [*value.meta["val"].shape])

    def end(self, alive: set[Node]) -> None:
        """Restore the nodes, if nothing was taken of them; erase what nothing reads then. `alive`: the nodes
        of the graph."""
        before = self._restorable(alive)
        self.restore(before)
        states = self.before.values() if len(self.nodes) == 1 else ()  # Inductor erases what several read
        read = itertools.chain(*self.read.values(), *(_read_by(state[1:3]) for state in states))
        self.erase(alive, (*read, *self.replaced, *self.made))

    def restore(self, before: Mapping[Node, State]) -> None:
        for node, (target, args, kwargs, val) in before.items():
            node.target, node.args, node.kwargs, node.meta["val"] = target, args, kwargs, val
        for node in by_position(before):
            follow(node)

    def erase(self, alive: set[Node], nodes: Iterable[Node]) -> None:
        """Erase some nodes, and what these read, where nothing reads them."""
        todo = [*nodes]
        while todo:
            node = todo.pop()
            if node in alive and not node.users and node.op == "call_function" and not node.is_impure():
                todo += node.all_input_nodes
                self.graph.erase_node(node)
                alive.discard(node)

    def _restorable(self, alive: set[Node]) -> dict[Node, State]:
        """The nodes as they were before, of what a region may have computed. None of them if some node was
        taken, a kernel writes an operand to its place or reads a node as it lies now, or an operand now comes
        too late."""
        read = {n for node in self.before if node in alive for n in node.all_input_nodes}
        if not alive.issuperset(self.read) or any(map(is_launched, map(unviewed, read))):
            return {}
        if any(_lies_otherwise(n, val) for n, (*_, val) in self.before.items()):
            return {}
        pairs = ((before, _read_by((n.args, n.kwargs))) for n, before in self.read.items())
        now = {a: b for before, after in pairs for a, b in zip(before, after, strict=True)}
        before = {
            node: torch.fx.map_arg(state[:3], lambda n: now.get(n, n)) + state[3:]
            for node, state in self.before.items()
        }
        given = ((node, arg) for node, state in before.items() for arg in _read_by(state[1:3]))
        in_order = all(arg in alive and position(arg) < position(node) for node, arg in given)
        return before if in_order else {}


def _lies_otherwise(node: Node, before: Any) -> bool:
    """Whether a kernel reads a node whose strides are not those that it had before."""
    if lie_alike(node.meta.get("val"), before):
        return False
    below = closure([node], followers)
    return any(
        user.target is triton_kernel_wrapper_functional for follower in below for user in follower.users
    )


def _are_equal(shape: Sequence[Any], sizes: Sequence[Any]) -> bool:
    return [*map(size_of, shape)] == [*map(size_of, sizes)]


def _read_by(args: Any) -> list[Node]:
    """The nodes in some arguments, each as often as it stands there."""
    nodes = list[Node]()
    torch.fx.map_arg(args, nodes.append)
    return nodes


def _of_pieces(rewrite: _Rewrite, pieces: Pieces) -> None:
    """Canonicalise a node to a `cat` of pieces."""
    rewrite.replaced.update(pieces.inside)
    rewrite.replaced.discard(rewrite.node)
    operands = [_operand(rewrite, rewrite.node, piece, pieces.dim) for piece in pieces.all]
    rewrite.canonicalise_as(aten.cat.default, operands, pieces.dim)


def _of_copies(rewrite: _Rewrite, shared: Sequence[Node]) -> None:
    """Copy pieces of a `cat` that others read as well before it takes them."""
    target, (pieces, *args), kwargs, _ = _state(rewrite.node)
    copies = {piece: rewrite.add(aten.clone.default, piece) for piece in shared}
    rewrite.canonicalise_as(target, [copies.get(n, n) for n in pieces], *args, **kwargs)


def _from_pieces(rewrite: _Rewrite, source: Pieces) -> None:
    """Read pieces where they were before they were written to a larger tensor."""
    pieces = [_operand(rewrite, rewrite.node, piece, source.dim) for piece in source.all]
    rewrite.stand_for(pieces[0] if len(pieces) == 1 else rewrite.add(aten.cat.default, pieces, source.dim))


def _operand(rewrite: _Rewrite, joined: Node, piece: Piece, dim: int) -> Node:
    """A piece of a tensor that is put together along a dim, in the tensor's dtype."""
    whole, value = fake(joined), piece.source
    assert whole is not None
    if not isinstance(value, Node):
        shape = [piece.size if d == dim else n for d, n in enumerate(whole.shape)]
        return rewrite.add(
            aten.full.default, shape, value, dtype=whole.dtype, device=whole.device, pin_memory=False
        )
    value = rewrite.cast(value, whole.dtype)
    if piece.added and whole.dtype.is_floating_point:
        value = rewrite.add(aten.add.Tensor, value, 0)
    if piece.lifted:
        return rewrite.add(aten.unsqueeze.default, value, dim)
    if piece.size != fake(value).shape[dim]:  # type: ignore[union-attr]
        return rewrite.add(aten.slice.Tensor, value, dim, piece.start, piece.start + piece.size)
    return value


def _by_value(rewrite: _Rewrite) -> None:
    """Make a node that is computed from two masks the second one, and later the first one."""
    node, (stored, computed), val = rewrite.node, operands(rewrite.node), rewrite.node.meta["val"]
    rewrite.canonicalise_as(computed.target, *computed.args)
    rewrite.before[node] = stored.target, stored.args, stored.kwargs, val
    for mask in (stored, computed):
        if not mask.users:
            rewrite.graph.erase_node(mask)


def _is_of_one_element(node: Node) -> bool:
    """Whether a node reduces dims of one element only, and gives that element. One row, or one column, is a
    pair's like any other number."""
    if node.target not in REDUCTIONS or is_variance(node) or (what := reduced(node)) is None:
        return False
    long = [d for d, n in enumerate(what.shape) if n != 1]
    return len(long) > 1 and not set(long).intersection(what.dims)


def _as_operand(rewrite: _Rewrite) -> None:
    """Canonicalise a reduction of one element each to a view of what it reduces."""
    value = rewrite.cast(operands(rewrite.node)[0], rewrite.node.meta["val"].dtype)
    if keeps_dims(rewrite.node):
        rewrite.stand_for(value)
    else:
        rewrite.canonicalise_as(aten.squeeze.dims, value, list(reduced_dims(rewrite.node)))


def _is_of_one_each(node: Node) -> bool:
    """Whether a node writes one element along a dim for each place in all others, such as the gradient of a
    maximum."""
    if node.target is not aten.scatter.src:
        return False
    whole, index, source = (shape_of(node.args[i]) for i in (0, 2, 3))  # type: ignore[arg-type]
    if whole is None or index is None or index != source or not all(isinstance(n, int) for n in whole):
        return False
    dim: int = node.args[1] % len(whole)  # type: ignore[operator,assignment]
    return index == tuple(1 if d == dim else n for d, n in enumerate(whole))


def _by_place(rewrite: _Rewrite) -> None:
    """Compare a node's place along a dim with the one that it writes to."""
    _, (whole, dim, index, source), _, val = _state(rewrite.node)
    dim = dim % val.ndim
    mask = rewrite.add(aten.eq.Tensor, rewrite.places(val.shape[dim], dim, val.ndim), index)
    rewrite.canonicalise_as(aten.where.self, mask, source, whole)


def _across(nodes: Sequence[Node]) -> Iterator[tuple[list[int], list[Node]]]:
    """Norms over dims in the middle, such as over the channels of images: an order of dims in which these are
    the last ones, and what computes with tensors of such a shape, in graph order. Only where elements are
    computed with sums over these dims, sums over all others are of the same tensors, and most tensors lie so
    in memory, or there are several sums (docs/lab/written.md)."""
    some = {n: what for n in nodes if n.target in _ALONG and (what := reduced(n)) and _is_long(what)}
    taken = set[Node]()
    for node, what in some.items():
        dims, ndim = what.dims, len(what.shape)
        if node in taken or 0 in dims or ndim - 1 in dims or product(what.shape[d] for d in dims) > SHORT:
            continue
        kept = tuple(d for d in range(ndim) if d not in dims)
        alike = {n: over.dims for n, over in some.items() if over.shape == what.shape}
        wanted = {n for n, over in alike.items() if over in (dims, kept)}

        def near(member: Node, shape: Any = what.shape, wanted: Collection[Node] = wanted) -> list[Node]:
            around = (*operands(member), *member.users) if member not in wanted else operands(member)
            return [n for n in around if n in wanted or (is_elementwise(n) and shape_of(n) == shape)]

        members = set(closure([node], near))
        read = {arg for n in members for arg in operands(n)}
        members |= {n for n in wanted if not read.isdisjoint(operands(n))}
        again = any(n not in wanted and n in members for n in descendants(node.users, is_loop))
        full = [fake(n) for n in read - members if shape_of(n) == what.shape]
        so = [val for val in full if val is not None and val.stride(dims[-1]) == 1]
        over_each = [alike.get(n) for n in members]
        worthwhile = 2 * len(so) > len(full) or over_each.count(dims) > 1
        if again and worthwhile and kept in over_each:
            taken |= members
            yield [*kept, *dims], by_position(members)


def _is_long(what: Reduced) -> bool:
    """Whether a reduction is of at least two dims, none of which is symbolic or short."""
    return len(what.shape) > 2 and all(isinstance(n, int) and n > 1 for n in what.shape)


def _in_order(rewrite: _Rewrite, order: list[int]) -> None:
    """Compute what nodes computed with the dims of all operands in another order."""
    back = [order.index(d) for d in range(len(order))]
    shared = dict[Node, Node]()  # of an operand, the same one in the other order
    rewrite.replaced.update(rewrite.nodes)

    def moved(arg: Node) -> Node:
        if arg.target is aten.permute.default and arg.args[1] == back and arg.args[0] in rewrite.made:
            return arg.args[0]  # type: ignore[return-value]
        if arg not in shared:
            shape = list(fake(arg).shape)  # type: ignore[union-attr]
            padded = [1] * (len(order) - len(shape)) + shape
            if _moves(padded, order):
                value = rewrite.add(aten.reshape.default, arg, padded)
                shared[arg] = rewrite.add(aten.permute.default, value, order)
            else:
                shared[arg] = rewrite.add(aten.reshape.default, arg, [padded[d] for d in order])
        return shared[arg]

    for node in rewrite.each():
        target, args, kwargs, val = _state(node)
        if (what := reduced(node)) is not None:
            given = moved(args[0]), sorted(back[d] for d in what.dims)
            # Inductor's lowerings of sums and extrema name the third argument differently.
            kept, named = ((), {"keepdim": True}) if is_variance(node) else ((True,), {})
            named |= {k: v for k, v in kwargs.items() if k not in ("dim", "keepdim")}
            value = rewrite.add(target, *given, *kept, **named)
            rewrite.canonicalise_as(aten.reshape.default, value, list(val.shape))
            continue
        if target is aten.expand.default:
            args = args[0], [val.shape[d] for d in order]
        args, kwargs = torch.fx.map_arg((args, kwargs), moved)
        rewrite.canonicalise_as(aten.permute.default, rewrite.add(target, *args, **kwargs), back)


def _by_piece(rewrite: _Rewrite, piecewise: Piecewise) -> None:
    """Compute nodes of the pieces of a tensor, instead of the whole."""
    known = _Parts(rewrite, piecewise)
    rewrite.replaced.update(rewrite.nodes)
    for node in rewrite.each():
        if (range_ := piecewise.slices.get(node)) is not None:
            rewrite.replaced.update(operands(node))  # a split
            value = known.part(range_)
            if value in rewrite.made and is_elementwise(value) and has_stated_order(node):
                rewrite.lay(value, range(len(range_.shape)))
            rewrite.stand_for(value)
        elif node in piecewise.whole:
            ranges = piecewise.ranges[node]
            rewrite.canonicalise_as(aten.cat.default, [*map(known.part, ranges)], ranges[0].dim)
        else:
            _reduce_parts(rewrite, piecewise.ranges[operands(node)[0]], known)


def _reduce_parts(rewrite: _Rewrite, ranges: Sequence[Range], known: _Parts) -> None:
    """Put the reductions of a tensor's parts before a node, and make it of their results."""
    target, _, kwargs, val = _state(rewrite.node)
    dim, dims, kept = ranges[0].dim, list(reduced_dims(rewrite.node)), keeps_dims(rewrite.node)
    if dim not in dims:
        each = [rewrite.add(target, known.part(range_), dims, kept, **kwargs) for range_ in ranges]
        rewrite.canonicalise_as(aten.cat.default, each, dim if kept else dim - sum(d < dim for d in dims))
        return
    is_sum = target is _SUM
    dtype = SUM.accumulates_in(val.dtype) if is_sum else val.dtype
    kwargs = {"dtype": dtype} if is_sum else {}
    each = []
    for range_ in ranges:
        value = known.part(range_)
        if any(range_.shape[d] != 1 for d in dims):
            value = rewrite.add(target, value, dims, kept, **kwargs)
        else:
            value = rewrite.add(aten.reshape.default, value, list(val.shape))
            value = rewrite.add(prims.convert_element_type.default, value, dtype)
        each.append(value)
    whole = functools.reduce(functools.partial(rewrite.add, ADDED[target]), each)
    rewrite.canonicalise_as(prims.convert_element_type.default, whole, val.dtype)


class _Parts:
    """Parts of tensors, each of which is computed once."""

    def __init__(self, rewrite: _Rewrite, piecewise: Piecewise) -> None:
        self.rewrite, self.piecewise = rewrite, piecewise
        self.known: dict[Range, Node] = {}

    def part(self, range_: Range) -> Node:
        if range_ not in self.known:
            self.known[range_] = self._made(range_)
        return self.known[range_]

    def _made(self, range_: Range) -> Node:
        node, dim, add, replaced = range_.node, range_.dim, self.rewrite.add, self.rewrite.replaced
        source = range_of(node)
        if source is not None and source.dim == dim and is_inlined(source.node):
            replaced |= {node, *operands(node)}
            start = source.start
            return self.part(Range(source.node, dim, start + range_.start, start + range_.end))
        if range_.is_all:
            return node
        if (pieces := joined_of(node)) is not None and pieces.dim == dim:
            replaced.update(pieces.inside)
            shown = between(pieces.all, range_.start, range_.end)
            values = [_operand(self.rewrite, node, piece, dim) for piece in shown]
            return values[0] if len(values) == 1 else add(aten.cat.default, values, dim)
        stored = node not in self.piecewise.ranges and is_read_as_stated(node)
        if stored or (call := self._call(range_)) is None:
            return add(aten.slice.Tensor, node, dim, range_.start, range_.end)
        replaced.add(node)
        target, args, kwargs = call
        made = add(target, *args, **kwargs)
        made.meta |= {k: v for k, v in node.meta.items() if k != "val"}
        return made

    def _call(self, range_: Range) -> tuple[Any, Any, Any] | None:
        """The call that gives a part as the node gives the whole; None if there is none."""
        node = range_.node
        if is_elementwise(node):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), functools.partial(self._cut, range_))
            args = (args[0], range_.shape) if node.target is aten.expand.default else args
            return node.target, args, kwargs
        if is_permutation(node):
            order = [d % len(range_.shape) for d in node.args[1]]  # type: ignore[union-attr,operator]
            return node.target, (self.part(permuted(range_, operands(node)[0], order)), order), node.kwargs
        if is_view(node) and not is_pair(node) and (below := reshaped(range_, operands(node)[0])):
            return aten.reshape.default, (self.part(below), range_.shape), node.kwargs
        if node.target is aten.full.default:
            return node.target, (range_.shape, *node.args[1:]), node.kwargs
        return None

    def _cut(self, range_: Range, arg: Node) -> Node:
        """What an operand is for a part of what is computed elementwise of it."""
        if (shape := shape_of(arg)) is None:
            return arg
        dim = range_.dim + len(shape) - len(range_.shape)
        if dim < 0 or shape[dim] == 1:
            return arg
        return self.part(dataclasses.replace(range_, node=arg, dim=dim))


def _columns(node: Node) -> int | None:
    """The dim of the columns of a tensor that a node takes the maximum or minimum of; None if the node does
    anything else, or the tensor has no rows."""
    if node.target not in _OF_ROWS or not isinstance(node.args[0], Node):
        return None
    val, shape = fake(node.args[0]), shape_of(node.args[0])
    if val is None or not shape or len(reduced_dims(node)) < len(shape):
        return None
    long = [d for d, n in enumerate(shape) if n != 1]
    columns = [d for d in long if val.stride(d) == 1]
    return columns[0] if len(long) > 1 and columns and product(shape) != 0 else None


def _by_columns(rewrite: _Rewrite, kept: int) -> None:
    """Put the reduction over all other dims before a node, which then reduces that one's result."""
    target, (source, *args), kwargs, _ = _state(rewrite.node)
    dims = [d for d in range(source.meta["val"].ndim) if d != kept]
    rewrite.joins = True
    rewrite.canonicalise_as(target, rewrite.add(_OF_ROWS[target], source, dims, True), *args, **kwargs)


def _add_first(rewrite: _Rewrite, first: First) -> None:
    """Put the sum that a node begins with before it, which casts the sum of those; both in the accumulator's
    dtype."""
    target, (source, *args), kwargs, val = _state(rewrite.node)
    dtype, shape = SUM.accumulates_in(val.dtype), shape_of(source)
    if first.sum.shape != shape:
        source = rewrite.add(aten.reshape.default, source, [*first.sum.shape])
    sums = rewrite.add(_SUM, source, [*first.sum.dims], True, dtype=dtype)
    if first.sum.shape != shape:
        sums = rewrite.add(aten.reshape.default, sums, [*first.left])
    is_mean = target is MEAN
    total = rewrite.add(_SUM if is_mean else target, sums, *args, **{**kwargs, "dtype": dtype})
    if is_mean:
        count = product(shape[d] for d in reduced_dims(rewrite.node))  # type: ignore[index]
        total = rewrite.add(aten.div.Tensor, total, count)
    rewrite.canonicalise_as(prims.convert_element_type.default, total, val.dtype)


def _by_terms(rewrite: _Rewrite, needing: Collection[Node]) -> None:
    """Canonicalise a sum to one of its terms' sums, of what needs no sum over the same dims."""
    _, (value, dims, *_), _, val = _state(rewrite.node)
    shape = shape_of(value) or ()
    known = dict[Node, Node]()  # a residual stream is a term of both its readers
    total = _sum_of(rewrite, value, needing, sorted(d % len(shape) for d in dims), shape, known)
    total = rewrite.add(aten.reshape.default, total, list(val.shape))
    rewrite.canonicalise_as(prims.convert_element_type.default, total, val.dtype)


def _sum_of(
    rewrite: _Rewrite,
    value: Node,
    needing: Collection[Node],
    dims: list[int],
    whole: tuple[Size, ...],
    known: dict[Node, Node],
) -> Node:
    """The sum of a value of a whole shape, or of what is expanded to it, along dims, in the accumulator's
    dtype. Raises `_Differs` where a value that needs a sum is not linear in what needs none."""

    def sum_of_term(term: Any) -> Node:
        if term not in known:
            known[term] = _sum_of(rewrite, term, needing, dims, whole, known)
        return known[term]

    args, target, rank = value.args, value.target, len(whole)
    if is_same_along(value, dims, rank):
        dtype, count = SUM.accumulates_in(value.meta["val"].dtype), product(whole[d] for d in dims)
        each = rewrite.add(prims.convert_element_type.default, _same_along(rewrite, value, dims, rank), dtype)
        return rewrite.add(aten.mul.Tensor, each, count)
    if shape_of(value) != whole:
        raise _Differs
    if target is aten.neg.default:
        return rewrite.add(target, sum_of_term(args[0]))
    if target is aten.pow.Tensor_Scalar and args[1] == 1:
        return sum_of_term(args[0])
    if target in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
        first, second = (n if isinstance(n, Node) else None for n in args)
        if second is None or is_same_along(second, dims, rank):
            return rewrite.add(
                target, sum_of_term(first), second and _same_along(rewrite, second, dims, rank) or args[1]
            )
        if target is aten.mul.Tensor and first is not None and is_same_along(first, dims, rank):
            return rewrite.add(target, _same_along(rewrite, first, dims, rank), sum_of_term(second))
    if value not in needing:
        dtype = SUM.accumulates_in(value.meta["val"].dtype)
        return rewrite.add(aten.sum.dim_IntList, value, dims, True, dtype=dtype)
    if target in (aten.add.Tensor, aten.sub.Tensor) and len(operands(value)) == 2 and not value.kwargs:
        return rewrite.add(target, *map(sum_of_term, args))
    if target is prims.convert_element_type.default and args[1] is torch.float32:
        return sum_of_term(args[0])
    raise _Differs


def _same_along(rewrite: _Rewrite, value: Node, dims: list[int], rank: int) -> Node:
    """What a value is for all elements that differ in some dims only, which have one element each."""
    if (val := fake(value)) is None:
        return value
    shape, padded = val.shape, [1] * (rank - val.ndim) + [*val.shape]
    if all(padded[d] == 1 for d in dims):
        return value if len(padded) == len(shape) else rewrite.add(aten.reshape.default, value, padded)
    args = torch.fx.map_arg(value.args, lambda n: _same_along(rewrite, n, dims, rank))
    return (
        args[0] if value.target is aten.expand.default else rewrite.add(value.target, *args, **value.kwargs)
    )


def _of_row_values(graph: Graph) -> Iterator[tuple[Node, tuple[Any, ...]]]:
    """Sums over rows of values that a reduction along rows gives, such as a softmax's of its sinks, and the
    shape of what that one reduces, of which there is no other sum over rows."""
    some = {n: what for n in graph.nodes if (what := reduced(n)) and len(what.dims) < len(what.shape)}
    along = {n: what.shape for n, what in some.items() if what.dims == (len(what.shape) - 1,)}
    taken = {what.shape for n, what in some.items() if n not in along}
    for node, what in some.items():
        kept = [n for d, n in enumerate(what.shape) if d not in what.dims and n != 1]
        if node.target is aten.sum.dim_IntList and what.shape[-1] == 1 and kept:
            shapes = {along[n] for n in _above(operands(node)[0]) if n in along} - taken
            yield from ((node, shape) for shape in shapes if shape[:-1] == what.shape[:-1])


def _by_columns_of_rows(rewrite: _Rewrite, shape: tuple[Any, ...]) -> None:
    """Put the sum of a tensor whose first column has the values, and all others 0, before a node."""
    _, (value, dims, *_), _, val = _state(rewrite.node)
    last, dtype = len(shape) - 1, SUM.accumulates_in(val.dtype)
    first = rewrite.add(aten.eq.Scalar, rewrite.places(shape[-1]), 0)
    zero = rewrite.zero(value)
    wide = rewrite.add(aten.where.self, first, rewrite.add(aten.expand.default, value, list(shape)), zero)
    sums = rewrite.add(aten.sum.dim_IntList, wide, dims, True, dtype=dtype)
    total = rewrite.add(
        aten.reshape.default, rewrite.add(aten.slice.Tensor, sums, last, 0, 1), list(val.shape)
    )
    rewrite.canonicalise_as(prims.convert_element_type.default, total, val.dtype)


def _piece(node: Node) -> tuple[int, int, int] | None:
    """The dim along which a node takes one of every few bytes, how many these are, and which one it takes;
    None for any other node."""
    source = node.args[0] if node.args else None
    if node.target not in (aten.slice.Tensor, aten.select.int) or not isinstance(source, Node):
        return None
    val, shape = fake(source), shape_of(source)
    if val is None or val.dtype not in _BYTES or not shape or not all(isinstance(n, int) for n in shape):
        return None
    if not all(isinstance(n, int) for n in node.args[1:]) or node.kwargs:
        return None
    dim, start, *bounds = (*node.args[1:], *(0, 0)[len(node.args) - 1 :])  # type: ignore[misc]
    dim %= len(shape)
    size: int = shape[dim]  # type: ignore[assignment]
    if node.target is aten.select.int:
        return (dim, size, start % size) if _packs(size) else None
    end, step = (*bounds, *(size, 1)[len(bounds) :])
    whole = end >= size and 0 <= start < step
    return (dim, step, start) if whole and _packs(step) and size % step == 0 else None


def _packs(count: int) -> bool:
    return 1 < count <= PACKED and count & (count - 1) == 0


def _by_pairs(rewrite: _Rewrite, dim: int, count: int, which: int) -> None:
    """Put the reduction over `count` elements next to each other before a node; all but one of them are 0."""
    target, (value, *_), _, result = _state(rewrite.node)
    shape = list(value.meta["val"].shape)
    if target is aten.slice.Tensor:
        shape[dim : dim + 1] = [shape[dim] // count, count]
        dim += 1
        value = rewrite.add(aten.reshape.default, value, shape)
    mask = rewrite.add(aten.eq.Scalar, rewrite.places(count, dim, len(shape)), which)
    value = rewrite.add(aten.where.self, mask, value, rewrite.zero(value))
    rewrite.joins = True
    total = rewrite.add(prims.xor_sum.default, value, [dim])
    rewrite.canonicalise_as(aten.reshape.default, total, list(result.shape))


def _reduced_root(node: Node) -> tuple[Node, list[Node]] | None:
    """The tensor that a reduction along dims is computed from by operators on one tensor each, and these, the
    last one first; None for any other node, and for blocks, which are found however they lie."""
    what = reduced(node)
    if what is None or len(what.dims) == len(what.shape) or is_within_tile(node):
        return None
    return _root(stated_by(node))


def _root(node: Node) -> tuple[Node, list[Node]]:
    """What the operand of a node is computed from by operators on one tensor each, and these, the last one
    first."""
    (source,) = operands(node)
    between: list[Node] = []
    while is_pointwise(source) and len(operands(source)) == 1 and len(source.all_input_nodes) == 1:
        between.append(source)
        (source,) = operands(source)
    return source, between


def _joins(
    node: Node, root: Node, roots: Collection[Node], reductions: Sequence[tuple[Node, set[int]]]
) -> bool:
    """Whether a reduction is of a permuted tensor, and has one to pair with: of the same tensor, of which
    there is one of `roots`, or along other dims, of what is computed of the same tensors. Any other reduction
    stands where its reader needs it."""
    if not is_permutation(root):
        return False
    value, dims = _unpermuted_dims(node, root)
    disjoint = [reduced_value for reduced_value, along in reductions if dims.isdisjoint(along)]
    above = _above(value)
    return _root(root)[0] in roots or any(
        not above.isdisjoint(_above(reduced_value)) for reduced_value in disjoint
    )


def _unpermuted_dims(node: Node, root: Node) -> tuple[Node, set[int]]:
    """What a reduction reduces a permutation of, or else itself, and the dims of it that are reduced, from
    the last one on."""
    value = operands(root if is_permutation(root) else stated_by(node))[0]
    order: Any = root.args[1] if is_permutation(root) else range(len(shape_of(value) or ()))
    return value, {order[d] % len(order) - len(order) for d in reduced_dims(node)}


def _block(
    node: Node, reductions: Sequence[tuple[Node, set[int]]], above: Callable[[Node], set[Node]]
) -> int | None:
    """The columns of a block of long rows, for an extremum along them beside a reduction of the same tensors
    over rows, if rows wait for no other reduction. None for any other node."""
    if stated_by(node).target not in _EXTREMA or (what := reduced(node)) is None:
        return None
    value, along = _unpermuted_dims(node, node)
    if along != {-1} or not isinstance(cols := what.shape[-1], int):
        return None
    block = next((n for n in BLOCKS if cols % n == 0), None)
    if block is None:
        return None
    over = [(above(reduced_value), dims) for reduced_value, dims in reductions]
    sharing = [(tensors, dims) for tensors, dims in over if not tensors.isdisjoint(above(value))]
    read = {n for tensors, _ in sharing for n in tensors if not (is_pointwise(n) or is_view(n))}
    if cols * len(read) <= LONG_ROW or all(-1 in dims for _, dims in sharing):
        return None
    around = itertools.chain(sources([value], is_traced), descendants(node.users, is_traced))
    only_one = all(reduction.shape != what.shape for n in around if (reduction := reduced(n)) is not None)
    return block if only_one else None


def _by_blocks(rewrite: _Rewrite, block: int) -> None:
    """Put the extrema of a row's blocks before a node."""
    stated = stated_by(rewrite.node)
    target = _EXTREMA[stated.target]
    value = operands(stated)[0]
    *rows, cols = shape_of(value)  # type: ignore[misc]
    value = rewrite.add(aten.reshape.default, value, [*rows, cols // block, block])
    rewrite.canonicalise_as(target, rewrite.add(target, value, [-1]), [-1], keeps_dims(rewrite.node))


def _above(value: Node) -> set[Node]:
    """The tensors with as many elements as a value that it is computed of, without reductions; and itself."""
    nodes = sources([value], lambda n: is_pointwise(n) or is_view(n))
    return {n for n in nodes if product(shape_of(n) or ()) == product(shape_of(value) or ())}


def _expanded(node: Node) -> tuple[Node, list[Node]] | None:
    """The expanded tensor that a node permutes without moving an element of what was expanded, and what is
    computed of it before, the last one first; None for any other node."""
    if not is_permutation(node):
        return None
    root, between = _root(node)
    if root.target is not aten.expand.default or _moves(_padded(root), node.args[1]):  # type: ignore[arg-type]
        return None
    return root, between


def _padded(expanded: Node) -> tuple[Any, ...]:
    """The shape of what is expanded, with as many dims as it has then."""
    sizes, short = shape_of(expanded) or (), shape_of(operands(expanded)[0]) or ()
    return (*(1,) * (len(sizes) - len(short)), *short)


def _moves(shape: Sequence[Any], order: Sequence[int]) -> bool:
    """Whether a permutation moves elements of a tensor of a shape."""
    long = [d % len(shape) for d in order if shape[d] != 1]
    return long != sorted(long)


def _permuted_first(rewrite: _Rewrite, expanded: Node, between: Sequence[Node]) -> None:
    """Permute what is expanded, then expand it and compute the rest."""
    order: Any = rewrite.node.args[1]
    padded, whole = _padded(expanded), shape_of(expanded)
    assert whole is not None
    sizes = [whole[d] for d in order]
    value = rewrite.add(aten.reshape.default, operands(expanded)[0], [padded[d] for d in order])
    value = rewrite.add(aten.expand.default, value, sizes)
    value = rewrite.add_again(between, expanded, value)
    if between:
        rewrite.lay(value, range(len(sizes)))
    rewrite.stand_for(value)


def _unpermuted(rewrite: _Rewrite, permuted: Node, between: Sequence[Node]) -> None:
    """Put the same reduction of what is permuted before a node, which then permutes that one's result."""
    value, order = permuted.args[0], [d % len(permuted.args[1]) for d in permuted.args[1]]  # type: ignore[arg-type,union-attr,operator]
    value = rewrite.add_again(between, permuted, value)  # type: ignore[arg-type]
    gone, kept = [order[d] for d in reduced_dims(rewrite.node)], keeps_dims(rewrite.node)
    left = [d for d in order if kept or d not in gone]
    stated, dims = stated_by(rewrite.node), sorted(gone)
    if stated.target in _EXTREMA:
        value = rewrite.add(_EXTREMA[stated.target], value, dims, kept)
    else:
        args = dims[0] if isinstance(argument(stated, 1, "dim"), int) else dims, *stated.args[2:]
        value = rewrite.add(stated.target, value, *args, **stated.kwargs)
        if stated is not rewrite.node:
            value = rewrite.add(operator.getitem, value, rewrite.node.args[1])
    order, shape = [sorted(left).index(d) for d in left], shape_of(value)
    assert shape is not None
    rewrite.lay(value, order)
    if _moves(shape, order):
        rewrite.canonicalise_as(aten.permute.default, value, order)
    else:
        rewrite.canonicalise_as(aten.reshape.default, value, [shape[d] for d in order])
