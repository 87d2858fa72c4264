"""Compute functions without the branches that a GPU's math library has in them (`codegen.branchless`)."""

from __future__ import annotations

import dataclasses

import torch

from ..inductor.config import uses_fast_math
from ..ir.program import Compute, Statement
from ..ir.rewriting import Scope

FUNCTIONS = frozenset({"tanh", "erf"})
OF_EAGER = frozenset({"sigmoid"})  # in tile-local programs, whose bytes are to be eager's
PREFIX = "branchless_"


def without_branches(stmt: Statement, scope: Scope) -> list[Statement]:
    """Such a function of float32 without branches, unless the user asked for less exact ones."""
    functions = FUNCTIONS | OF_EAGER if scope.program.tile_local else FUNCTIONS
    if not isinstance(stmt, Compute) or stmt.op not in functions or stmt.dtype != torch.float32:
        return []
    return [] if uses_fast_math() else [dataclasses.replace(stmt, op=PREFIX + stmt.op)]
