"""Contract a product and a sum into an `fma`, which rounds once, for results stored in fp32 or fp64.

A compiler makes one instruction of `a * b - c` unless the product has another use: then it subtracts from the
rounded product. A gradient in fp32 that shares its products with the norm's reductions is therefore less
exact than one from a kernel of its own (H200, RMSNorm 8192x8192 fp32: error of dx 6.1e-8, Inductor's two
kernels 5.5e-8). Takes a merged program, and returns one that states `fma` there. Results stored in half
precision have larger rounding errors, and stay as they are.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import TypeGuard

import torch

from ..ir.program import Compute, LoopProgram, Nest, Reduce, Ref, Statement, Store, operands
from ..ir.rewriting import Steps

_EXACT = (torch.float32, torch.float64)


def form_fma(program: LoopProgram) -> LoopProgram:
    """Contract products that lead to the main nest's stores, where that keeps no more tiles in registers."""
    main, *others = program.nests
    exact = {b.name for b in program.buffers if b.dtype in _EXACT and not b.widened}
    return dataclasses.replace(program, nests=(_Contraction(main, exact).result(), *others))


class _Contraction:
    def __init__(self, nest: Nest, exact: set[str]) -> None:
        self.nest = nest
        self.exact = exact
        self.values = {s.name: s for s in nest.statements if isinstance(s, Compute)}
        self.users = Counter(name for s in nest.statements for name in operands(s))
        self.deps = nest.dependence()
        self.tile = frozenset().union(*self.deps.values())

    def result(self) -> Nest:
        body: list[Statement] = []
        wanted = set(self.above_stores())
        for at, stmt in enumerate(self.nest.body):
            new = self.contracted(stmt, at) if isinstance(stmt, Compute) and stmt.name in wanted else [stmt]
            body.extend(new)
        used = {name for s in body for name in operands(s)}
        live = (s for s in body if not isinstance(s, Compute) or s.name in used)
        return dataclasses.replace(self.nest, body=tuple(live))

    def above_stores(self) -> Iterator[str]:
        """Names of the fp32 and fp64 values that stores are computed from, with no reduction in between."""
        todo = [s.value.name for s in self.nest.body if isinstance(s, Store) and s.buffer in self.exact]
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if name not in seen and name in self.values and self.values[name].dtype in _EXACT:
                seen.add(name)
                yield name
                todo.extend(operands(self.values[name]))

    def contracted(self, stmt: Compute, at: int) -> list[Statement]:
        """The statements for a sum or a difference. Of two products it contracts the first, as a compiler
        does if it may choose."""
        if stmt.op not in ("add", "sub") or stmt.kwargs or not all(isinstance(a, Ref) for a in stmt.args):
            return [stmt]
        first, second = (self.values.get(a.name) for a in stmt.args)
        if self.is_product(first, stmt):
            product = first
        elif self.is_product(second, stmt) and not (first is not None and first.op == "mul"):
            product = second
        else:
            return [stmt]
        if self.users[product.name] == 1 or not self.is_free(product, at):
            return [stmt]  # the compiler contracts it, or its factors would take more registers
        return [*as_fma(stmt, product)]

    def is_product(self, value: Compute | None, stmt: Compute) -> TypeGuard[Compute]:
        """Whether a value is a product over the whole tile, in the dtype of its sum."""
        return (
            value is not None
            and value.op == "mul"
            and value.dtype == stmt.dtype
            and not value.kwargs
            and all(isinstance(a, Ref) for a in value.args)
            and self.deps[value.name] == self.tile
        )

    def is_free(self, product: Compute, at: int) -> bool:
        """Whether keeping the factors up to `at`, instead of the product, takes no more registers."""
        body = self.nest.body
        start = max((i for i, s in enumerate(body[:at]) if isinstance(s, Reduce)), default=-1)
        later = Counter(name for s in body[start + 1 :] for name in operands(s))
        kept = [n for n in set(operands(product)) if self.deps[n] == self.tile and not later[n]]
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
