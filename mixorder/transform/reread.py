"""Let each phase of the main loop reread its tiles, instead of keeping them in registers over a reduction.

A phase is what runs between two dependent reductions.

This is for rows that are too wide for registers: the second read of a tile comes from L2, where the first one
has left it. Takes a merged program; returns one whose main nest keeps no tile from one reduction to the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..ir.program import (
    Compute,
    Load,
    LoopProgram,
    Nest,
    PartialAccumulate,
    Reduce,
    Ref,
    Statement,
    Store,
    operands,
)
from ..ir.rewriting import renamed

Root = Reduce | PartialAccumulate | Store


def reread(program: LoopProgram) -> LoopProgram:
    """Give every phase its own copy of the loads and pointwise values that it uses.

    Column vectors are not reread: reading them again for every row costs more than the spills that it saves
    (H200, 16384x16384 bf16: RMSNorm 70% instead of 89%, LayerNorm 58% instead of 61%).
    """
    main, *others = program.nests
    return dataclasses.replace(program, nests=(_Phases(program, main).rebuilt(), *others))


class _Phases:
    def __init__(self, program: LoopProgram, nest: Nest) -> None:
        self.nest = nest
        self.last = program.tile_axes[1].symbol
        self.deps = nest.dependence()
        self.values = {s.name: s for s in nest.body if isinstance(s, Load | Compute | Reduce)}
        self.hoisted = {s.name for s in nest.preamble if isinstance(s, Load | Compute)}
        self.body: list[Statement] = []
        self.named: dict[tuple[str, int], str] = {}  # a value in a phase, and its name there
        self.taken: set[str] = set()

    def rebuilt(self) -> Nest:
        phase_of = depth_of_roots(self.nest)
        roots = [s for s in self.nest.body if isinstance(s, Reduce | PartialAccumulate | Store)]
        for phase in sorted(set(map(phase_of, roots))):
            here = [self.root(r, phase) for r in roots if phase_of(r) == phase]
            # Reductions end their phase: all their operands are computed before the first of them.
            self.body += sorted(here, key=lambda r: isinstance(r, Reduce))
            self.named.update({(r.name, -1): r.name for r in here if isinstance(r, Reduce)})
        return dataclasses.replace(self.nest, body=tuple(self.body))

    def root(self, root: Root, phase: int) -> Root:
        return dataclasses.replace(root, value=Ref(self.value(root.value.name, phase)))

    def value(self, name: str, phase: int) -> str:
        """The name of a value in a phase. Adds its statements if they are missing."""
        if name in self.hoisted:
            return name
        key = (name, phase if self.last in self.deps[name] else -1)
        if key not in self.named:
            stmt = self.values[name]
            assert isinstance(stmt, Load | Compute), name  # a reduction is a root, and comes before its uses
            used = {n: self.value(n, phase) for n in operands(stmt)}
            new = name if name not in self.taken else f"{name}.again{phase}"
            self.taken.add(name)
            stmt = renamed(stmt, new, used)
            if isinstance(stmt, Load):
                stmt = dataclasses.replace(stmt, again=new != name)
            self.body.append(stmt)
            self.named[key] = new
        return self.named[key]


def depth_of_roots(nest: Nest) -> Callable[[Root], int]:
    """A function that counts the dependent reductions before a reduction, an accumulation or a store."""
    above = nest.reductions_above()
    reduced = {s.name for s in nest.body if isinstance(s, Reduce)}

    def depth_of(root: Root) -> int:
        if isinstance(root, Reduce):
            return above[root.name]
        return above[root.value.name] + (root.value.name in reduced)

    return depth_of
