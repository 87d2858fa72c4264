"""Write sums of exponentials that are relative to a maximum as a maximum, differences to it, and a sum.

A program that has a whole row computes its maximum first. Over rows that it has one after the other, the
maximum and the sum are accumulated together instead, and are left as they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from ..ir.program import AxisClass, Compute, LoopProgram, Nest, Reduce, Ref, Statement


def in_two_steps(program: LoopProgram, over: AxisClass | None = AxisClass.ROW) -> LoopProgram:
    """The program without such sums, but for those along an axis of the class `over`."""
    axis = over and program.axis(over)
    # Of all nests: they are merged, and a sum that several have is the same one.
    differences = {s.args for n in program.nests for s in n.body if isinstance(s, Compute) and s.op == "sub"}

    def steps(stmt: Statement) -> Iterator[Statement]:
        if not isinstance(stmt, Reduce) or stmt.peak is None or (axis and axis.symbol in stmt.axes):
            yield stmt
            return
        made = [Compute(f"{stmt.name}.difference", "sub", (stmt.value, stmt.peak), (), stmt.dtype)]

        def compute(what: str, op: str, *args: Any) -> Ref:
            made.append(Compute(f"{stmt.name}.{what}", op, args, (), stmt.dtype))
            return Ref(made[-1].name)

        value = Ref(made[0].name)
        if made[0].args in differences:
            term = compute("term", "exp", value)  # as the graph has it anyway
        else:
            factor = compute("factor", "constant", math.log2(math.e), stmt.dtype)
            term = compute("term", "exp2", compute("exponent", "mul", value, factor))
        yield from made
        yield dataclasses.replace(stmt, value=term, peak=None)

    def of_nest(nest: Nest) -> Nest:
        new = tuple(new for stmt in nest.body for new in steps(stmt))
        return dataclasses.replace(nest, body=new)

    return dataclasses.replace(program, nests=tuple(map(of_nest, program.nests)))
