"""Contract a product and a sum that eager's kernel of one operator contracts (`region.operators`).

A tile's kernel otherwise rounds each product, as separate operators do in eager. Takes a tile-local program,
and returns one that states `fma` there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..ir.program import Compute, LoopProgram, Statement, operands
from ..ir.rewriting import Scope, rewritten
from .fma import as_fma, is_product, is_sum


def contract(program: LoopProgram, products: Mapping[str, str]) -> LoopProgram:
    """`products`: by the node of a sum or a difference, the node of the product that it takes."""

    def contracted(stmt: Statement, scope: Scope) -> list[Compute]:
        if not is_sum(stmt) or stmt.dtype != torch.float32:
            return []
        taken = (
            scope.values[name] for name in operands(stmt) if products.get(_node(stmt.name)) == _node(name)
        )
        product = next((value for value in taken if is_product(value, stmt)), None)
        if product is None or len(scope.users[product.name]) > 1:
            return []
        return as_fma(stmt, product)

    return rewritten(program, contracted)


def _node(name: str) -> str:
    """The node that a value comes from."""
    return name.partition(".")[0]
