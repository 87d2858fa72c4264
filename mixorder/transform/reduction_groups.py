"""Divide a program over reduction groups into three nests: sums, a little arithmetic on their results, and
what is computed with every element again.

Takes a program as lowered, with one nest whose sums of full size are all over the same axes. The first nest
adds up a split of these axes into a workspace. The second adds up the splits, and computes what has fewer
elements; values that the third one needs go through a workspace as well. The third computes the elements from
the operands once more. Where elements are added up as well, as for the bias in front of a norm, or over more
axes, it leaves splits of such sums to a fourth nest.

For a mean and a variance, the first nest leaves how many values a split has, their mean, and the sum of their
squared differences from it. The second one computes both from these, without a difference of large sums.

The axes are in the order of memory. Where no access of the first and the third nest tells two axes apart,
they are one. The first of them may have any size, such as that of a batch. Where sums are over it in the
second nest, that has a loop over it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Sequence

import sympy

from ..errors import Decline, DeclineReason
from ..ir.dtypes import added_up_in
from ..ir.program import (
    NUM_SPLITS,
    SPLIT_SYMBOL,
    Axis,
    AxisClass,
    Buffer,
    BufferRole,
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Ref,
    Statement,
    Store,
    Value,
    behind,
    closure,
    flat,
    loops_of,
    operands,
    stride_along,
)
from ..ir.reductions import SUM
from ..ir.rewriting import AxisGroups, Steps, along_one, is_op
from .split import SPLIT, added_up


def two_pass(program: LoopProgram) -> LoopProgram:
    """The program's nests. Raises `Decline` where these are not enough."""
    (nest,) = program.nests
    return _TwoPassNests(program, nest).program()


class _TwoPassNests:
    def __init__(self, whole: LoopProgram, nest: Nest) -> None:
        self.whole, self.nest = whole, nest
        self.deps = nest.dependence()
        self.reductions = [s for s in nest.body if isinstance(s, Reduce)]
        self.behind = behind(nest.body, self.reductions)
        self.values = {s.name: s for s in nest.body if isinstance(s, Value)}
        first = [s for s in self.reductions if self.behind.isdisjoint(operands(s))]
        self.over = self.common = frozenset(min(first, key=lambda s: len(s.axes)).axes)
        self.sums = [s for s in first if self.common == set(s.axes)]
        self.centred = {s: v for s in self.reductions if (v := self.differing(s)) is not None}
        known = {*self.sums, *self.centred}
        self.last = [s for s in self.reductions if s not in known and self.over <= set(s.axes)]
        self.behind_last = behind(nest.body, self.last)
        self.axes = in_memory_order(whole)
        if self.centred:
            self.common -= self.left_to_totals()
        self.check()
        self.kept = tuple(axis for axis in self.axes if axis.symbol not in self.common)
        self.buffers: list[Buffer] = []
        self.moments: list[Load] = []  # of splits

    def check(self) -> None:
        for stmt in (s for s in self.reductions if s not in self.sums and s not in self.centred):
            if stmt in self.last:
                independent = self.behind_last.isdisjoint(operands(stmt))
                same = independent and set(self.last[0].axes) == set(stmt.axes)
            else:
                same = self.common.isdisjoint({*stmt.axes, *self.deps[stmt.value.name]})
            if not same:
                raise Decline(DeclineReason.AXIS_CLASS, "sums that need three passes", stmt.name)

    def differing(self, stmt: Reduce) -> str | None:
        """The values whose squared differences from something small a sum is of, if it is: for a variance,
        from their mean. Of splits, it follows from the mean and the squared differences of each."""
        square = self.values[stmt.value.name]
        if not is_op(square, "mul", stmt.dtype) or square.args[0] != square.args[1] or stmt in self.sums:
            return None
        difference = self.values[square.args[0].name]
        if not is_op(difference, "sub", stmt.dtype):
            return None
        value, centre = (arg.name for arg in difference.args)
        is_deviation = value not in self.behind and centre in self.behind and self.is_small(centre)
        return value if is_deviation and self.over == set(stmt.axes) else None

    def left_to_totals(self) -> frozenset[sympy.Symbol]:
        """The innermost axes of statistics, of few elements: the second nest reduces these, and the first one
        has results for whole lines of memory."""
        last = [*itertools.takewhile(lambda a: a.symbol in self.over, reversed(self.axes))]
        if len(last) == len(self.over):
            return frozenset()
        return frozenset(axis.symbol for axis in last)

    def program(self) -> LoopProgram:
        body, stores = self.nest.body, [s for s in self.nest.body if isinstance(s, Store)]
        small = [
            s for s in stores if self.is_small(s.value.name) and self.common.isdisjoint(s.index.free_symbols)
        ]
        early = [s for s in stores if s.value.name not in self.behind and s not in small]
        final = [s for s in small if s.value.name in self.behind_last]
        late = [s for s in stores if s not in small and s not in early]
        if not late:
            raise Decline(DeclineReason.AXIS_CLASS, "nothing of full size is computed from the sums")
        if chained := [s.value.name for s in late if s.value.name in self.behind_last]:
            raise Decline(DeclineReason.AXIS_CLASS, "elements that need three passes", chained[0])
        partials, totals = self.divided([*self.sums, *self.centred], self.kept)
        first = closure(body, [*partials, *early])
        values = self.values
        gone = self.last[0].axes if self.last else ()
        kept = tuple(axis for axis in self.axes if axis.symbol not in gone)
        elements, column_sums = self.divided(self.last, kept)
        rest = [s for s in body if s not in self.sums and not isinstance(s, Store)]
        of_sums = [*self.moments, *itertools.chain(*(totals[reduction] for reduction in self.sums))]
        of_totals = [*of_sums, *itertools.chain(*(totals.get(s, [s]) for s in rest))]
        # By the index of totals: each sample has its own, also where samples share their elements.
        deps = Nest(self.kept, tuple(of_totals)).dependence()
        needed = self.needed([*late, *elements])
        handed = {name: self.workspace(values[name], self.kept if deps[name] else ()) for name in needed}
        copies = [Store(*place, Ref(name)) for name, place in handed.items()]
        written = [*(s for s in small if s not in final), *copies]
        second = closure(of_totals, written)
        self.check_loop(second)
        loads = [Load(name, *place, values[name].dtype) for name, place in handed.items()]
        stored = self.reread(early, late)
        known = {*handed, *(load.name for load in stored)}
        computed = [s for s in body if getattr(s, "name", None) not in known]
        third = closure([*loads, *stored, *computed], [*late, *elements])
        groups = axis_groups(self.axes, [*first, *third], (self.common, gone))
        axes = tuple(axis for _, axis in groups)
        nests: tuple[Nest, ...] = (
            Nest((SPLIT, *axes), along_one(first, groups, dividing=True)),
            Nest((SPLIT, *self.kept), second),
            Nest((SPLIT, *axes) if self.last else axes, along_one(third, groups, dividing=True)),
        )
        if final:
            remaining = (s for s in rest if s not in self.last)
            fourth = closure([*itertools.chain(*column_sums.values()), *remaining], final)
            nests = (*nests, Nest((SPLIT, *kept), fourth))
        return dataclasses.replace(self.whole, buffers=(*self.whole.buffers, *self.buffers), nests=nests)

    def divided(
        self, sums: Iterable[Reduce], kept: Sequence[Axis]
    ) -> tuple[list[PartialAccumulate], dict[Statement, list[Statement]]]:
        """Sums of splits in a workspace, which has an element for each index of `kept`, and their totals."""
        partials, totals = list[PartialAccumulate](), dict[Statement, list[Statement]]()
        moments = dict[str, list[Load]]()
        for value in dict.fromkeys(
            self.centred[reduction] for reduction in sums if reduction in self.centred
        ):
            buffer, index = self.workspace(self.values[value], kept, num_results=3)
            stride = sympy.prod(axis.size for axis in self.inner(kept))
            dtype = added_up_in(self.values[value].dtype)
            partials.append(PartialAccumulate(buffer, index, SUM, Ref(value), moments=int(stride)))
            names = enumerate(("count", "mean", "squares"))
            moments[value] = [Load(f"{value}.{n}", buffer, index + i * stride, dtype) for i, n in names]
            self.moments += moments[value]
        for reduction in sums:
            value, scale = self.scaled(reduction)
            axes = (SPLIT_SYMBOL, *(s for s in reduction.axes if s in self.over - self.common))
            if value not in moments:
                place = self.workspace(reduction, kept, num_results=1)
                partials.append(PartialAccumulate(*place, reduction.kind, reduction.value))
                partial = Load(f"{reduction.name}.partial", *place, reduction.dtype)
                totals[reduction] = added_up(reduction, [partial], axes)
                continue
            computed = self.of_split(reduction, scale, moments[value])
            totals[reduction] = added_up(reduction, computed, axes, rounded=True)
        return partials, totals

    def scaled(self, reduction: Reduce) -> tuple[str, float]:
        """The values that a sum is of, and the number that each is multiplied by."""
        if reduction in self.centred:
            return self.centred[reduction], 1.0
        stmt = self.values[reduction.value.name]
        if is_op(stmt, "mul", reduction.dtype):
            value, factor = (self.values[arg.name] for arg in stmt.args)
            if is_op(factor, "constant", reduction.dtype):
                return value.name, factor.args[0]
        return stmt.name, 1.0

    def of_split(self, reduction: Reduce, scale: float, moments: Sequence[Load]) -> list[Compute]:
        """What a split adds to a sum, from its moments (Chan, Golub and LeVeque 1979)."""
        dtype, (count, mean, squares) = moments[0].dtype, (Ref(stmt.name) for stmt in moments)
        step = Steps(reduction.name, dtype)
        if reduction not in self.centred:
            step("of_part", "mul", mean, step("weight", "mul", count, step.constant("scale", scale)))
            return step.made
        difference = self.values[next(operands(self.values[reduction.value.name]))]
        assert isinstance(difference, Compute)
        centre = step("centre", "to_dtype", difference.args[1], dtype)
        deviation = step("apart", "sub", mean, centre)
        around = step("around", "mul", step("square", "mul", deviation, deviation), count)
        step("of_part", "add", squares, around)
        return step.made

    def reread(self, early: Collection[Store], late: Collection[Store]) -> list[Load]:
        """Loads of the values that the first nest stores, where the third one has less to read then than it
        would to recompute them. They are rounded as the program states it."""
        loads = {s.value.name: s for s in early}
        stored_loads = [Load(name, s.buffer, s.index, self.values[name].dtype) for name, s in loads.items()]
        rest = [s for s in self.nest.body if getattr(s, "name", None) not in loads]
        from_loads, computed = (closure(body, late) for body in ([*stored_loads, *rest], self.nest.body))
        used = [s for s in stored_loads if s in from_loads]
        return used if self.bytes_read(from_loads) < self.bytes_read(computed) else []

    def bytes_read(self, body: Iterable[Statement]) -> int:
        read = map(self.whole.buffer, {s.buffer for s in body if isinstance(s, Load)})
        return sum(self.whole.hint(buffer.numel) * buffer.dtype.itemsize for buffer in read)

    def check_loop(self, second: Sequence[Statement]) -> None:
        """Raise `Decline` where elements along an axis of any size need sums over all of it."""
        over = {axis.symbol for axis in self.kept if not axis.size.is_number}
        deps = Nest(self.kept, tuple(second)).dependence()
        names = behind(second, [s for s in second if isinstance(s, Reduce) and over & set(s.axes)])
        for stmt in (s for s in second if not names.isdisjoint(operands(s))):
            summed = stmt.axes if isinstance(stmt, Reduce) else ()
            if over & {*loops_of(stmt, deps), *summed}:
                raise Decline(DeclineReason.DYNAMIC_SHAPE, "sums over a symbolic size are needed along it")

    def is_small(self, name: str) -> bool:
        return self.common.isdisjoint(self.deps[name])

    def needed(self, late: Collection[Statement]) -> list[str]:
        """The small values that are computed from sums, and that elements are computed from."""
        names = dict[str, None]()
        for stmt in closure(self.nest.body, late):
            if not isinstance(stmt, Value) or not self.is_small(stmt.name):
                used = (n for n in operands(stmt) if n in self.behind and self.is_small(n))
                names |= dict.fromkeys(used)
        return list(names)

    @staticmethod
    def inner(kept: Sequence[Axis]) -> Sequence[Axis]:
        """The axes without one of any size."""
        return kept[1:] if kept and not kept[0].size.is_number else kept

    def workspace(self, value: Value, kept: Sequence[Axis], num_results: int = 0) -> tuple[str, sympy.Expr]:
        """A new buffer with an element for each index of the axes that are kept, and the index into it.
        `num_results`: so many for each split; 0 where there are none."""
        numel, axes = sympy.Mul(*(axis.size for axis in kept), num_results or 1), [*kept]
        shape: tuple[sympy.Expr, ...] = (NUM_SPLITS, numel) if num_results else (numel,)
        if num_results:  # inside of an axis of any size, as that is to be no axis' stride
            results = Axis(sympy.S.Zero, sympy.Integer(num_results), AxisClass.SPLIT)
            place = len(kept) - len(self.inner(kept))
            axes[place:place] = [SPLIT, results]
        index = flat(axes)
        name = f"ws{len(self.buffers)}"
        strides = (numel, sympy.S.One)[-len(shape) :]
        self.buffers.append(Buffer(name, BufferRole.WORKSPACE, value.dtype, shape, strides))
        return name, index


def axis_groups(
    axes: Sequence[Axis], body: Sequence[Statement], reduced: Sequence[Collection[sympy.Symbol]]
) -> AxisGroups:
    """The axes, with neighbours in a group where all accesses that run over both do so without a gap, and all
    sums are over both or over neither. `reduced`: the axes of each kind of sums."""
    indices = [sympy.expand(s.index) for s in body if isinstance(s, Load | Store | PartialAccumulate)]
    groups: list[list[Axis]] = []
    for axis in axes:
        before = groups[-1][-1] if groups else None
        if before is not None and all((axis.symbol in of) == (before.symbol in of) for of in reduced):
            over = [i for i in indices if {axis.symbol, before.symbol} <= i.free_symbols]
            if all(i.coeff(before.symbol) == axis.size * i.coeff(axis.symbol) for i in over):
                groups[-1].append(axis)
                continue
        groups.append([axis])
    return [(g, dataclasses.replace(g[-1], size=sympy.prod(axis.size for axis in g))) for g in groups]


def in_memory_order(program: LoopProgram) -> tuple[Axis, ...]:
    """The axes as they lie in most full tensors, outermost first. Raises `Decline` where these are
    contiguous along more than two axes, as a tile's lanes are along one, and it is transposed for another; or
    where another axis than the outermost may have any size, also of a small tensor."""
    (nest,) = program.nests
    every, sizes = {axis.symbol for axis in nest.loops}, dict[tuple[Axis, ...], int]()
    innermost: dict[Axis | None, Buffer] = {}
    for stmt in nest.body:
        if isinstance(stmt, Load | Store):
            buffer, index = program.buffer(stmt.buffer), sympy.expand(stmt.index)
            full = every <= index.free_symbols
            strides = {a: stride_along(index, a.symbol) for a in nest.loops}
            known = all(stride.is_Integer for stride in strides.values())
            order = tuple(sorted(nest.loops, key=lambda a: -strides[a] if known else 0))
            if not known or (full and not all(axis.size.is_number for axis in order[1:])):
                detail = f"of shape {buffer.shape}, one tensor has strides {buffer.stride}"
                raise Decline(DeclineReason.DYNAMIC_SHAPE, detail)
            if not full:
                continue
            sizes[order] = sizes.get(order, 0) + buffer.dtype.itemsize
            innermost[order[-1] if strides[order[-1]] == 1 else None] = buffer
    if not sizes:
        raise Decline(DeclineReason.AXIS_CLASS, "no tensor is as large as the reduction groups")
    if None in innermost or len(innermost) > 2:
        buffer = innermost.get(None) or [*innermost.values()][-1]
        detail = f"of shape {buffer.shape}, one tensor has strides {buffer.stride}, and others differ"
        raise Decline(DeclineReason.LAYOUT, detail)
    return max(sizes, key=lambda order: sizes[order])
