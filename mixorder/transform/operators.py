"""Contract a product and a sum that eager's kernel of one operator contracts (`region.operators`).

A tile's kernel otherwise rounds each product, as separate operators do in eager. Takes a tile-local program,
and returns one that states `fma` there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..ir.program import Compute, LoopProgram, Ref, Statement, operands
from ..ir.rewriting import Scope, is_op, rewritten
from .fma import as_fma


def contract(program: LoopProgram, products: Mapping[str, str]) -> LoopProgram:
    """`products`: by the node of a sum or a difference, the node of the product that it takes."""

    def contracted(stmt: Statement, scope: Scope) -> list[Compute]:
        if not isinstance(stmt, Compute) or (wanted := products.get(_node(stmt.name))) is None:
            return []
        taken = (scope.values[name] for name in operands(stmt) if wanted == _node(name))
        product = next((value for value in taken if is_op(value, "mul", torch.float32)), None)
        if product is None or not _is_contracted(stmt, product, scope):
            return []
        return as_fma(stmt, product)

    return rewritten(program, contracted)


def _node(name: str) -> str:
    """The node that a value comes from."""
    return name.partition(".")[0]


def _is_contracted(stmt: Compute, product: Compute, scope: Scope) -> bool:
    """Whether all is in float32, and nothing else takes the product."""
    named = all(isinstance(arg, Ref) for arg in (*stmt.args, *product.args))
    single_use = len(scope.users[product.name]) == 1 and not (stmt.kwargs or product.kwargs)
    return stmt.op in ("add", "sub") and stmt.dtype == torch.float32 and named and single_use
