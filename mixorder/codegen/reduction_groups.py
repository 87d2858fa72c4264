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
from .kernel_text import identity
from .source import KernelSource
from .tile import TileWriter
from .tile_access import tiles_of


def two_pass_kernels(program: LoopProgram, plan: Plan, label: str) -> tuple[KernelSource, ...]:
    """The kernels, in the order of their launches."""
    totals = plan.totals
    assert isinstance(totals, Applied)

    def in_tile(nest: Nest, extents: tuple[int, ...], warps: int, backwards: bool = False) -> Plan:
        walk = in_tiles(sizes_of(program, nest.axes), extents)
        return Plan(walk, Launch(warps), order=TileOrder(backwards))

    first, second, third, *fourth = program.nests
    results = in_tile(second, totals.results, plan.second.warps)
    looped = [axis for axis in second.axes if axis.symbol in second.reduced and not axis.size.is_number]
    applied = in_tile(third, totals.tile, totals.warps, plan.order.backwards)
    outermost = first.summed if totals.together else ()
    with printing_triton():
        return (
            sums_kernel(program, plan, f"{label}_sums"),
            _kernel(program, second, results, f"{label}_results", looped=looped),
            _kernel(program, third, applied, f"{label}_apply", outermost),
            *(
                _kernel(program, nest, column_sums, f"{label}_ends", looped=nest.axes[:1])
                for nest in fourth
                for column_sums in [in_tile(nest, totals.ends, plan.second.warps)]
            ),
        )


def whole_group_kernels(program: LoopProgram, plan: Plan, label: str) -> tuple[KernelSource, ...]:
    """The kernels of a program that keeps whole reduction groups, in the order of their launches."""
    first, *second = program.nests
    with printing_triton():
        kernels = [_kernel(program, first, plan, label)]
        for nest in second:
            sizes = sizes_of(program, nest.axes)
            tile = in_tiles(sizes, totals_tile(sizes, plan))
            column_sums = Plan(tile, Launch(plan.second.warps))
            kernels.append(_kernel(program, nest, column_sums, f"{label}_ends", looped=nest.axes[:1]))
    return tuple(kernels)


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
    writer = TileWriter(dataclasses.replace(program, nests=(nest,)), plan)
    inner = (axis for axis in writer.axes if axis not in outermost and axis not in looped)
    writer.numbered = [*outermost, *inner]
    writer.begin()
    if any(axis.size != 1 for axis in looped):
        writer.tile_by_tile(nest, *looped)
    else:
        writer.whole()
    return writer.finish(f"triton_mixorder_{label}")


def sums_kernel(program: LoopProgram, plan: Plan, label: str) -> KernelSource:
    """The first kernel."""
    nest = program.nests[0]
    writer = _SumsWriter(dataclasses.replace(program, nests=(nest,)), plan)
    writer.begin()
    writer.loop()
    source = writer.finish(f"triton_mixorder_{label}")
    return dataclasses.replace(source, grid=writer.programs)


class _SumsWriter(TileWriter):
    """Writes a kernel that loops over its split of the axes that are reduced."""

    def __init__(self, program: LoopProgram, plan: Plan) -> None:
        walk = tuple(dataclasses.replace(step, tile=step.unroll * step.tile) for step in plan.walk)
        super().__init__(program, dataclasses.replace(plan, walk=walk, order=TileOrder()))
        self.unrolled = dict(zip(self.axes, (step.unroll for step in plan.walk), strict=True))
        self.partials = [s for s in self.nest.body if isinstance(s, PartialAccumulate)]
        self.gone = [*self.nest.summed]
        self.kept = [axis for axis in self.axes if axis not in self.gone]
        self._tiles = {axis: tiles_of(axis.size, self.extents[axis]) for axis in self.axes}
        self.steps = math.prod(self.tiles(axis) for axis in self.gone)

    @property
    def programs(self) -> int | sympy.Expr:
        return math.prod(self.tiles(axis) for axis in self.kept) * self.plan.splits

    def number_tiles(self) -> None:
        """Define the number of the tile along each axis that is kept, and of the program's split. Programs
        next to each other have neighbours in memory."""
        self._known.add(str(SPLIT_SYMBOL))
        numbered = [axis for axis in self.axes if axis in self.kept or axis is self.gone[-1]]
        program_split = (str(SPLIT_SYMBOL), self.plan.splits)
        numbers = [
            (self.number(axis), self.tiles(axis)) if axis in self.kept else program_split for axis in numbered
        ]
        self.divide("program", numbers)

    def loop(self) -> None:
        gone, body = {axis.symbol for axis in self.gone}, self.nest.body
        for stmt in body:
            if isinstance(stmt, Value) and gone.isdisjoint(self.deps[stmt.name]):
                self.statement(stmt)
        totals = {}
        for partial in self.partials:
            dtype = self.program.buffer(partial.buffer).dtype
            shape = [self.extents[axis] // self.unrolled[axis] for axis in self.tiled]
            empty = f"tl.full({shape}, {identity(partial.kind, dtype)})"
            totals[partial] = [str(self.ops.line(empty, dtype)) for _ in range(2 if partial.moments else 1)]
            if partial.moments:  # how many values each lane has, if not all have as many
                shape = shape if self.cut else [1] * len(shape)
                totals[partial] += [
                    str(self.ops.line(f"tl.full({shape}, 0.0, {triton_compute_type(dtype)})", dtype))
                ]
        for axis in self.kept:
            self.define_index(axis)
        known = set(self._known)
        steps = offset_text(sympy.sympify(self.steps))
        stages = f", num_stages={self.plan.launch.num_stages}"
        self.code.writeline(f"for step in tl.range({SPLIT_SYMBOL}, {steps}, {self.plan.splits}{stages}):")
        with self.code.indent():
            wide = [self.number(axis) for axis in self.gone if axis.symbol in self.wide_symbols]
            self.divide("step", [(self.number(axis), self.tiles(axis)) for axis in self.gone], wide)
            for stmt in body:
                if isinstance(stmt, PartialAccumulate):
                    (self.add_moments if stmt.moments else self.add)(stmt, *totals[stmt])
                elif not isinstance(stmt, Value) or not gone.isdisjoint(self.deps[stmt.name]):
                    self.statement(stmt)
        self._known = known
        along = [axis for axis in self.tiled if axis in self.gone]
        varies = frozenset(axis.symbol for axis in self.tiled if axis not in self.gone)
        for partial, sums in totals.items():
            dtype = self.program.buffer(partial.buffer).dtype
            if partial.moments:
                sums = self.joined_moments(along, dtype, *sums)
            else:
                sums = [self.reduced(partial.kind, dtype, sums[0], along)]
            for i, total in enumerate(sums):
                place = dataclasses.replace(partial, index=partial.index + i * partial.moments)
                self.store(place, total, varies)

    def add(self, stmt: PartialAccumulate, total: str) -> None:
        dtype = self.program.buffer(stmt.buffer).dtype
        along = [axis for axis in self.tiled if axis in self.gone]
        value = self.within(self.spread(stmt.value.name, self.tiled), along, stmt.kind, dtype)
        shape = [self.extents[axis] for axis in self.tiled]
        for place, axis in enumerate(self.tiled):
            if (count := self.unrolled[axis]) > 1:
                new_shape = [*shape[:place], count, shape[place] // count, *shape[place + 1 :]]
                value = f"tl.reshape({value}, {new_shape})"
                value = self.reduced_once(stmt.kind, dtype, value, place)
                shape[place] //= count
        self.code.writeline(f"{total} = {self.ops.combine(stmt.kind.combine, total, value, dtype)}")

    def add_moments(self, stmt: PartialAccumulate, mean: str, squares: str, count: str) -> None:
        """Join the moments of what a lane has of a tile with those of its tiles before, in the way of Chan,
        Golub and LeVeque (1979): with one division for all of it."""
        kind, dtype = stmt.kind, self.program.buffer(stmt.buffer).dtype
        along = [axis for axis in self.tiled if axis in self.gone]
        shape = [self.extents[axis] for axis in self.tiled]
        place = next((i for i, axis in enumerate(self.tiled) if self.unrolled[axis] > 1), 0)
        each = self.unrolled[self.tiled[place]]
        new_shape = [*shape[:place], each, shape[place] // each, *shape[place + 1 :]]

        def line(text: str) -> str:
            return str(self.ops.line(text, dtype))

        def split(value: str) -> str:
            return line(f"tl.reshape({self.within(value, along, kind, dtype)}, {new_shape})")

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

    def joined_moments(
        self, along: list[Axis], dtype: torch.dtype, mean: str, squares: str, count: str
    ) -> list[str]:
        """The moments of all of a program's lanes along some axes."""

        def added(value: str) -> str:
            return str(self.ops.line(self.reduced(SUM, dtype, value, along), dtype))

        in_all = added(f"tl.broadcast_to({count}, {mean}.shape)")
        joined_mean = added(f"{mean} * ({count} / tl.maximum({in_all}, 1.0))")
        away = str(self.ops.line(f"{mean} - {joined_mean}", dtype))
        return [in_all, joined_mean, added(f"{squares} + {away} * {away} * {count}")]
