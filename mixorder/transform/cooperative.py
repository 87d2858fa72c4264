"""Have several programs share a row: each takes a part of its columns, and they exchange partial reductions.

For rows that are too wide for one program. Takes a merged program; gives one whose main nest is a sequence
of stages. A stage ends with an `Exchange` of its reductions over columns; what a later stage needs of a row
is carried to it, since by then the program has begun with other rows.
"""

from __future__ import annotations

import dataclasses

import sympy
import torch

from ..errors import Decline, DeclineReason
from ..ir.program import (
    AxisClass,
    Buffer,
    BufferRole,
    Carry,
    Compute,
    Exchange,
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
from .interleave import in_order
from .reread import Root, renamed, root_stage

WORDS = "words"


def check_shareable(program: LoopProgram) -> None:
    """Raise `Decline` for a merged program whose rows cannot be shared."""
    main, row = program.nests[0], program.tile_axes[0].symbol
    deps, reductions = main.dependence(), [s for s in main.body if isinstance(s, Reduce)]
    obstacles = {
        "a batch axis": program.axis(AxisClass.BATCH) is not None,
        "a common axis": program.axis(AxisClass.COMMON) is not None,
        "a gather": any(isinstance(s, Load) and s.predicate is not None for s in main.body),
        "a reduction that is not a sum, product, maximum or minimum in float32": not all(
            s.kind.can_be_exchanged and s.dtype == torch.float32 for s in reductions
        ),
        # Of a single row, say: stages are told apart by rows.
        "a reduction that is the same for all rows": any(row not in deps[s.name] for s in reductions),
        "a workspace in float64": any(b.dtype == torch.float64 for b in program.role(BufferRole.WORKSPACE)),
    }
    for what, found in obstacles.items():
        if found:
            raise Decline(DeclineReason.ROW_TOO_WIDE, f"programs cannot share a row with {what}")


def lanes_of(parts: int) -> int:
    """Words that are set apart for the parts of one reduction: a power of two."""
    return 1 << (parts - 1).bit_length()


def share(program: LoopProgram, parts: int, xblock: int, period: int = 1) -> LoopProgram:
    """Cut the main nest into stages, for `parts` programs that deal with `xblock` rows at a time.

    Accumulations run in the last stage, where their operands are at hand. The buffer for the exchange has,
    for each row of each tile and each reduction, as many words as `parts`, rounded up to a power of two.
    The rows of a tile are `period` apart.
    """
    main, *others = in_order(program).nests
    main = _Stages(main).rebuilt()
    buffers = program.buffers
    if count := sum(len(s.values) for s in main.body if isinstance(s, Exchange)):
        rows = program.tile_axes[0].size + xblock * period  # a tile at least, also of no rows
        words = rows * count * lanes_of(parts)
        buffers = (*buffers, Buffer(WORDS, BufferRole.WORDS, torch.int32, (words,), (sympy.S.One,)))
    return dataclasses.replace(program, buffers=buffers, nests=(main, *others))


class _Stages:
    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.deps = nest.dependence()
        self.values = {s.name: s for s in nest.body if isinstance(s, Load | Compute | Reduce)}
        self.hoisted = {s.name for s in nest.preamble if isinstance(s, Load | Compute)}
        self.body: list[Statement] = []
        self.named: dict[tuple[str, int], str] = {}  # a value in a stage, and what it is called there
        self.first: dict[str, int] = {}  # the stage that a value is first found in

    def rebuilt(self) -> Nest:
        roots = [s for s in self.nest.body if isinstance(s, Reduce | PartialAccumulate | Store)]
        stage_of = root_stage(self.nest)
        last = 1 + max((stage_of(r) for r in roots if isinstance(r, Reduce)), default=-1)
        by_stage: dict[int, list[Root]] = {stage: [] for stage in range(last + 1)}
        for root in roots:
            by_stage[last if isinstance(root, PartialAccumulate) else stage_of(root)].append(root)
        for stage, here in by_stage.items():
            # Before its stage is over, a reduction's value is that of a part.
            for root in sorted(here, key=lambda r: isinstance(r, Reduce)):
                value = Ref(self.value(root.value.name, stage))
                self.body.append(dataclasses.replace(root, value=value))
            if reductions := [r for r in here if isinstance(r, Reduce)]:
                self.body.append(Exchange(WORDS, tuple(Ref(r.name) for r in reductions)))
                self.named.update({(r.name, stage + 1): r.name for r in reductions})
                self.first.update({r.name: stage + 1 for r in reductions})
        return dataclasses.replace(self.nest, body=tuple(self.body))

    def value(self, name: str, stage: int) -> str:
        """What a value is called in a stage; its statements are added if they are not there yet."""
        if name in self.hoisted:
            return name
        key = (name, stage if self.deps[name] else 0)
        if key not in self.named:
            stmt = self.values[name]
            # Not `.1`: lowering has given such names to what an op is made of.
            new = name if name not in self.first else f"{name}.in{stage}"
            first = self.first.setdefault(name, stage)
            if first < stage and isinstance(stmt, Load | Reduce):
                source = self.named[name, first]
                self.body.append(Carry(new, Ref(source), stage - first, stmt.dtype))
            else:
                assert isinstance(stmt, Load | Compute), name  # a reduction comes before its uses
                used = {n: self.value(n, stage) for n in operands(stmt)}
                self.body.append(renamed(stmt, new, used))
            self.named[key] = new
        return self.named[key]
