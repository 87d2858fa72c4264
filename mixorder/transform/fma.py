"""Contract a product and a sum into an `fma`, which rounds once, for results stored in fp32 or fp64.

A compiler makes one instruction of `a * b - c` unless the product has another use: then it subtracts from the
rounded product. A gradient in fp32 that shares its products with the norm's reductions is therefore less
exact than one from a kernel of its own (H200, RMSNorm 8192x8192 fp32: error of dx 6.1e-8, Inductor's two
kernels 5.5e-8). Takes a merged program, and returns one that states `fma` there. Results stored in half
precision have larger rounding errors, and stay as they are.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeGuard

import torch

from ..ir.program import Compute, LoopProgram, Reduce, Ref, Statement, Store, Value, live, operands
from ..ir.rewriting import Scope, Steps, is_op, rewritten

_EXACT = (torch.float32, torch.float64)


def form_fma(program: LoopProgram) -> LoopProgram:
    """Contract products that lead to the main nest's stores, where that keeps no more tiles in registers."""
    wanted = _above_stores(program)

    def contracted(stmt: Statement, scope: Scope) -> list[Compute]:
        """A sum or a difference with its product. Of two products it takes the first, as a compiler does if
        it may choose."""
        if scope.nest is not program.nests[0] or not is_sum(stmt) or stmt.name not in wanted:
            return []
        first, second = (scope.values[a.name] for a in stmt.args)
        product = first if _is_product(first, stmt, scope) else second
        if product is not first and isinstance(first, Compute) and first.op == "mul":
            return []
        if not _is_product(product, stmt, scope) or len(scope.users[product.name]) == 1:
            return []  # the compiler contracts a product without another use
        return as_fma(stmt, product) if _is_free(product, stmt, scope) else []

    return rewritten(program, contracted)


def _above_stores(program: LoopProgram) -> set[str]:
    """Names of the fp32 and fp64 values that such stores of the main nest are computed from, with no
    reduction in between."""
    main = program.nests[0]
    exact = {b.name for b in program.buffers if b.dtype in _EXACT and not b.kept_fp32}
    stores = [s for s in main.body if isinstance(s, Store) and s.buffer in exact]
    computed = [s for s in main.statements if isinstance(s, Compute) and s.dtype in _EXACT]
    return {s.name for s in live(computed, stores) if isinstance(s, Compute)}


def is_sum(stmt: Statement) -> TypeGuard[Compute]:
    """Whether a statement is a sum or a difference of two values."""
    return isinstance(stmt, Compute) and stmt.op in ("add", "sub") and _is_of_values(stmt)


def is_product(value: Value, stmt: Compute) -> TypeGuard[Compute]:
    """Whether a value is a product of two values, in the dtype of a sum."""
    return is_op(value, "mul", stmt.dtype) and _is_of_values(value)


def _is_of_values(stmt: Compute) -> bool:
    return not stmt.kwargs and all(isinstance(arg, Ref) for arg in stmt.args)


def _is_product(value: Value, stmt: Compute, scope: Scope) -> TypeGuard[Compute]:
    """Whether a value is a product over the whole tile."""
    return is_product(value, stmt) and scope.deps[value.name] == frozenset().union(*scope.deps.values())


def _is_free(product: Compute, stmt: Compute, scope: Scope) -> bool:
    """Whether keeping the factors up to a statement, instead of the product, takes no more registers."""
    body = scope.nest.body
    before = body[: body.index(stmt)]
    start = max((i for i, s in enumerate(before) if isinstance(s, Reduce)), default=-1)
    later = Counter(name for s in body[start + 1 :] for name in operands(s))
    whole = scope.deps[product.name]
    kept = [n for n in set(operands(product)) if scope.deps[n] == whole and not later[n]]
    return len(kept) <= (later[product.name] == 1)


def as_fma(stmt: Compute, product: Compute) -> list[Compute]:
    """A sum or a difference as one op with its product: `a * b + c`, `a * b - c` or `c - a * b`."""
    first = stmt.args[0] == Ref(product.name)
    terms, step = [*product.args, stmt.args[first]], Steps(stmt.name, stmt.dtype)
    if stmt.op == "sub":
        negated = 2 if first else 0
        terms[negated] = step("minus", "neg", terms[negated])
    step("", "fma", *terms)
    return step.made
