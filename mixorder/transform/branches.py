"""Compute functions without the branches that a GPU's math library has in them (`codegen.branchless`).

Takes a program and returns one.
"""

from __future__ import annotations

import dataclasses

import torch

from ..inductor.config import uses_fast_math
from ..ir.program import Compute, LoopProgram, Statement

FUNCTIONS = frozenset({"tanh", "erf"})
PREFIX = "branchless_"


def without_branches(program: LoopProgram) -> LoopProgram:
    """The program with such functions of float32; unchanged where the user asked for less exact ones."""
    if uses_fast_math():
        return program
    nests = (dataclasses.replace(n, body=tuple(map(_without, n.body))) for n in program.nests)
    return dataclasses.replace(program, nests=tuple(nests))


def _without(stmt: Statement) -> Statement:
    if isinstance(stmt, Compute) and stmt.op in FUNCTIONS and stmt.dtype == torch.float32:
        return dataclasses.replace(stmt, op=PREFIX + stmt.op)
    return stmt
