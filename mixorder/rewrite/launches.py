"""Checks that each launch of a kernel of ours states the tensors that it gets.

A kernel computes addresses from the strides that its launch states. Inductor stores what a loop computes so;
of anything else that lies otherwise it makes a copy, which no prediction has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ..inductor.graphs import our_kernel, triton_kernel_wrapper_functional
from ..region.layouts import computed, is_strided, lie_alike
from ..region.nodes import fake, operands, size_of


def check_launches(graph: Graph) -> None:
    """Raise ValueError if a launch states another dtype, shape or stride than its operand has, or the
    graph states other strides for a view than it has."""
    known = set[Node]()
    for launch in graph.find_nodes(op="call_function", target=triton_kernel_wrapper_functional):
        if our_kernel(launch.kwargs["kernel_idx"]) is None:
            continue
        stated = launch.meta["eager_input_vals"][1]["kwargs"]
        given: Any = launch.kwargs["kwargs"]
        for name, operand in given.items():
            if isinstance(operand, Node) and (val := fake(operand)) is not None:
                _check_views(operand, known)
                _check_same(f"{launch.name} reads {operand.name}", stated[name], val)


def _check_views(node: Node, known: set[Node]) -> None:
    while is_strided(node) and node not in known:
        known.add(node)
        _check_same(f"the view {node.name}", node.meta["val"], computed(node))
        (node,) = operands(node)


def _check_same(what: str, stated: torch.Tensor, val: torch.Tensor) -> None:
    alike = [*map(size_of, stated.shape)] == [*map(size_of, val.shape)] and lie_alike(stated, val)
    if stated.dtype != val.dtype or not alike:
        told = (f"{t.dtype} {tuple(t.shape)} {t.stride()}" for t in (stated, val))
        raise ValueError(f"{what} as {' instead of '.join(told)}")
