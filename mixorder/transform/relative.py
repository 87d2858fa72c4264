"""Write sums of exponentials that are relative to a maximum as a maximum, differences to it, and a sum.

A program that has a whole row computes its maximum first. Over rows that it has one after the other, the
maximum and the sum are accumulated together instead, and are left as they are.
"""

from __future__ import annotations

import dataclasses
import math

from ..ir.program import AxisClass, Compute, LoopProgram, Reduce, Statement
from ..ir.rewriting import Scope, Steps, rewritten


def in_two_steps(program: LoopProgram, over: AxisClass | None = AxisClass.ROW) -> LoopProgram:
    """The program without such sums, but for those along an axis of the class `over`."""
    axis = over and program.axis(over)
    # Of all nests: they are merged, and a sum that several have is the same one.
    differences = {s.args for n in program.nests for s in n.body if isinstance(s, Compute) and s.op == "sub"}

    def steps(stmt: Statement, scope: Scope) -> list[Statement]:
        if not isinstance(stmt, Reduce) or stmt.peak is None or (axis and axis.symbol in stmt.axes):
            return []
        step = Steps(stmt.name, stmt.dtype)
        value = step("difference", "sub", stmt.value, stmt.peak)
        if (stmt.value, stmt.peak) in differences:
            term = step("term", "exp", value)  # as the graph has it anyway
        else:
            factor = step.constant("factor", math.log2(math.e))
            term = step("term", "exp2", step("exponent", "mul", value, factor))
        return [*step.made, dataclasses.replace(stmt, value=term, peak=None)]

    return rewritten(program, steps)
