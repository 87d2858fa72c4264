"""Marks in a joint graph: what its forward and its backward have to agree on, once it is divided.

All or nothing: if anything fails, the graph is as it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, Node

from ..inductor.graphs import (
    contract_always,
    leave_to_inductor,
    mark_two_masks,
    round_as_eager,
    save_for_backward,
)
from ..inductor.tensors import tracing
from ..region.comparisons import Given, Mask, sums_of_products
from ..region.nodes import fake, shape_of

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Marks:
    """What a graph gets: masks that can be recomputed, and nodes that round as in eager, that no region
    has, and that the backward reads."""

    masks: Sequence[Mask] = ()
    rounding: Sequence[Node] = ()
    left: Sequence[Node] = ()
    saved: Sequence[Node] = ()


def mark(graph: Graph, marks: Sequence[Marks]) -> bool:
    """Mark a graph. Returns whether its code has changed."""
    with _all_or_nothing(graph):
        for some in marks:
            for mask in some.masks:
                for given in mask.given:
                    _keep(given)
                _add_mask(mask)
            for node in some.rounding:
                round_as_eager(node)
            for node in some.left:
                leave_to_inductor(node)
            for node in some.saved:
                save_for_backward(node)
    return any(some.masks or some.rounding or some.left for some in marks)


@contextmanager
def _all_or_nothing(graph: Graph) -> Iterator[None]:
    before = [(n, n.name, n.args, n.kwargs, dict(n.meta)) for n in graph.nodes]
    try:
        yield
    except BaseException:
        for node, name, args, kwargs, meta in before:
            node.name, node.args, node.kwargs, node.meta = name, args, kwargs, meta
        known = {node for node, *_ in before}
        for node in [n for n in graph.nodes if n not in known][::-1]:
            graph.erase_node(node)
        raise


def _keep(given: Given) -> None:
    """Let forward and backward read a copy, which the backward saves. Inductor computes it beside the
    statistic, in one kernel: it is NaN only where that is."""
    first, node = given.loops[0], given.node
    with first.graph.inserting_before(first):
        if given.statistic is None:
            kept = _call(first, aten.clone.default, node)
        else:
            known = _call(first, aten.eq.Tensor, given.statistic, given.statistic)
            kept = _call(first, aten.where.self, known, node, given.statistic)
    save_for_backward(kept)
    for loop in given.loops:
        loop.replace_input_with(node, kept)


def _add_mask(mask: Mask) -> None:
    """Add a mask that is equal to one that the graph has, of the elements of a value that are at most, or
    above, some number. Its backward takes one of both. All kernels compute the value with the bits that
    Inductor's give it."""
    for total in sums_of_products(mask.value):
        contract_always(total)
    node, value, shape = mask.node, mask.value, shape_of(mask.node)
    with node.graph.inserting_before(node.next):
        if shape_of(value) != shape:
            value = _call(value, aten.view.default, value, list(shape or ()))
        computed = _call(node, node.target, value, mask.most)
        both = _call(node, aten.logical_and.default, node, computed)
    node.replace_all_uses_with(both, lambda user: user is not both)
    mark_two_masks(both)


def _call(like: Node, target: Any, *args: Any) -> Node:
    """A node with the provenance and the policies of another one."""
    node = like.graph.call_function(target, args)
    with tracing(fake(like).fake_mode):  # type: ignore[union-attr]
        val = target(*torch.fx.map_arg(args, lambda n: n.meta["val"]))
    node.meta = {k: v for k, v in like.meta.items() if k != "tensor_meta"} | {"val": val}
    return node
