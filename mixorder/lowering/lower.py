"""Lower a `Region` to a `LoopProgram`: one nest in the inner reductions' order, one in the outer ones'.

Pointwise ops and views go through Inductor's own lowerings (`pointwise.py`), whose loaders are traced with
symbolic indices. A value is traced once per node and index.

The graph is read here, never written. Raises `Decline` for an op whose lowering is not a loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..inductor.lowerings import context
from ..inductor.ops import (
    DefaultHandler,
    OpsValue,
    dtype_to_type,
    handling,
    ops,
    result_dtype,
    unwrapped,
    upcast_compute_type,
)
from ..inductor.symbols import bounds, hint_of, simplified
from ..inductor.tensors import make_contiguous_strides_for, padded_strides
from ..ir.program import (
    Axis,
    AxisClass,
    Buffer,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    Nest,
    Reduce,
    Ref,
    Statement,
    Store,
    closure,
    index_symbols,
    operands,
)
from ..ir.reductions import ReductionKind
from ..region.axes import Size, Space, product
from ..region.moves import Steps, is_move
from ..region.nodes import (
    correction,
    fake,
    is_mean,
    is_pair,
    is_variance,
    is_view,
    keeps_dims,
    reduced_dims,
    reduction_kind,
    shape_of,
)
from ..region.region import Region
from .index_map import Index, behind, delinearize, reshape_index
from .pointwise import Boxes, symbolic

_Place = tuple[str, sympy.Expr]  # a buffer and an element offset


def lower(region: Region) -> LoopProgram:
    """Give the region's two nests: rows outside for the inner reductions, rows inside for the outer ones."""
    loops = {axis.kind: axis for axis in _axes(region.space)}
    batch = [loops[AxisClass.BATCH]] if AxisClass.BATCH in loops else []
    row, last = loops[AxisClass.ROW], loops[region.space.inner_kind]
    column_side = region.column_side()
    with context(fake(region.outer[0])):
        everywhere: frozenset[_Place] = frozenset()
        while True:
            tracer = _Tracer(region, loops, everywhere)
            stores: dict[bool, list[Store]] = {False: [], True: []}
            for i, node in enumerate(region.outputs):
                stores[node in column_side].append(tracer.store(f"out{i}", node))
            both = tracer.loaded_both_ways()
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
    return [
        Axis(
            sympy.Symbol(_SYMBOLS[kind], integer=True, nonnegative=True),
            sympy.sympify(space.size(kind)),
            kind,
        )
        for kind in kinds
    ]


@dataclasses.dataclass(frozen=True)
class _Traced:
    """A value of the IR as an op argument, with the fields that Inductor's dtype rules read."""

    name: str
    dtype: torch.dtype
    shape: None = None
    is_scalar: bool = False


class _Recorder(DefaultHandler):
    """An ops handler that appends one `Compute` per op."""

    def __init__(self, tracer: _Tracer) -> None:
        self.tracer = tracer

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (dtype := result_dtype(name, args, kwargs)) is None:
            raise Decline(
                DeclineReason.UNSUPPORTED_OP,
                f"ops.{name} gives no single value",
                self.tracer.current,
            )
        return self.tracer.compute(name, tuple(map(_operand, args)), kwargs, dtype)

    def to_dtype(
        self, x: Any, dtype: torch.dtype, src_dtype: Any = None, use_compute_types: bool = True
    ) -> Any:
        if use_compute_types and unwrapped(x).dtype == upcast_compute_type(dtype):
            return x  # half precision computes in fp32: a cast between the two changes nothing
        kwargs = {"src_dtype": src_dtype, "use_compute_types": use_compute_types}
        return self._default("to_dtype", (x, dtype), kwargs)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Any:
        expr = self.tracer.simplify(sympy.sympify(expr))
        self.tracer.check_symbols(expr)
        return self._default("index_expr", (expr, dtype), {})

    value_expr = index_expr

    def masked(self, mask: Any, body: Callable[[], Any], other: Any) -> Any:
        """`body()` where `mask` is true, else `other`: every load that it traces depends on the mask."""
        mask = unwrapped(mask)
        with self.tracer.where(mask):
            value = unwrapped(body())
        fill = unwrapped(self.constant(dtype_to_type(value.dtype)(other), value.dtype))
        return self._default("where", (mask, value, fill), {})

    def load(self, name: str, index: sympy.Expr) -> Any:
        raise Decline(DeclineReason.UNSUPPORTED_OP, f"load of {name}", self.tracer.current)

    store = store_reduction = reduction = scan = sort = indirect_indexing = load  # type: ignore[assignment]
    bucketize = partial_accumulate = check_bounds = load_seed = load  # type: ignore[assignment]


def _operand(arg: Any) -> Any:
    arg = unwrapped(arg)
    return Ref(arg.name) if isinstance(arg, _Traced) else arg


class _Tracer:
    """Evaluates region nodes at symbolic indices, on demand, and collects the statements."""

    def __init__(
        self, region: Region, loops: dict[AxisClass, Axis], everywhere: frozenset[_Place] = frozenset()
    ) -> None:
        self.region = region
        self.loops = loops
        self.place = _place(region.space, loops)
        self.body: list[Statement] = []
        self.current: str | None = None
        self._members = frozenset(region.nodes)
        self._inputs = {node: f"in{i}" for i, node in enumerate(region.inputs)}
        self._everywhere = everywhere  # places that are loaded without a predicate
        self._predicate: _Traced | None = None
        self._loads: dict[tuple[_Place, str | None], _Traced] = {}
        self._symbols: dict[str, frozenset[sympy.Symbol]] = {}  # the loops' that each value depends on
        self._values: dict[tuple[Node, Index, str | None], _Traced] = {}
        self._names: set[str] = set()
        self._computed: dict[tuple[Any, ...], _Traced] = {}
        self._recorder = _Recorder(self)
        self._boxes = Boxes(self.value, self._recorder)
        self._ranges = {axis.symbol: axis.size for axis in loops.values()}

    def buffers(self) -> tuple[Buffer, ...]:
        def make(name: str, role: BufferRole, node: Node) -> Buffer:
            val = fake(node)
            assert val is not None
            moved = role is BufferRole.OUTPUT or node in self.region.made_contiguous  # to memory of its own
            (offset,) = symbolic((0,) if moved else (val.storage_offset(),))
            shape, stride = symbolic(val.shape), symbolic(self.strides(node))
            wider = node in self.region.widened
            dtype = torch.float32 if wider else val.dtype
            return Buffer(name, role, dtype, shape, stride, offset=offset, widened=wider)

        inputs = [make(name, BufferRole.INPUT, node) for node, name in self._inputs.items()]
        outputs = [make(f"out{i}", BufferRole.OUTPUT, n) for i, n in enumerate(self.region.outputs)]
        return (*inputs, *outputs)

    def store(self, buffer: str, node: Node) -> Store:
        """The store of a node's value at the current point of the loops."""
        val = fake(node)
        assert val is not None
        reduced_by: tuple[AxisClass, ...] = ()
        if node in self.region.column_side():
            reduced_by = (AxisClass.ROW, AxisClass.COMMON)
        elif product(shape_of(node) or ()) != self.region.space.numel:
            reduced_by = (AxisClass.COLUMN, AxisClass.COMMON)
        steps = self.region.moved.get(node)
        shape = shape_of(node) or ()
        index = self.moved(steps, shape) if steps else self.point(shape, without=reduced_by)
        value = self.value(node, index)
        return Store(buffer, self.offset(index, self.strides(node)), Ref(value.name))

    def point(self, shape: Sequence[Size], without: tuple[AxisClass, ...] = ()) -> Index:
        """The current point of the loops, over all axes but `without`, as an index into `shape`."""
        axes = [
            (size, at)
            for (size, kind), at in zip(self.region.space.axes, self.place, strict=True)
            if kind not in without
        ]
        if product(shape) != product(size for size, _ in axes):
            raise Decline(DeclineReason.AXIS_CLASS, f"a result of shape {tuple(shape)}", self.current)
        return reshape_index(shape, axes)

    def moved(self, steps: Steps, shape: Sequence[Size]) -> Index:
        """The current point of the loops as an index into `shape`, behind moves."""
        if not steps:
            return self.point(shape)
        return self.simplified(behind(self.point(steps[0].shape), steps))

    def simplified(self, index: Sequence[sympy.Expr]) -> Index:
        return tuple(self.simplify(sympy.sympify(i)) for i in index)

    def value(self, node: Node, index: Sequence[sympy.Expr]) -> _Traced:
        """The value of a node at an index over the loops' symbols."""
        index = self.simplified(index)
        steps = self.region.moved.get(node, ())
        if steps and (is_view(node) or is_move(node)) and index == self.moved(steps, ()):
            # Its operand is at its own place too, which the algebra of divisions may not see.
            source: Node = node.args[0]  # type: ignore[assignment]
            return self.value(source, self.moved(steps[:-1], shape_of(source) or ()))
        key = (node, index, None if self._predicate is None else self._predicate.name)
        if key not in self._values:
            outer, self.current = self.current, node.name
            if node in self._inputs:
                traced = self.load(node, index)
            elif reduction_kind(node) is not None:
                traced = self.reduce(node, index)
            elif is_pair(node):
                traced = self.value(node.args[0], index)  # type: ignore[arg-type]
            else:
                with handling(self._recorder):
                    traced = unwrapped(self._boxes.of(node).make_loader()(index))
                    if node in self.region.rounded:
                        half = ops.to_dtype(OpsValue(traced), fake(node).dtype, use_compute_types=False)  # type: ignore[union-attr]
                        traced = unwrapped(ops.to_dtype(half, traced.dtype))
            self._values[key] = traced
            self.current = outer
        return self._values[key]

    def load(self, node: Node, index: Index) -> _Traced:
        val = fake(node)
        assert val is not None
        place = (self._inputs[node], self.offset(index, self.strides(node)))
        self.check_symbols(place[1])
        predicate = self._predicate
        if predicate is not None and place in self._everywhere:
            predicate = None
        if predicate is not None and not self._symbols[predicate.name] <= place[1].free_symbols:
            # The predicate would turn a vector load into a tile load: drop it if all indices are in range.
            predicate = None if self.is_inside(index, symbolic(val.shape)) else predicate
        key = (place, None if predicate is None else predicate.name)
        if key not in self._loads:
            dtype = upcast_compute_type(val.dtype)
            condition = None if predicate is None else Ref(predicate.name)
            self._loads[key] = self.append(Load(self.fresh(node.name), *place, dtype, condition))
        return self._loads[key]

    def loaded_both_ways(self) -> frozenset[_Place]:
        """Places that are loaded both with and without a predicate."""
        return frozenset(place for place, under in self._loads if under and (place, None) in self._loads)

    def is_inside(self, index: Index, shape: Index) -> bool:
        """Whether an index is within `shape` at every point of the loops."""
        sizes = {s: n for s, n in self._ranges.items() if n.is_number}
        symbols = frozenset().union(*(i.free_symbols for i in index))
        if not symbols <= sizes.keys() or not all(n.is_number for n in shape):
            return False
        limits = [bounds(i, sizes) for i in index]
        return all(low >= 0 and high < n for (low, high), n in zip(limits, shape, strict=True))

    @contextlib.contextmanager
    def where(self, mask: _Traced) -> Iterator[None]:
        """Predicate the loads traced inside on `mask`, in addition to the predicate in force."""
        outer = self._predicate
        if outer is not None and outer.name != mask.name:
            mask = self.compute("and_", (Ref(outer.name), Ref(mask.name)), {}, torch.bool)
        self._predicate = mask
        yield
        self._predicate = outer

    def check_symbols(self, expr: sympy.Expr) -> None:
        """Raise `Decline` for an index with a symbol of neither the loops nor the region's tensors."""
        unknown = expr.free_symbols - self._ranges.keys()
        unknown -= {symbol for symbol, _ in self.hints()} if unknown else set()
        if unknown:
            detail = f"a number of {', '.join(sorted(map(str, unknown)))}, which no tensor here has as a size"
            raise Decline(DeclineReason.UNSUPPORTED_OP, detail, self.current)

    def append(self, stmt: Load | Compute | Reduce) -> _Traced:
        self.body.append(stmt)
        own = index_symbols(stmt) & self._ranges.keys()
        reduced = stmt.axes if isinstance(stmt, Reduce) else ()
        symbols = frozenset(own).union(*(self._symbols[name] for name in operands(stmt)))
        self._symbols[stmt.name] = symbols - frozenset(reduced)
        return _Traced(stmt.name, stmt.dtype)

    def strides(self, node: Node) -> tuple[int | torch.SymInt, ...]:
        """A node's strides as the graph states them, but for nodes that are made contiguous or padded."""
        val = fake(node)
        assert val is not None
        if node in self.region.padded and (padded := padded_strides(val)) is not None:
            return padded
        return make_contiguous_strides_for(val.shape) if node in self.region.made_contiguous else val.stride()

    def reduce(self, node: Node, index: Index) -> _Traced:
        """A reduction over the axes of its side, at an index over the dims that it keeps."""
        kind = reduction_kind(node)
        assert kind is not None
        source: Node = node.args[0]  # type: ignore[assignment]
        shape = shape_of(source) or ()
        dims = reduced_dims(node)
        full = tuple(self.simplify(i) for i in self.point(shape))
        kept = [i for d, i in enumerate(full) if d not in dims]
        asked = [i for d, i in enumerate(index) if not (keeps_dims(node) and d in dims)]
        if kept != asked:
            raise Decline(DeclineReason.AXIS_CLASS, "a reduction is read at another row's place", node.name)
        classes = (AxisClass.ROW,) if node in self.region.outer else (AxisClass.COLUMN,)
        symbols = tuple(self.loops[c].symbol for c in (*classes, AxisClass.COMMON) if c in self.loops)
        self.check_reduced([full[d] for d in dims], kept, symbols, node)
        predicate, self._predicate = self._predicate, None  # a reduction reads all of its elements
        stored = fake(node).dtype  # type: ignore[union-attr]
        value = self.element(kind, self.value(source, full), stored)
        count = product(shape[d] for d in dims)
        if is_variance(node):
            with handling(self._recorder):
                centred = ops.sub(OpsValue(value), OpsValue(self.mean(kind, value, symbols, count, stored)))
                value = unwrapped(ops.mul(centred, centred))
            traced = self.mean(kind, value, symbols, count, stored, correction(node))
        elif is_mean(node):
            traced = self.mean(kind, value, symbols, count, stored)
        else:
            traced = self.reduced(kind, value, symbols, stored)
        with handling(self._recorder):
            traced = unwrapped(ops.to_dtype(OpsValue(traced), stored))
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

    def element(self, kind: ReductionKind, value: _Traced, stored: torch.dtype) -> _Traced:
        """An element in the dtype that a reduction combines. As in eager, it is first cast to the result's
        dtype, which `dtype=` may set, or to bool for a reduction of truth values."""
        with handling(self._recorder):
            cast = ops.to_dtype(OpsValue(value), kind.element_dtype(stored))
            return unwrapped(ops.to_dtype(cast, kind.accumulates_in(stored)))

    def reduced(
        self, kind: ReductionKind, value: _Traced, symbols: tuple[sympy.Symbol, ...], stored: torch.dtype
    ) -> _Traced:
        key = (kind, value.name, symbols)
        if key not in self._computed:
            name = self.fresh(self.current or kind.name)
            dtype = kind.accumulates_in(stored)
            self._computed[key] = self.append(Reduce(name, kind, Ref(value.name), symbols, dtype, stored))
        return self._computed[key]

    def mean(
        self,
        kind: ReductionKind,
        value: _Traced,
        symbols: tuple[sympy.Symbol, ...],
        count: Size,
        stored: torch.dtype,
        correction: float = 0,
    ) -> _Traced:
        total = OpsValue(self.reduced(kind, value, symbols, stored))
        with handling(self._recorder):
            if isinstance(count, int):
                divisor = ops.constant(max(count - correction, 0), value.dtype)
            else:
                divisor = ops.index_expr(sympy.Max(count - sympy.sympify(correction), 0), value.dtype)
            return unwrapped(ops.truediv(total, divisor))

    def compute(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> _Traced:
        kwargs_key = tuple(sorted(kwargs.items()))
        key = (op, tuple((type(a), a) for a in args), kwargs_key)
        if key not in self._computed:
            name = self.fresh(self.current or op)
            self._computed[key] = self.append(Compute(name, op, args, kwargs_key, dtype))
        return self._computed[key]

    def offset(self, index: Sequence[sympy.Expr], stride: Sequence[int | torch.SymInt]) -> sympy.Expr:
        terms = (i * s for i, s in zip(index, symbolic(stride), strict=True))
        return self.simplify(sum(terms, sympy.S.Zero))

    def hints(self) -> tuple[tuple[sympy.Symbol, int], ...]:
        """A likely value for every symbol in a size or stride of the region's tensors."""
        vals = [fake(n) for n in (*self.region.inputs, *self.region.nodes)]
        exprs = [
            e for val in vals if val is not None for e in (*symbolic(val.shape), *symbolic(val.stride()))
        ]
        symbols = {symbol for expr in exprs for symbol in expr.free_symbols}
        return tuple((s, hint_of(s)) for s in sorted(symbols, key=str))

    def simplify(self, expr: sympy.Expr) -> sympy.Expr:
        if expr.is_Symbol or expr.is_number:
            return expr
        return simplified(expr, self._ranges)

    def fresh(self, name: str) -> str:
        candidate, i = name, 0
        while candidate in self._names:
            i += 1
            candidate = f"{name}.{i}"
        self._names.add(candidate)
        return candidate


def _place(space: Space, loops: dict[AxisClass, Axis]) -> list[sympy.Expr]:
    """The index along each axis of the space, from the loop of its class."""
    by_class = {
        kind: iter(delinearize(axis.symbol, [n for n, k in space.axes if k is kind]))
        for kind, axis in loops.items()
    }
    return [next(by_class[kind]) for _, kind in space.axes]
