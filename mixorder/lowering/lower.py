"""Lower a `Region` to a `LoopProgram`: one nest in the inner reductions' order, one in the outer ones'.

Pointwise ops and views go through Inductor's own lowerings (`pointwise.py`), whose loaders are traced with
symbolic indices. A value is traced once per node and index.

The graph is read here, never written. Raises `Decline` for an op whose lowering is not a loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..inductor.lowerings import context
from ..inductor.symbols import are_equal
from ..ir.program import (
    Axis,
    AxisClass,
    LoopProgram,
    Nest,
    Ref,
    Store,
    closure,
)
from ..region.axes import Space
from ..region.nodes import fake, is_pair, is_view, keeps_dims, reduced_dims, shape_of
from ..region.region import Region
from ..region.row_permutations import is_row_permutation
from ..region.sizes import Size, product
from .index_map import Index, delinearize, index_behind, reshape_index
from .tracer import Place, Traced, Tracer, loop, nesting


def lower(region: Region) -> LoopProgram:
    """Give the region's two nests: rows outside for the inner reductions, rows inside for the outer ones."""
    loops = {axis.kind: axis for axis in _axes(region.space)}
    batch = [loops[AxisClass.BATCH]] if AxisClass.BATCH in loops else []
    row, last = loops[AxisClass.ROW], loops[region.space.inner_kind]
    column_side = region.column_side()
    with context(fake(region.outer[0])), nesting(region):
        everywhere: frozenset[Place] = frozenset()
        while True:
            tracer = _RowTracer(region, loops, everywhere)
            stores: dict[bool, list[Store]] = {False: [], True: []}
            for i, node in enumerate(region.outputs):
                stores[node in column_side].append(tracer.store(f"out{i}", node))
            both = tracer.doubly_loaded()
            if not both:
                break
            everywhere |= both  # trace again, with one load for both
        hints = tracer.hints()
    # A common axis is reduced with the rows, so it stays inside them.
    outer_order = (last, row) if last.kind is AxisClass.COLUMN else (row, last)
    nests = []
    for order, roots in (((row, last), stores[False]), (outer_order, stores[True])):
        if roots:
            nests.append(Nest((*batch, *order), closure(tracer.body, roots)))
    return LoopProgram(tracer.buffers(), tuple(nests), hints)


_SYMBOLS = {AxisClass.BATCH: "k", AxisClass.ROW: "x", AxisClass.COLUMN: "y", AxisClass.COMMON: "y"}


def _axes(space: Space) -> list[Axis]:
    """One loop per class: axes of a class share one, even if other axes lie between them in memory."""
    kinds = dict.fromkeys(kind for _, kind in space.axes)
    return [loop(_SYMBOLS[kind], space.size(kind), kind) for kind in kinds]


class _RowTracer(Tracer):
    """Evaluates region nodes at indices over a row and a column loop."""

    def __init__(
        self, region: Region, loops: dict[AxisClass, Axis], everywhere: frozenset[Place] = frozenset()
    ) -> None:
        super().__init__(region, loops.values(), everywhere)
        self.loops = loops
        self.axes = list(zip(region.space.axes, _place(region.space, loops), strict=True))

    def store(self, buffer: str, node: Node) -> Store:
        """The store of a node's value at the current point of the loops."""
        val = fake(node)
        assert val is not None
        reduced_by: tuple[AxisClass, ...] = ()
        if node in self.region.column_side():
            reduced_by = (AxisClass.ROW, AxisClass.COMMON)
        elif product(shape_of(node) or ()) != self.region.space.numel:
            reduced_by = (AxisClass.COLUMN, AxisClass.COMMON)
        index = self.index_of(node, without=reduced_by)
        value = self.value(node, index)
        return Store(buffer, self.offset(index, self.strides(node)), Ref(value.name))

    def point(self, shape: Sequence[Size], without: tuple[AxisClass, ...] = ()) -> Index:
        """The current point of the loops, over all axes but `without`, as an index into `shape`."""
        axes = [(size, at) for (size, kind), at in self.axes if kind not in without]
        if product(shape) != product(size for size, _ in axes):
            raise Decline(DeclineReason.AXIS_CLASS, f"a result of shape {tuple(shape)}", self.current)
        return reshape_index(shape, axes)

    def index_of(self, node: Node, without: tuple[AxisClass, ...] = ()) -> Index:
        """The place of a node's element at the current point of the loops, as an index into its shape."""
        place, shape = self.region.permuted.get(node), shape_of(node) or ()
        if not place:
            return self.point(shape, without)
        axes = [(size, at) for (size, _), at in self.axes]
        return self.simplified(index_behind(axes, place, shape))

    def simplified(self, index: Sequence[sympy.Expr]) -> Index:
        return tuple(self.simplify(sympy.sympify(i)) for i in index)

    def value(self, node: Node, index: Sequence[sympy.Expr]) -> Traced:
        """The value of a node at an index over the loops' symbols."""
        index = self.simplified(index)
        if (
            node in self.region.permuted
            and (is_view(node) or is_row_permutation(node))
            and index == self.index_of(node)
        ):
            # Its operand is at its own place too, which the algebra of divisions may not see.
            source: Node = node.args[0]  # type: ignore[assignment]
            return self.value(source, self.index_of(source))
        return self.once((node, index, self._predicate and self._predicate.name), node, index)

    def traced(self, node: Node, index: Index) -> Traced:
        if is_pair(node) and node not in self._inputs:
            traced = self.value(node.args[0], index)  # type: ignore[arg-type]
        else:
            traced = super().traced(node, index)
        return self.as_stored(traced, node) if node in self.region.rounded else traced

    def reduce(self, node: Node, index: Index) -> Traced:
        """A reduction over the axes of its side, at an index over the dims that it keeps."""
        source: Node = node.args[0]  # type: ignore[assignment]
        shape = shape_of(source) or ()
        dims = reduced_dims(node)
        full = tuple(self.simplify(i) for i in self.point(shape))
        kept = [i for d, i in enumerate(full) if d not in dims]
        asked = [i for d, i in enumerate(index) if not (keeps_dims(node) and d in dims)]
        if not are_equal(kept, asked, self._ranges):
            detail = "a reduction's result is read at another row's position"
            raise Decline(DeclineReason.AXIS_CLASS, detail, node.name)
        classes = (AxisClass.ROW,) if node in self.region.outer else (AxisClass.COLUMN,)
        symbols = tuple(self.loops[c].symbol for c in (*classes, AxisClass.COMMON) if c in self.loops)
        self.check_reduced([full[d] for d in dims], kept, symbols, node)
        predicate, self._predicate = self._predicate, None  # a reduction reads all of its elements
        traced = self.combined(node, self.value(source, full), symbols, product(shape[d] for d in dims))
        self._predicate = predicate
        return traced

    def check_reduced(
        self, reduced: list[sympy.Expr], kept: list[sympy.Expr], symbols: tuple[sympy.Symbol, ...], node: Node
    ) -> None:
        """Raise `Decline` unless a reduction reduces exactly the dims that its loops run over."""
        of_reduced, of_kept = (
            {s for index in indices for s in index.free_symbols & self._ranges.keys()}
            for indices in (reduced, kept)
        )
        if not of_reduced <= set(symbols) or not of_kept.isdisjoint(symbols):
            raise Decline(DeclineReason.AXIS_CLASS, "a reduction of other axes than the region's", node.name)


def _place(space: Space, loops: dict[AxisClass, Axis]) -> list[sympy.Expr]:
    """The index along each axis of the space, from the loop of its class."""
    by_class = {
        kind: iter(delinearize(axis.symbol, [n for n, k in space.axes if k is kind]))
        for kind, axis in loops.items()
    }
    return [next(by_class[kind]) for _, kind in space.axes]
