"""Compute functions without the branches that a GPU's math library has in them (`codegen.branchless`).

Takes a program and returns one.
"""

from __future__ import annotations

import dataclasses

import torch

from ..inductor.config import uses_fast_math
from ..ir.program import Compute, LoopProgram, Statement

FUNCTIONS = frozenset({"tanh", "erf"})
OF_EAGER = frozenset({"sigmoid"})  # in blocked programs, whose bytes are to be eager's
PREFIX = "branchless_"


def without_branches(program: LoopProgram) -> LoopProgram:
    """The program with such functions of float32; unchanged where the user asked for less exact ones."""
    if uses_fast_math():
        return program
    functions = FUNCTIONS | OF_EAGER if program.blocked else FUNCTIONS

    def without(stmt: Statement) -> Statement:
        if isinstance(stmt, Compute) and stmt.op in functions and stmt.dtype == torch.float32:
            return dataclasses.replace(stmt, op=PREFIX + stmt.op)
        return stmt

    nests = (dataclasses.replace(n, body=tuple(map(without, n.body))) for n in program.nests)
    return dataclasses.replace(program, nests=tuple(nests))
