"""Products that a tile's kernel contracts with a sum: those that eager's kernel of one operator contracts,
and those of a value that another graph computes as well, in Inductor's kernels.

Torch decomposes an operator such as the gradient of GELU into products and sums, each of which would round.
Eager has one CUDA kernel for it, in which the compiler makes one instruction of a product and a sum where
nothing else takes the product. H200, gelu_backward by tanh: 23,468 of 268,435,456 elements in bfloat16 are
not eager's if each rounds, 1,500 if they are contracted (torch states a constant with another last bit).
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch.fx import Node

from ..inductor.graphs import CONTRACTED
from .comparisons import products_in
from .nodes import shows, unviewed
from .region import Region

_aten = torch.ops.aten
_SUMS = (_aten.add.Tensor, _aten.sub.Tensor)


def contracted(region: Region) -> tuple[tuple[Node, Node], ...]:
    """Pairs of a product and the sum or difference that takes it, both of one operator, or such a sum that is
    marked. Of two products, the compiler takes the first."""
    pairs = []
    for node in region.nodes:
        if node.meta.get(CONTRACTED):
            products = (unviewed(n, shows) for n in products_in(node))
            pairs += [(product, node) for product in products if product in region.nodes]
            continue
        if node.target not in _SUMS or node.kwargs or (operator := _operator(node)) is None:
            continue
        direct = (a for a in node.args if isinstance(a, Node) and a.target is _aten.mul.Tensor)
        product = next((a for a in direct if _operator(a) == operator and len(a.users) == 1), None)
        if product is not None and product in region.nodes:
            pairs.append((product, node))
    return tuple(pairs)


def _operator(node: Node) -> Hashable:
    """The call of an operator that a node is a part of; None where it is the operator itself. A copied graph
    has copies of the operators in its metadata, so that they are known by name."""
    original = node.meta.get("original_aten")
    name, _, _ = str(original).removeprefix("aten.").partition(".")
    if original is None or name == str(node.target).removeprefix("aten.").partition(".")[0]:
        return None
    return name, node.meta.get("seq_nr"), node.meta.get("stack_trace")
