"""Sums of a checkpointed forward: which its backward should read, and which it has to recompute.

The last bits of a sum depend on the order of its elements, and a region adds up in another order than
Inductor's kernel in the forward. All that follows from the sum would have other bits than it had there: a
router that picks the largest elements may then pick others than in the forward. So the backward reads small
sums, and no region has the others.

Takes nodes of a joint graph, answers questions, changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from torch.fx import Graph, Node

from ..inductor.graphs import is_recomputed, may_be_saved
from .nodes import float_bytes, is_pair, is_pointwise, is_view, readers, reduction_kind, stated_by
from .spans import bytes_of

SHARE = 64  # of this many bytes that checkpointing frees, saved sums take back one at most


def small_sums(graph: Graph) -> list[Node]:
    """The operators that give such sums, the smallest first, as many as take few bytes.

    Their bytes are compared with those of all tensors that the backward would recompute."""
    candidates = [n for n in graph.nodes if may_be_saved(n)]
    room = sum(bytes_of(n) for n in candidates if not is_view(n)) // SHARE
    sums = list[Node]()
    for node in sorted(filter(_gives_small_sums, candidates), key=_bytes_saved):
        room -= _bytes_saved(node)
        if room < 0:
            break
        sums.append(node)
    return sums


def other_sums(graph: Graph, saved: Collection[Node]) -> list[Node]:
    """The sums that the backward has to recompute, once some operators' are saved."""
    checkpointed = (n for n in graph.nodes if is_recomputed(stated_by(n)) and stated_by(n) not in saved)
    return list(filter(_is_sum, checkpointed))


def readers_in_half_precision(node: Node) -> list[Node]:
    """Of an operator that gives sums in half precision, the pointwise nodes that read them. The forward has
    such a sum unrounded where it is computed, and the backward reads it rounded."""
    halves = (result for result in _results(node) if float_bytes(result) == 2)
    return [reader for result in halves for reader in readers(result) if is_pointwise(reader)]


def _gives_small_sums(node: Node) -> bool:
    """Whether a node is an operator whose results are sums that may be read."""
    results = _results(node) if stated_by(node) is node else []
    return bool(results) and all(_is_sum(result) and _may_be_read(result) for result in results)


def _is_sum(node: Node) -> bool:
    """Whether a node adds up floating-point numbers."""
    kind = reduction_kind(node)
    return kind is not None and not kind.selects and float_bytes(node) > 0


def _may_be_read(node: Node) -> bool:
    """Whether all that reads a sum in half precision can round it."""
    return float_bytes(node) > 2 or all(is_pointwise(r) or r.op == "output" for r in readers(node))


def _results(node: Node) -> list[Node]:
    return list(node.users) if is_pair(node) else [node]


def _bytes_saved(node: Node) -> int:
    return sum(map(bytes_of, _results(node)))
