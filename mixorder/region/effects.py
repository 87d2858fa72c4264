"""Which nodes of a graph do more than compute their result: what they are, and what they write.

Their order is part of what a program means: collectives pair up between processes by it, random operators
draw from one generator, and a write decides what a later read sees. A region never has such a node.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch.fx import Graph, Node

from ..inductor.graphs import HigherOrderOperator, OpOverload

# Whose operators are known by their schemas and tags. Of all others nothing is promised: a custom operator
# may count, print or communicate, and so do collectives.
_KNOWN = frozenset({"aten", "prims", "prim", "inductor"})
# Higher-order operators that compute, and do nothing else.
_PURE = frozenset(
    {
        "triton_kernel_wrapper_functional",
        "flex_attention",
        "flex_attention_backward",
        "out_dtype",
        "associative_scan",
        "inline_asm_elementwise",
    }
)
# Of those that may do more, these write none of their arguments: a functional graph has them in that form.
_FUNCTIONAL = frozenset(
    {
        "auto_functionalized",
        "auto_functionalized_v2",
        "cond",
        "graphsafe_run_with_rng_state",
        "invoke_subgraph",
        "map_impl",
        "print",
        "run_and_save_rng_state",
        "run_with_rng_state",
        "scan",
        "while_loop",
        "with_effects",
    }
)


def has_effect(node: Node) -> bool:
    """Whether a node has to keep its place among others like it, whatever its result is used for."""
    if node.op != "call_function":
        return node.op == "call_module"
    return (_has_effect(node.target) or node.is_impure()) and not _draws_nothing(node)


def _draws_nothing(node: Node) -> bool:
    """Whether an operator that may draw random numbers is asked for none: attention without dropout."""
    if not _is_random(node.target) or node.target._schema.is_mutable:  # type: ignore[union-attr]
        return False
    places = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    if "dropout_p" not in places:
        return False
    place = places.index("dropout_p")
    given = node.args[place] if len(node.args) > place else node.kwargs.get("dropout_p", 0.0)
    return given == 0


@functools.cache
def _is_random(target: object) -> bool:
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


@functools.cache
def _has_effect(target: object) -> bool:
    if isinstance(target, OpOverload):
        return target.namespace not in _KNOWN or target._schema.is_mutable or _is_random(target)
    if isinstance(target, HigherOrderOperator):
        return target.name() not in _PURE
    return False


def may_be_reordered(graph: Graph) -> bool:
    """Whether Inductor may launch two of a graph's effects in another order than the graph's.

    It adds dependencies between writes and reads of one memory, and between collectives. Random operators and
    stated effects of custom ones depend on nothing but their arguments (torch 2.11; from 2.13 on random ones
    are in a chain). Custom operators that state no effect it may reorder with or without a region.
    """
    return sum(map(_is_free, graph.nodes)) > 1


def _is_free(node: Node) -> bool:
    if isinstance(node.target, HigherOrderOperator):
        return has_effect(node)
    return _is_random(node.target) and has_effect(node)


def between(first: Node, last: Node) -> Iterator[Node]:
    """The nodes of a graph from `first` to `last`, both included."""
    node = first
    while node is not last:
        yield node
        node = node.next
    yield last


def mutated_args(node: Node) -> list[Node]:
    """The arguments that a node writes; all of them where that is not known."""
    if node.op != "call_function" or not has_effect(node):
        return []
    if isinstance(node.target, HigherOrderOperator) and node.target.name() in _FUNCTIONAL:
        return []
    if not isinstance(node.target, OpOverload):
        return node.all_input_nodes
    schema = node.target._schema.arguments
    given = {s.name: arg for s, arg in zip(schema, node.args, strict=False)} | dict(node.kwargs)
    written: list[Node] = []
    for s in schema:
        if s.alias_info is not None and s.alias_info.is_write:
            torch.fx.map_arg(given.get(s.name), written.append)
    return written
