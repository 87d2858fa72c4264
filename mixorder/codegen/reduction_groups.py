"""Write the kernels of a program over reduction groups: sums of a split each, a little arithmetic, and a
second pass.

The second and the third kernel are those of a tile (`codegen.tile`): the second has the totals of its groups
whole in a tile. A program of the first one loops over tiles of its split, and adds them up element by
element.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import sympy
import torch

from ..inductor.printing import offset_text, printing_triton, triton_compute_type
from ..ir.program import (
    SPLIT_SYMBOL,
    Axis,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Value,
)
from ..ir.reductions import SUM
from ..schedule.plan import Applied, Launch, Plan, TileOrder, in_tiles
from ..schedule.reduction_groups import sizes_of
from ..schedule.whole_groups import totals_tile
from .kernel_text import identity, reshaped
from .source import KernelSource
from .tile import TileWriter


def two_pass_kernels(program: LoopProgram, plan: Plan, label: str) -> tuple[KernelSource, ...]:
    """The kernels, in the order of their launches."""
    totals = plan.totals
    assert isinstance(totals, Applied)
    first, second, third, *fourth = program.nests
    results = _in_tile(program, second, totals.results, plan.second.warps)
    looped = [axis for axis in second.axes if axis.symbol in second.reduced and not axis.size.is_number]
    order = TileOrder(plan.order.backwards)
    applied = dataclasses.replace(_in_tile(program, third, totals.tile, totals.warps), order=order)
    outermost = first.summed if totals.together else ()
    with printing_triton():
        return (
            _written(_SumsWriter(program, first, plan), f"{label}_sums"),
            _kernel(program, second, results, f"{label}_results", looped=looped),
            _kernel(program, third, applied, f"{label}_apply", outermost),
            *(_column_sums(program, nest, totals.ends, plan, label) for nest in fourth),
        )


def whole_group_kernels(program: LoopProgram, plan: Plan, label: str) -> tuple[KernelSource, ...]:
    """The kernels of a program that keeps whole reduction groups, in the order of their launches."""
    first, *second = program.nests
    with printing_triton():
        kernels = [_kernel(program, first, plan, label)]
        for nest in second:
            extents = totals_tile(sizes_of(program, nest.axes), plan)
            kernels.append(_column_sums(program, nest, extents, plan, label))
    return tuple(kernels)


def _in_tile(program: LoopProgram, nest: Nest, extents: tuple[int, ...], warps: int) -> Plan:
    """A plan with a program for each tile of a nest."""
    return Plan(in_tiles(sizes_of(program, nest.axes), extents), Launch(warps))


def _column_sums(
    program: LoopProgram, nest: Nest, extents: tuple[int, ...], plan: Plan, label: str
) -> KernelSource:
    """The last kernel, which adds up what programs have left along its first axis."""
    in_tile = _in_tile(program, nest, extents, plan.second.warps)
    return _kernel(program, nest, in_tile, f"{label}_ends", looped=nest.axes[:1])


def _kernel(
    program: LoopProgram,
    nest: Nest,
    plan: Plan,
    label: str,
    outermost: Sequence[Axis] = (),
    looped: Sequence[Axis] = (),
) -> KernelSource:
    """A kernel whose programs go along the axes `outermost` last. They have a loop over the axis in `looped`,
    if there is one, unless it has a single element."""
    writer = TileWriter(program, nest, plan)
    inner = (axis for axis in writer.axes if axis not in outermost and axis not in looped)
    writer.numbered = [*outermost, *inner]
    return _written(writer, label, looped)


def _written(writer: TileWriter, label: str, looped: Sequence[Axis] = ()) -> KernelSource:
    writer.begin()
    if any(axis.size != 1 for axis in looped):
        writer.tile_by_tile(writer.nest, *looped)
    else:
        writer.whole()
    return writer.finish(f"triton_mixorder_{label}")


class _SumsWriter(TileWriter):
    """Writes a kernel that loops over its split of the axes that are reduced."""

    def __init__(self, program: LoopProgram, nest: Nest, plan: Plan) -> None:
        walk = tuple(dataclasses.replace(step, tile=step.unroll * step.tile) for step in plan.walk)
        super().__init__(program, nest, dataclasses.replace(plan, walk=walk, order=TileOrder()))
        self.unrolled = dict(zip(self.axes, (step.unroll for step in plan.walk), strict=True))
        self.gone = nest.summed
        self.numbered = [axis for axis in self.axes if axis not in self.gone]

    def number_tiles(self) -> None:
        """Define the number of the tile along each axis that is kept, and of the program's split. Programs
        next to each other have neighbours in memory."""
        split = str(SPLIT_SYMBOL)
        self._known.add(split)
        numbers = {axis: (self.number(axis), self.tiles(axis)) for axis in self.numbered}
        numbers[self.gone[-1]] = split, self.plan.splits
        self.divide("program", [numbers[axis] for axis in self.axes if axis in numbers])

    @property
    def tiles_in_all(self) -> int | sympy.Expr:
        return super().tiles_in_all * self.plan.splits

    def whole(self) -> None:
        gone, body = {axis.symbol for axis in self.gone}, self.nest.body
        early = [s for s in body if isinstance(s, Value) and gone.isdisjoint(self.deps[s.name])]
        for value in early:
            self.statement(value)
        totals = {s: self.empty(s) for s in body if isinstance(s, PartialAccumulate)}
        for axis in self.numbered:
            self.define_index(axis)
        known = set(self._known)
        steps = offset_text(sympy.sympify(math.prod(map(self.tiles, self.gone))))
        stages = f", num_stages={self.plan.launch.num_stages}"
        self.code.writeline(f"for step in tl.range({SPLIT_SYMBOL}, {steps}, {self.plan.splits}{stages}):")
        with self.code.indent():
            wide = [self.number(axis) for axis in self.gone if axis.symbol in self.wide_symbols]
            self.divide("step", [(self.number(axis), self.tiles(axis)) for axis in self.gone], wide)
            for stmt in [s for s in body if s not in early]:
                if isinstance(stmt, PartialAccumulate):
                    (self.add_moments if stmt.moments else self.add)(stmt, *totals[stmt])
                else:
                    self.statement(stmt)
        self._known = known
        for partial, sums in totals.items():
            if partial.moments:
                sums = self.joined_moments(self.dtype(partial), *sums)
            else:
                sums = [self.reduced(partial.kind, self.dtype(partial), sums[0], self.summed)]
            for i, total in enumerate(sums):
                self.store_total(
                    dataclasses.replace(partial, index=partial.index + i * partial.moments), total
                )

    def empty(self, stmt: PartialAccumulate) -> list[str]:
        """The variables of a partial's totals: for moments a mean, squares, and a count."""
        dtype = self.dtype(stmt)
        shape = [self.extents[axis] // self.unrolled[axis] for axis in self.tiled]
        starts = [f"tl.full({shape}, {identity(stmt.kind, dtype)})"]
        if stmt.moments:  # how many values each lane has, if not all have as many
            counts = shape if self.cut else [1] * len(shape)
            starts += [*starts, f"tl.full({counts}, 0.0, {triton_compute_type(dtype)})"]
        return [str(self.ops.line(start, dtype)) for start in starts]

    def add(self, stmt: PartialAccumulate, total: str) -> None:
        value, dtype = self.terms(stmt), self.dtype(stmt)
        shape = [self.extents[axis] for axis in self.tiled]
        for place, axis in enumerate(self.tiled):
            if (count := self.unrolled[axis]) > 1:
                new_shape = [*shape[:place], count, shape[place] // count, *shape[place + 1 :]]
                value = self.reduced_once(stmt.kind, dtype, reshaped(value, new_shape), place)
                shape[place] //= count
        self.code.writeline(f"{total} = {self.combined(stmt.kind, total, value, dtype)}")

    def add_moments(self, stmt: PartialAccumulate, mean: str, squares: str, count: str) -> None:
        """Join the moments of what a lane has of a tile with those of its tiles before, in the way of Chan,
        Golub and LeVeque (1979): with one division for all of it."""
        kind, dtype = stmt.kind, self.dtype(stmt)
        shape = [self.extents[axis] for axis in self.tiled]
        place = next((i for i, axis in enumerate(self.tiled) if self.unrolled[axis] > 1), 0)
        each = self.unrolled[self.tiled[place]]
        new_shape = [*shape[:place], each, shape[place] // each, *shape[place + 1 :]]

        def line(text: str) -> str:
            return str(self.ops.line(text, dtype))

        def split(value: str) -> str:
            return line(reshaped(self.within(value, self.summed, kind, dtype), new_shape))

        def added(value: str) -> str:
            return line(self.reduced_once(kind, dtype, value, place))

        values = split(self.spread(stmt.value.name, self.tiled))
        valid = split(f"tl.full({shape}, 1.0, {triton_compute_type(dtype)})") if self.cut else ""
        more = added(valid) if valid else f"{each}.0"
        tile_mean = line(f"{added(values)} * {f'(1.0 / tl.maximum({more}, 1.0))' if valid else 1 / each}")
        new_axis = ", ".join("None" if i == place else ":" for i in range(len(new_shape)))
        away = line(f"{values} - {tile_mean}[{new_axis}]")
        around = added(f"{away} * {away}" + f" * {valid}" * bool(valid))
        in_all = line(f"{count} + {more}")
        share = line(f"{more} / {f'tl.maximum({in_all}, 1.0)' if valid else in_all}")
        off = line(f"{tile_mean} - {mean}")
        self.code.writeline(f"{mean} = {mean} + {off} * {share}")
        self.code.writeline(f"{squares} = {squares} + {around} + {off} * {off} * ({count} * {share})")
        self.code.writeline(f"{count} = {in_all}")

    @property
    def cut(self) -> bool:
        """Whether a tile may have lanes beyond the end of what is reduced."""
        return any(map(self.is_masked, self.gone))

    def joined_moments(self, dtype: torch.dtype, mean: str, squares: str, count: str) -> list[str]:
        """The moments of all of a program's lanes along the axes that are reduced."""

        def added(value: str) -> str:
            return str(self.ops.line(self.reduced(SUM, dtype, value, self.summed), dtype))

        in_all = added(f"tl.broadcast_to({count}, {mean}.shape)")
        joined_mean = added(f"{mean} * ({count} / tl.maximum({in_all}, 1.0))")
        away = str(self.ops.line(f"{mean} - {joined_mean}", dtype))
        return [in_all, joined_mean, added(f"{squares} + {away} * {away} * {count}")]
