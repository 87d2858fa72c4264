"""Sums of what is linear in other sums' results: of `a * x + b`, where `a` and `b` are the same for all
elements that are added up, and come from sums over the same axes.

The sum is `a * x.sum() + n * b`, of elements that are at hand: one reading is enough for both sums. Autograd
has such chains where a norm is written by hand: the gradient of its mean waits for that of its variance.

Reads the graph, never writes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch.fx import Node

from ..region.nodes import is_pointwise, operands, reduced, shape_of
from ..region.sizes import product
from ..region.walk import by_position, dependents, descendants, sources
from .added_first import is_traced

aten = torch.ops.aten


def chained(nodes: Iterable[Node], begun: Collection[Node]) -> dict[Node, set[Node]]:
    """The sums that need others over the same axes, and that elements are computed with; and what each adds
    up that needs those. A contiguous row is held on chip, unless its sum begins with another one, as those of
    `begun` do."""
    sums = {n: what for n in nodes if n.target is aten.sum.dim_IntList and (what := reduced(n)) is not None}
    chains = dict[Node, set[Node]]()
    for node, what in sums.items():
        is_row = what.run is None or [factor.stride for factor in what.run] == [1]
        if (is_row and node not in begun) or len(what.dims) == len(what.shape):
            continue
        size = product(what.shape)
        if not any(product(shape_of(n) or ()) == size for n in descendants(node.users, is_traced)):
            continue
        above = by_position(sources(operands(node), is_traced))
        if earlier := [n for n in above if n in sums and sums[n].run == what.run]:
            chains[node] = dependents(earlier, above)
    return chains


def is_same_along(node: Node, dims: Sequence[int], rank: int) -> bool:
    """Whether an operand of elements of so many dims is the same for all that differ in some dims only, as a
    symbolic size is."""
    if (shape := shape_of(node)) is None:
        return True
    left = rank - len(shape)
    if all(d < left or shape[d - left] == 1 for d in dims):
        return True
    computed = operands(node) if node.target is aten.expand.default or is_pointwise(node) else []
    return bool(computed) and all(is_same_along(n, dims, rank) for n in computed)
