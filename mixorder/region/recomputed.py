"""What must have the bits that Inductor's kernels give it: sums of what forward and backward both compute.

A sum has other last bits in another order of its elements. Where a backward computes a value of the forward
again (activation checkpointing), another bit of it may choose otherwise: it sends a token to another expert.
Formulas of gradients alone do not choose: there a region may compute such a sum in its own order.

Reads the graph, never writes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from .nodes import fake, is_pair, is_pointwise, is_view, operands, reduction_kind

aten = torch.ops.aten

# Of floating-point numbers, and with steps where they have a derivative: zero.
STEPS = frozenset(
    {
        *(aten.floor.default, aten.ceil.default, aten.trunc.default, aten.round.default),
        *(aten.round.decimals, aten.frac.default, aten.sign.default, aten.sgn.default),
        *(aten.fmod.Tensor, aten.fmod.Scalar, aten.remainder.Tensor, aten.remainder.Scalar),
        *(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default),
        *(aten.heaviside.default, aten.copysign.Tensor, aten.copysign.Scalar, aten.nextafter.default),
    }
)
AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


@dataclasses.dataclass(frozen=True)
class Recomputed:
    """`sums`: reductions that no region takes. `values`: what is computed from these alone, and no region
    writes."""

    sums: frozenset[Node] = frozenset()
    values: frozenset[Node] = frozenset()


def recomputed(graph: Graph) -> Recomputed:
    """Of a backward, the sums of what depends on no gradient, if a node that is no formula reads them or what
    follows from them; of a forward, all that are marked to be computed again."""
    late = _behind(n for n in graph.nodes if n.op == "placeholder" and n.name.startswith("tangents"))
    if not late:
        sums = {n for n in graph.nodes if n.meta.get("recompute") in AGAIN and _rounds(n)}
        return Recomputed(frozenset(sums), frozenset(_behind(sums) - sums))
    exact: set[Node] = set()
    for node in reversed(graph.nodes):
        if node not in late and any(u in exact or _shows(u) for u in node.users):
            exact.add(node)
    sums = {n for n in graph.nodes if _rounds(n) and not exact.isdisjoint((n, *_pair_of(n))) and n not in late}
    return Recomputed(frozenset(sums), frozenset(_behind(sums) - sums - late))


def _behind(nodes: Iterable[Node]) -> set[Node]:
    """Some nodes, and all that depends on them."""
    found = set(nodes)
    todo = list(found)
    while todo:
        new = todo.pop().users.keys() - found
        found |= new
        todo += new
    return found


def _shows(user: Node) -> bool:
    """Whether a node does more with what it reads than a formula: another bit may change more than a bit."""
    if is_view(user):
        return False
    if is_pointwise(user):
        val = fake(user)
        return val is None or not val.dtype.is_floating_point or user.target in STEPS
    kind = reduction_kind(user)
    return kind is None or kind.of_truth


def _rounds(node: Node) -> bool:
    """Whether a node is a reduction whose bits depend on the order of its elements."""
    kind, val = reduction_kind(node), fake(node)
    exact = kind is None or kind.selects or kind.of_truth
    return not exact and val is not None and val.dtype.is_floating_point


def _pair_of(node: Node) -> list[Node]:
    """The pair of results that a node is one of: Inductor computes both or none."""
    return [n for n in operands(node) if is_pair(n)]
