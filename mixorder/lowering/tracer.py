"""Evaluate nodes of a region at symbolic indices, and collect the statements of the loop IR.

Pointwise ops go through Inductor's own lowerings (`pointwise.py`), whose loaders are traced. Raises `Decline`
for an op whose lowering is not a loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..errors import Decline, DeclineReason
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
from ..inductor.tensors import make_contiguous_strides_for
from ..ir.dtypes import HALVES
from ..ir.program import (
    Axis,
    AxisClass,
    Buffer,
    BufferRole,
    Compute,
    Load,
    Reduce,
    Ref,
    Statement,
    index_symbols,
    operands,
)
from ..ir.reductions import AMAX, ReductionKind
from ..region.nodes import (
    correction,
    fake,
    is_added_up,
    is_mean,
    is_moment,
    is_relative_sum,
    is_variance,
    reduction_kind,
)
from ..region.region import Region
from ..region.sizes import Size, plain, product
from .index_map import Index
from .pointwise import Boxes, exactly, symbolic

Place = tuple[str, sympy.Expr]  # a buffer and an element offset


_one_thread = threading.RLock()  # the limit is of all threads


@contextlib.contextmanager
def nesting(region: Region) -> Iterator[None]:
    """Inside, Python's stack has room for the frames of a region's operators: each is traced by calls for its
    operands, with some 15 frames."""
    with _one_thread:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + 32 * len(region.nodes))
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A value of the IR as an op argument, with the fields that Inductor's dtype rules read."""

    name: str
    dtype: torch.dtype
    shape: None = None
    is_scalar: bool = False


def loop(name: str, size: Size, kind: AxisClass) -> Axis:
    """An axis whose symbol has this name."""
    return Axis(sympy.Symbol(name, integer=True, nonnegative=True), sympy.sympify(size), kind)


class _Recorder(DefaultHandler):
    """An ops handler that appends one `Compute` per op."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (dtype := result_dtype(name, args, kwargs)) is None:
            raise Decline(
                DeclineReason.UNSUPPORTED_OP,
                f"ops.{name} does not return a single value",
                self.tracer.current,
            )
        return self.tracer.compute(name, tuple(map(_operand, args)), kwargs, dtype)

    def to_dtype(
        self, x: Any, dtype: torch.dtype, src_dtype: Any = None, use_compute_types: bool = True
    ) -> Any:
        if use_compute_types and unwrapped(x).dtype == upcast_compute_type(dtype):
            return x  # half precision computes in fp32: a cast between the two changes nothing
        if self.tracer.halves.get(unwrapped(x).name) == dtype and not use_compute_types:
            return x
        if unwrapped(x).name in self.tracer.numbers and not use_compute_types:
            return x  # Inductor's kernels do not round these, and eager rounds no number beside a tensor
        kwargs = {"src_dtype": src_dtype, "use_compute_types": use_compute_types}
        result = self._default("to_dtype", (x, dtype), kwargs)
        if use_compute_types and unwrapped(x).dtype in HALVES:
            self.tracer.halves[result.name] = unwrapped(x).dtype
        return result

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
    return Ref(arg.name) if isinstance(arg, Traced) else arg


class Tracer:
    """Evaluates region nodes, on demand, and collects the statements. A subclass says where a node stands."""

    def __init__(
        self, region: Region, axes: Iterable[Axis], everywhere: frozenset[Place] = frozenset()
    ) -> None:
        self.region = region
        self.body: list[Statement] = []
        self.current: str | None = None
        self._inputs = {node: f"in{i}" for i, node in enumerate(region.inputs)}
        self._everywhere = everywhere  # places that are loaded without a predicate
        self._predicate: Traced | None = None
        self._values: dict[Hashable, Traced] = {}
        self._loads: dict[tuple[Place, str | None], Traced] = {}
        self._symbols: dict[str, frozenset[sympy.Symbol]] = {}  # the loops' that each value depends on
        self._names: set[str] = set()
        self._computed: dict[tuple[Any, ...], Traced] = {}
        self.halves: dict[str, torch.dtype] = {}  # in half precision, of values in float32 that need no more
        self.numbers: set[str] = set()  # constants, also cast
        self._recorder = _Recorder(self)
        self._boxes = Boxes(self.value)
        self._ranges = {axis.symbol: axis.size for axis in axes}
        self._simplified: dict[sympy.Expr, sympy.Expr] = {}

    def value(self, node: Node, index: Sequence[sympy.Expr]) -> Traced:
        """The value of a node at an index over the loops' symbols."""
        raise NotImplementedError

    def reduce(self, node: Node, index: Index) -> Traced:
        """The result of a reduction at an index."""
        raise NotImplementedError

    def once(self, key: Hashable, node: Node, index: Index) -> Traced:
        """The value of a node at an index, traced if none has the key yet."""
        if key not in self._values:
            outer, self.current = self.current, node.name
            self._values[key] = self.traced(node, index)
            self.current = outer
        return self._values[key]

    def traced(self, node: Node, index: Index) -> Traced:
        """The value of a node at an index, from its operands' values."""
        if node in self._inputs:
            return self.load(node, index)
        if reduction_kind(node) is not None:
            return self.reduce(node, index)
        with handling(self._recorder):
            return self._boxes.element(node, index)

    def as_stored(self, value: Traced, node: Node) -> Traced:
        """A value, rounded to the dtype of its node."""
        dtype = fake(node).dtype  # type: ignore[union-attr]
        if self.halves.get(value.name) == dtype:
            return value
        kwargs = {"src_dtype": None, "use_compute_types": False}
        half = self.compute("to_dtype", (Ref(value.name), dtype), kwargs, dtype)
        with handling(self._recorder):
            return unwrapped(ops.to_dtype(OpsValue(half), value.dtype))

    def buffers(self) -> tuple[Buffer, ...]:
        def make(name: str, role: BufferRole, node: Node) -> Buffer:
            val = fake(node)
            assert val is not None
            moved = role is BufferRole.OUTPUT or node in self.region.made_contiguous  # to memory of its own
            cat_slice = self.region.cat_slices.get(node)
            slice_offset = cat_slice.offset if cat_slice is not None else 0
            (offset,) = symbolic((slice_offset,) if moved else (val.storage_offset(),))
            shape, stride = symbolic(val.shape), symbolic(self.strides(node))
            kept_fp32 = node in self.region.kept_fp32
            dtype = torch.float32 if kept_fp32 else val.dtype
            added_up = role is BufferRole.OUTPUT and is_added_up(node)
            return Buffer(
                name, role, dtype, shape, stride, offset=offset, kept_fp32=kept_fp32, added_up=added_up
            )

        inputs = [make(name, BufferRole.INPUT, node) for node, name in self._inputs.items()]
        outputs = [make(f"out{i}", BufferRole.OUTPUT, n) for i, n in enumerate(self.region.outputs)]
        return (*inputs, *outputs)

    def load(self, node: Node, index: Index) -> Traced:
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
            if val.dtype in HALVES:
                self.halves[self._loads[key].name] = val.dtype
        return self._loads[key]

    def doubly_loaded(self) -> frozenset[Place]:
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
    def where(self, mask: Traced) -> Iterator[None]:
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

    def append(self, stmt: Load | Compute | Reduce) -> Traced:
        self.body.append(stmt)
        ranges = index_symbols(stmt) & self._ranges.keys()
        reduced = stmt.axes if isinstance(stmt, Reduce) else ()
        symbols = frozenset(ranges).union(*(self._symbols[name] for name in operands(stmt)))
        self._symbols[stmt.name] = symbols - frozenset(reduced)
        return Traced(stmt.name, stmt.dtype)

    def strides(self, node: Node) -> tuple[int | torch.SymInt, ...]:
        """A node's strides as the graph states them, or those that the region gives it."""
        val = fake(node)
        assert val is not None
        if node in self.region.output_strides:
            return self.region.output_strides[node]
        if node in self.region.cat_slices:
            return self.region.cat_slices[node].stride
        return make_contiguous_strides_for(val.shape) if node in self.region.made_contiguous else val.stride()

    def compute(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> Traced:
        named = tuple(sorted(kwargs.items()))
        key = (op, tuple(map(exactly, args)), tuple((k, exactly(v)) for k, v in named))
        if key not in self._computed:
            name = self.fresh(self.current or op)
            self._computed[key] = self.append(Compute(name, op, args, named, dtype))
            if op == "constant" or (op == "to_dtype" and args[0].name in self.numbers):
                self.numbers.add(name)
        return self._computed[key]

    def offset(self, index: Sequence[sympy.Expr], stride: Sequence[int | torch.SymInt]) -> sympy.Expr:
        terms = (i * s for i, s in zip(index, symbolic(stride), strict=True))
        return self.simplify(sum(terms, sympy.S.Zero))

    def hints(self) -> tuple[tuple[sympy.Symbol, int], ...]:
        """A likely value for every symbol in a size or stride of the region's tensors."""
        vals = [fake(n) for n in (*self.region.inputs, *self.region.nodes)]
        sizes = (n for val in vals if val is not None for n in (*val.shape, *val.stride()))
        exprs = symbolic(n for n in sizes if not isinstance(n, int))
        symbols = {symbol for expr in exprs for symbol in expr.free_symbols}
        return tuple((s, hint_of(s)) for s in sorted(symbols, key=str))

    def simplify(self, expr: sympy.Expr) -> sympy.Expr:
        if expr.is_Symbol or expr.is_number:
            return expr
        if expr not in self._simplified:
            self._simplified[expr] = simplified(expr, self._ranges)
        return self._simplified[expr]

    def fresh(self, name: str) -> str:
        candidate, i = name, 0
        while candidate in self._names:
            i += 1
            candidate = f"{name}.{i}"
        self._names.add(candidate)
        return candidate

    def combined(self, node: Node, value: Traced, symbols: tuple[sympy.Symbol, ...], count: Size) -> Traced:
        """The result of a reduction node over `count` elements along some loops, from the operand's value.
        Raises ValueError if these loops have another number of elements."""
        if product(plain(self._ranges[symbol]) for symbol in symbols) != count:
            raise ValueError(f"{node.name} reduces {count} elements, and not all of {symbols}")
        kind = reduction_kind(node)
        assert kind is not None
        stored = fake(node).dtype  # type: ignore[union-attr]
        scale = _scale(count, stored) if is_variance(node) or is_moment(node) else 1

        def total(element: OpsValue, peak: Traced | None = None, kind: ReductionKind = kind) -> OpsValue:
            return OpsValue(self.reduced(kind, unwrapped(element), symbols, stored, peak))

        def mean(element: OpsValue, correction: float = 0, scale: float = 1) -> OpsValue:
            """`scale` is of the elements that are added up, and exact."""
            dtype = unwrapped(element).dtype
            added_up = total(element if scale == 1 else ops.mul(element, ops.constant(scale, dtype)))
            if isinstance(count, int):
                return ops.truediv(added_up, ops.constant(max(count - correction, 0) * scale, dtype))
            divisor = sympy.Max(count - sympy.sympify(correction), 0)
            return ops.truediv(added_up, ops.index_expr(divisor, dtype))

        with handling(self._recorder):
            # As in eager, an element is first cast to the result's dtype, which `dtype=` may set.
            element = ops.to_dtype(ops.to_dtype(OpsValue(value), stored), kind.accumulates_in(stored))
            if is_variance(node):
                centred = ops.sub(element, mean(element, scale=scale))
                result = mean(ops.mul(centred, centred), correction(node))
            elif is_relative_sum(node):
                result = total(element, unwrapped(total(element, kind=AMAX)))
            else:
                result = mean(element, scale=scale) if is_mean(node) else total(element)
            return unwrapped(ops.to_dtype(result, stored))

    def reduced(
        self,
        kind: ReductionKind,
        value: Traced,
        symbols: tuple[sympy.Symbol, ...],
        stored: torch.dtype,
        peak: Traced | None = None,
    ) -> Traced:
        key = (kind, value.name, symbols, peak and peak.name)
        if key not in self._computed:
            name = self.fresh(self.current or kind.name)
            dtype = kind.accumulates_in(stored)
            relative = None if peak is None else Ref(peak.name)
            self._computed[key] = self.append(
                Reduce(name, kind, Ref(value.name), symbols, dtype, stored, relative)
            )
            if kind.selects and value.name in self.halves:
                self.halves[name] = self.halves[value.name]
        return self._computed[key]


def _scale(count: Size, stored: torch.dtype) -> float:
    """The power of two by which a row's elements are multiplied before they are added up for its moments.
    Their sum is then finite where its mean is, as in Inductor, whose loops update the mean each time."""
    if not isinstance(count, int) or stored == torch.float16:  # a sum of float16 is finite in float32
        return 1
    return 2.0 ** -(count - 1).bit_length()
