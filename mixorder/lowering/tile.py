"""Lower a region whose reductions all end within a tile: one nest over the axes of its space.

Every member stands at one place in the space (`region/orders.py`), so that views and permutations are the
values that they show, and only pointwise operators go through Inductor's lowerings.

Where a region has integers or floats of one byte among its results, a value in half precision is rounded as
the graph states, if it is not exact anyway: scales and bytes are then those of eager, bit by bit. Other
regions keep the digits, as Inductor does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import sympy
import torch
from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..inductor.lowerings import context
from ..ir.program import Axis, AxisClass, Compute, Load, LoopProgram, Nest, Reduce, Ref, Statement, Store
from ..region.axes import Space
from ..region.factors import Factor, Run
from ..region.nodes import (
    fake,
    float_bytes,
    is_pointwise,
    operands,
    reduced,
    reduction_kind,
    shape_of,
)
from ..region.reduction_groups import ReductionGroupSeed
from ..region.region import Region
from ..region.sizes import Size, plain, product, ratio
from .index_map import Index
from .tracer import Traced, Tracer, loop, nesting

_LETTERS = {
    AxisClass.BATCH: "ijklmn",
    AxisClass.ROW: "xuvw",
    AxisClass.COLUMN: "yzpq",
    AxisClass.COMMON: "yzpq",
}

_EXACT = frozenset(
    {"abs", "neg", "maximum", "minimum", "where", "relu"}
)  # give one of their operands, or its negative


def lower_tile(region: Region) -> LoopProgram:
    """Give the region's nest; its statements are in the order of the outputs."""
    axes = _axes(region.space)
    with context(fake(region.named_after[0])), nesting(region):
        tracer = _TileTracer(region, axes)
        body: list[Statement] = []
        for i, node in enumerate(region.outputs):
            store = tracer.store(f"out{i}", node)
            body += [*tracer.body[len(body) - i :], store]
        buffers, hints = tracer.buffers(), tracer.hints()
    over_reduction_groups = isinstance(region.seed, ReductionGroupSeed)
    return LoopProgram(
        buffers,
        (Nest(tuple(axes), tuple(body)),),
        hints,
        tile_local=True,
        over_reduction_groups=over_reduction_groups,
    )


def _axes(space: Space) -> list[Axis]:
    """One loop for each axis, outermost first."""
    letters = {kind: _named(names) for kind, names in _LETTERS.items()}
    letters[AxisClass.COMMON] = letters[AxisClass.COLUMN]
    return [loop(next(letters[kind]), size, kind) for size, kind in space.axes]


def _named(names: Sequence[str]) -> Iterator[str]:
    """The names, and then the last one with a number: blocks of several lengths have many axes."""
    return itertools.chain(names, (f"{names[-1]}{n}" for n in itertools.count(2)))


class _TileTracer(Tracer):
    """Evaluates each member at its own place."""

    def __init__(self, region: Region, axes: Sequence[Axis]) -> None:
        super().__init__(region, axes)
        assert region.orders is not None
        self.orders = region.orders
        self.strides_of: dict[Size, Axis] = {}
        stride: Size = 1
        for axis in reversed(axes):
            self.strides_of[stride] = axis
            stride = product((stride, plain(axis.size)))
        self._places: dict[Run, sympy.Expr] = {}
        self._as_eager = any(map(_is_discrete, region.outputs))
        self._exact: dict[str, int] = {}  # bytes of the narrowest float that has the value, by its name

    def axes_of(self, factor: Factor) -> list[tuple[Size, Axis]]:
        """The axes of a factor, outermost first, and the stride of each in the factor's index. Where no
        tensor tells two dims apart, the inner one has the axis of both."""
        inside = [(s, a) for s, a in reversed(self.strides_of.items()) if factor.begins(s)]
        return [(ratio(stride, factor.stride) or 1, axis) for stride, axis in inside]

    def at(self, run: Run) -> sympy.Expr:
        if run not in self._places:
            index: sympy.Expr = sympy.S.Zero
            for factor in run:
                terms = (stride * axis.symbol for stride, axis in self.axes_of(factor))
                index = index * factor.size + sum(terms, sympy.S.Zero)
            self._places[run] = sympy.expand(index)
        return self._places[run]

    def index(self, node: Node) -> Index:
        """The place of a node's element at the current point of the loops."""
        return tuple(map(self.at, self.orders[node]))

    def offset(self, index: Sequence[sympy.Expr], stride: Sequence[int | torch.SymInt]) -> sympy.Expr:
        """An element's offset, a sum of multiples of the axes' indices. Raises `Decline` for any other."""
        offset = sympy.expand(super().offset(index, stride))
        rest = offset - sum((offset.coeff(s) * s for s in self._ranges), sympy.S.Zero)
        if not sympy.expand(rest).is_number:
            raise Decline(DeclineReason.AXIS_CLASS, f"elements that lie at {offset}", self.current)
        return offset

    def store(self, buffer: str, node: Node) -> Store:
        value = self.value(node)
        return Store(buffer, self.offset(self.index(node), self.strides(node)), Ref(value.name))

    def value(self, node: Node, index: Sequence[sympy.Expr] = ()) -> Traced:
        """The value of a node at its own place, whatever place is asked for: it is the same."""
        return self.once(node, node, ())

    def traced(self, node: Node, index: Index) -> Traced:
        if node in self._inputs:
            return self.load(node, self.index(node))
        is_reduction = reduction_kind(node) is not None
        if not (is_reduction or is_pointwise(node)) and operands(node):
            return self.value(operands(node)[0])
        return self.rounded(super().traced(node, () if is_reduction else self.index(node)), node)

    def rounded(self, value: Traced, node: Node) -> Traced:
        """A result, rounded to half precision if the graph states that and it may need it."""
        as_eager = self._as_eager or node in self.region.compared
        if not as_eager or float_bytes(node) != 2 or self.bytes_of(value.name) <= 2:
            return value
        traced = self.as_stored(value, node)
        self._exact[traced.name] = 2
        return traced

    def bytes_of(self, name: str) -> int:
        """Bytes of a float that has a value of the IR without rounding."""
        if name not in self._exact:
            stmt = next(s for s in self.body if not isinstance(s, Store) and s.name == name)  # type: ignore[union-attr]
            if isinstance(stmt, Load):
                num_bytes = self.itemsize(stmt)
            elif isinstance(stmt, Reduce):
                num_bytes = self.bytes_of(stmt.value.name) if stmt.kind.selects else stmt.dtype.itemsize
            else:
                assert isinstance(stmt, Compute)
                operand_bytes = [self.bytes_of(a.name) for a in stmt.args if isinstance(a, Ref)]
                num_bytes = max(operand_bytes, default=8) if stmt.op in _EXACT else 8
            self._exact[name] = num_bytes
        return self._exact[name]

    def itemsize(self, load: Load) -> int:
        (node,) = (n for n, buffer in self._inputs.items() if buffer == load.buffer)
        return fake(node).dtype.itemsize  # type: ignore[union-attr]

    def reduce(self, node: Node, index: Index) -> Traced:
        what = reduced(node)
        assert what is not None
        source = operands(node)[0]
        factors = [factor for d in what.dims for factor in self.orders[source][d]]
        symbols = tuple(axis.symbol for f in factors for _, axis in self.axes_of(f))
        count = product((shape_of(source) or ())[d] for d in what.dims)
        return self.combined(node, self.value(source), symbols, count)


def _is_discrete(node: Node) -> bool:
    """Whether a rounding before may change a result by far more than its own rounding."""
    dtype = fake(node).dtype  # type: ignore[union-attr]
    return not dtype.is_floating_point or dtype.itemsize == 1
