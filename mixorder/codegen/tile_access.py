"""Where the accesses of a tile go: their dims in memory, the indices, and which elements a thread has.

Memory is accessed in the order in which it lies: axes that follow one another without a gap make one dim, the
contiguous one last.

Triton deals the elements of a load out to lanes, then warps, then the registers of a thread, in the order of
its dims: the contiguous one first, then from the first or the last one on (`versions.deals_from_last`). So a
load whose rows are two dims decides which rows a thread has. With rows next to each other, it has bytes next
to each other of a transposed result, and reduces more of a column by itself. Values keep this order until
they are stored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

import sympy

from ..inductor.printing import offset_text
from ..inductor.symbols import FloorDiv, wide_symbols
from ..inductor.versions import deals_from_last
from ..ir.program import SPLIT_SYMBOL, Axis, Load, LoopProgram, Nest, Store, is_full
from ..schedule.plan import Plan
from .kernel_text import KernelText, permuted, reshaped


@dataclasses.dataclass(frozen=True)
class Dim:
    """Axes that an access runs over as one dim: neighbours in memory, `stride` elements apart.

    `extent`: the tile's elements. `total`: those of the whole space.
    """

    axes: tuple[Axis, ...]
    stride: int
    extent: int
    total: int | sympy.Expr

    @property
    def name(self) -> str:
        return "".join(str(axis.symbol) for axis in self.axes)

    @property
    def masked(self) -> bool:
        return bool(self.total % self.extent != 0)


@dataclasses.dataclass(frozen=True)
class LoadDim:
    """Elements of a dim, `step` apart, that are one dim of a load."""

    dim: Dim
    step: int
    extent: int


class TileAccesses(KernelText):
    """The accesses of one kernel, whose tile has `extents` elements along each axis. Indices are defined in
    `code`, each once. `rows`: the axis along which a thread has several elements, if it has any. `exact`:
    results have eager's bits, as scales and bytes need. Over reduction groups, products are contracted as
    Inductor's kernels have them."""

    def __init__(self, program: LoopProgram, nest: Nest, plan: Plan) -> None:
        self.axes = [*nest.axes]
        self.numbered = self.axes  # outermost first, as programs go along them
        self.exact = not program.over_reduction_groups
        super().__init__(program, nest, self.axes, self.exact)
        self.plan = plan
        self.extents = dict(zip(self.axes, plan.extents, strict=True))
        self.tiled = [axis for axis in self.axes if self.extents[axis] > 1]
        self.reduced_axes = frozenset(axis for axis in self.axes if axis.symbol in nest.reduced)
        self.separate: frozenset[Axis] = frozenset()  # axes that have dims of their own in loads
        splits = {SPLIT_SYMBOL: sympy.Integer(plan.splits)}
        self.wide_symbols = wide_symbols(self.indices, {a.symbol: a.size for a in self.axes} | splits)
        several = {axis.symbol for axis in self.axes if self.tiles(axis) != 1}
        self.wide = not self.wide_symbols.isdisjoint({*several, SPLIT_SYMBOL})  # the numbers of the tile
        self._known: set[str] = set()  # names of indices that the kernel has defined
        self._dealt: dict[str, str] = {}  # names of indices of two dims, by their text
        self._deals = False  # whether a thread has rows next to each other
        self.rows = self.row_axis() if plan.layout.thread_rows else None

    def number(self, axis: Axis) -> str:
        """The number of the tile along an axis: the index itself where the tile has one element."""
        return f"{axis.symbol}_tile" if self.extents[axis] > 1 else str(axis.symbol)

    def tiles(self, axis: Axis) -> int | sympy.Expr:
        """How many tiles there are along an axis."""
        size, extent = axis.size, self.extents[axis]
        return -(-int(size) // extent) if size.is_number else FloorDiv(size + extent - 1, extent)

    def is_masked(self, axis: Axis) -> bool:
        """Whether some tile has elements beyond the end of an axis."""
        return bool(axis.size % self.extents[axis] != 0)

    @property
    def tiles_in_all(self) -> int | sympy.Expr:
        return math.prod(map(self.tiles, self.numbered))

    def number_tiles(self) -> None:
        """Define the number of the tile along each axis."""
        self.divide("program", [(self.number(axis), self.tiles(axis)) for axis in self.numbered])

    def divide(
        self, number: str, counts: Sequence[tuple[str, int | sympy.Expr]], wide: Collection[str] = ()
    ) -> None:
        """Define the numbers that one number stands for, the outermost first: the name of each, and how many
        there are. A single one has no name, but for the split. `wide`: those in 64 bits."""
        before, in_all = sympy.S.One, math.prod(count for _, count in counts)
        for name, count in reversed(counts):
            if count != 1 or name == str(SPLIT_SYMBOL):
                text = number if before == 1 else f"{number} // {in_product(before)}"
                text += f" % {in_product(count)}" * (before * count != in_all)
                self.code.writeline(f"{name} = {f'tl.full([], {text}, tl.int64)' if name in wide else text}")
            before *= count

    def dims(self, index: sympy.Expr, separate: frozenset[Axis] = frozenset()) -> list[Dim]:
        """The dims of an access, outermost in memory first. Axes in `separate` have dims of their own, before
        the others, but for the contiguous one."""
        strides = {axis: int(index.coeff(axis.symbol)) for axis in self.tiled}
        order = sorted((a for a in self.tiled if strides[a]), key=lambda a: strides[a], reverse=True)
        dims, first = list[Dim](), list[Dim]()
        for axis in reversed(order):
            dim = Dim((axis,), strides[axis], self.extents[axis], axis.size)
            group = first if dims and axis in separate else dims
            after = group[0] if group else None
            if after and after.extent == after.total and dim.stride == after.stride * after.total:
                axes, extent, total = (axis, *after.axes), dim.extent * after.extent, dim.total * after.total
                group[0] = Dim(axes, after.stride, extent, total)
            else:
                group.insert(0, dim)
        return first + dims

    def define(self, name: str, axes: Sequence[Axis], extent: int, spread: str = "") -> None:
        """Define the indices of a tile's elements along axes that follow one another without a gap."""
        if name not in self._known:
            self._known.add(name)
            start = f"{self.number(axes[0])} * {extent} + " * (self.tiles(axes[0]) != 1)
            wide = ".to(tl.int64)" * any(axis.symbol in self.wide_symbols for axis in axes)
            self.code.writeline(f"{name} = {start}tl.arange(0, {extent}){spread}{wide}")

    def define_index(self, axis: Axis) -> None:
        """Define the symbol of an axis, for its use as a value."""
        if axis in self.tiled:
            spread = spread_along(len(self.tiled), self.tiled.index(axis))
            self.define(str(axis.symbol), [axis], self.extents[axis], spread)

    @staticmethod
    def at(dim: Dim) -> str:
        return f"at_{dim.name}"

    def place(self, buffer: str, index: sympy.Expr, load_dims: Sequence[LoadDim]) -> tuple[str, str]:
        """The address of an access and its mask, which is empty where all elements exist."""
        tiled = {axis.symbol for axis in self.tiled}
        outside = sympy.expand(index.xreplace(dict.fromkeys(tiled, sympy.S.Zero)))
        constant = outside.xreplace(dict.fromkeys(outside.free_symbols, sympy.S.Zero))
        terms = [str(constant)] * bool(constant)
        terms += [f"{outside.coeff(s)} * {s}" for s in sorted(outside.free_symbols, key=str)]
        masks = []
        for dim in dict.fromkeys(load_dim.dim for load_dim in load_dims):
            at = self.index_along(dim, load_dims)
            terms.append(f"{dim.stride} * " * (dim.stride != 1) + at)
            if dim.masked:
                masks.append(f"({at} < {offset_text(sympy.sympify(dim.total))})")
        mask = " & ".join(masks)
        offset = " + ".join(terms) if load_dims or len(terms) > 1 else offset_text(outside)
        return f"{self.pointer(buffer)} + ({offset})", mask

    def index_along(self, dim: Dim, load_dims: Sequence[LoadDim]) -> str:
        """The index along a dim, defined before if it is not yet, in a tensor of all `load_dims`."""
        dim_parts = {i: load_dim for i, load_dim in enumerate(load_dims) if load_dim.dim == dim}
        spread = {i: "" if len(load_dims) == 1 else spread_along(len(load_dims), i) for i in dim_parts}
        if len(dim_parts) == 1:
            self.define(self.at(dim), dim.axes, dim.extent)
            return self.at(dim) + "".join(spread.values())
        steps = [
            f"{p.step} * " * (p.step != 1) + f"tl.arange(0, {p.extent}){spread[i]}"
            for i, p in dim_parts.items()
        ]
        if self.tiles(dim.axes[0]) != 1:
            steps.insert(0, f"{self.number(dim.axes[0])} * {dim.extent}")
        text = " + ".join(steps)
        if any(axis.symbol in self.wide_symbols for axis in dim.axes):
            text = f"({text}).to(tl.int64)"
        if text not in self._dealt:
            same = sum(name.startswith(f"dealt_{dim.name}") for name in self._dealt.values())
            self._dealt[text] = f"dealt_{dim.name}" + f"_{same}" * bool(same)
            self.code.writeline(f"{self._dealt[text]} = {text}")
        return self._dealt[text]

    def load_dims(self, dims: Sequence[Dim]) -> list[LoadDim]:
        """The dims of a load in the order in which Triton deals its elements out. Of a full tile, a warp has
        `warp_cols` columns, and a thread `thread_rows` rows."""
        whole = [LoadDim(dim, 1, dim.extent) for dim in dims]
        rows = next((dim for dim in dims[:-1] if self.rows in dim.axes), None)
        if rows is None or sum(len(dim.axes) for dim in dims) < len(self.tiled) or dims[-1].stride != 1:
            return whole
        last = dims[-1]
        self._deals = True
        layout = self.plan.layout
        each, cols = min(layout.thread_rows, rows.extent), min(layout.warp_cols, last.extent)
        middle = (load_dim for load_dim in whole if load_dim.dim not in (rows, last))
        load_dims = [
            LoadDim(rows, each, rows.extent // each),
            *middle,
            LoadDim(last, cols, last.extent // cols),
        ]
        load_dims += [LoadDim(rows, 1, each), LoadDim(last, 1, cols)]
        return [load_dim for load_dim in load_dims if load_dim.extent > 1]

    @staticmethod
    def dealt(load_dims: Sequence[LoadDim]) -> list[LoadDim]:
        """The dims of a load such that Triton deals its elements out in the order of `load_dims`."""
        return [*reversed(load_dims[:-1]), *load_dims[-1:]] if deals_from_last() else list(load_dims)

    @staticmethod
    def joined(text: str, load_dims: Sequence[LoadDim], dims: Sequence[Dim]) -> str:
        """A load whose dims are `load_dims` with one dim for each dim of memory."""
        numbers = [[i for i, load_dim in enumerate(load_dims) if load_dim.dim == dim] for dim in dims]
        order = [i for several in numbers for i in sorted(several, key=lambda i: -load_dims[i].step)]
        if order != sorted(order):
            text = permuted(text, order)
        return reshaped(text, [dim.extent for dim in dims]) if len(load_dims) > len(dims) else text

    def row_axis(self) -> Axis | None:
        """The axis along which a thread has several elements of a full tensor: that along which a result is
        transposed, or else the innermost of those that are reduced across memory."""
        loaded, transposed = self.full_axes(Load), list[Axis]()
        for stored in self.full_axes(Store):
            # Of packed elements, the load has axes that the store has not.
            before = {next((axis for axis in axes if axis in stored), None) for axes in loaded}
            transposed += [axis for axis in stored[:1] if axis not in before]
        first = {axis for axes in loaded for axis in axes[:1]}
        across = [axis for axis in reversed(self.tiled) if axis in self.reduced_axes and axis not in first]
        return next(iter(transposed + across), None)

    def full_axes(self, kind: type[Load | Store]) -> list[list[Axis]]:
        """The axes of each full tensor that is loaded, or stored, innermost first."""
        reduced = {axis.symbol for axis in self.reduced_axes}
        accesses = [s for s in self.nest.body if isinstance(s, kind) and is_full(s, self.tiled, reduced)]
        return [axes_of(self.dims(s.index))[::-1] for s in accesses]

    def shape(self, axes: Sequence[Axis]) -> list[int]:
        """The dims of a value of the tile that depends on some axes."""
        return [self.extents[axis] if axis in axes else 1 for axis in self.tiled]


def axes_of(dims: Sequence[Dim]) -> list[Axis]:
    """The axes of an access, outermost in memory first."""
    return [axis for dim in dims for axis in dim.axes]


def in_product(count: int | sympy.Expr) -> str:
    """The text of a number as a factor."""
    return str(count) if sympy.sympify(count).is_number else f"({offset_text(count)})"


def spread_along(rank: int, place: int) -> str:
    return f"[{', '.join(':' if i == place else 'None' for i in range(rank))}]"
