"""Let several programs share a row: each takes a part of its columns, and they exchange partial reductions.

This is for rows that are too wide for one program. Takes a merged program; returns one whose main nest has
two phases, if it has reductions over columns: the first one ends with an `Exchange` of these. What is loaded
of a row and needed in the second phase is carried to it, as the program has started on other rows by then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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
    behind,
    operands,
)
from ..ir.rewriting import reading

MAILBOX = "mailbox"
EMPTY = -1  # the initial value of a mailbox slot: as a float, a NaN that no computation gives


def check_shareable(program: LoopProgram) -> None:
    """Raise `Decline` for a merged program whose rows cannot be shared."""
    main, row = program.nests[0], program.tile_axes[0].symbol
    deps, reductions = main.dependence(), [s for s in main.body if isinstance(s, Reduce)]
    above = main.reductions_above()
    obstacles = {
        "a batch axis": program.axis(AxisClass.BATCH) is not None,
        "a common axis": program.axis(AxisClass.COMMON) is not None,
        "a gather": any(isinstance(s, Load) and s.predicate is not None for s in main.body),
        "reductions other than sums, maxima and minima in fp32": not all(
            s.kind.can_be_exchanged and s.dtype == torch.float32 for s in reductions
        ),
        "reductions that need one another": any(above[s.name] for s in reductions),
        # For example with a single row. Only values that vary over rows belong to a phase.
        "a reduction whose result is the same for all rows": any(row not in deps[s.name] for s in reductions),
        "a workspace in float64": any(b.dtype == torch.float64 for b in program.role(BufferRole.WORKSPACE)),
    }
    for what, present in obstacles.items():
        if present:
            raise Decline(DeclineReason.ROW_TOO_WIDE, f"programs cannot share a row that has {what}")


def slots_of(parts: int) -> int:
    """Slots reserved for the parts of one reduction: a power of two."""
    return 1 << (parts - 1).bit_length()


def cut_into_phases(program: LoopProgram) -> LoopProgram:
    """Cut the main nest into phases. Accumulations run in the last one, where their operands are known."""
    main, *rest = program.nests
    return dataclasses.replace(program, nests=(_Phases(main).rebuilt(), *rest))


def with_mailbox(program: LoopProgram, parts: int, rows: int) -> LoopProgram:
    """The program with the mailbox of its exchanges, if it has any, for `parts` programs per row.

    The mailbox has a 32-bit slot for each part of each reduction of each row, and of `rows` further rows: a
    tile spans as many, and may extend beyond the last row.
    """
    if not (count := sum(len(s.values) for s in program.nests[0].body if isinstance(s, Exchange))):
        return program
    slots = (program.tile_axes[0].size + rows) * count * slots_of(parts)
    mailbox = Buffer(MAILBOX, BufferRole.MAILBOX, torch.int32, (slots,), (sympy.S.One,), fill=EMPTY)
    return dataclasses.replace(program, buffers=(*program.buffers, mailbox))


class _Phases:
    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.deps = nest.dependence()
        self.values = {s.name: s for s in nest.body if isinstance(s, Load | Compute | Reduce)}
        self.body: list[Statement] = []
        self.named: dict[tuple[str, int], str] = {}  # a value in a phase, and its name there

    def rebuilt(self) -> Nest:
        roots = [s for s in self.nest.body if isinstance(s, Reduce | PartialAccumulate | Store)]
        reductions = [r for r in roots if isinstance(r, Reduce)]
        totals = behind(self.nest.body, reductions)
        rest = [r for r in roots if not isinstance(r, Reduce)]
        late = [
            r for r in rest if reductions and (isinstance(r, PartialAccumulate) or r.value.name in totals)
        ]
        # Until the first phase ends, a reduction has the value of a part: reductions come last.
        self.add([*(r for r in rest if r not in late), *reductions], 0)
        if reductions:
            self.body.append(Exchange(MAILBOX, tuple(Ref(r.name) for r in reductions)))
            self.named.update({(r.name, 1): r.name for r in reductions})
            self.add(late, 1)
        return dataclasses.replace(self.nest, body=tuple(self.body))

    def add(self, roots: Sequence[Reduce | PartialAccumulate | Store], phase: int) -> None:
        for root in roots:
            self.body.append(dataclasses.replace(root, value=Ref(self.value(root.value.name, phase))))

    def value(self, name: str, phase: int) -> str:
        """The name of a value in a phase. Adds its statements if they are missing."""
        if name not in self.values:  # but hoisted
            return name
        key = (name, phase if self.deps[name] else 0)
        if key not in self.named:
            stmt, before = self.values[name], self.named.get((name, 0))
            # Not `.1`: lowering gives such names to the statements of one op.
            new = name if before is None else f"{name}.in1"
            if before is not None and isinstance(stmt, Load):
                self.body.append(Carry(new, Ref(before), stmt.dtype))
            else:
                assert isinstance(stmt, Load | Compute), name  # a reduction comes before its uses
                used = {n: Ref(self.value(n, phase)) for n in operands(stmt)}
                self.body.append(dataclasses.replace(reading(stmt, used), name=new))
            self.named[key] = new
        return self.named[key]
