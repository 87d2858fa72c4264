"""Effects: which nodes of a graph do more than compute their result, and what they write.

The order of effects is part of a program's meaning. Collectives of several processes are matched by it,
random operators draw from one generator, and a read depends on the writes before it. A region never has a
node with an effect.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch.fx import Node

from ..inductor.graphs import HigherOrderOperator, OpOverload
from .nodes import argument

# Namespaces whose schemas and tags say all about an operator. Another operator may do anything: a custom one
# may count, print or communicate, and collectives do.
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
_COLLECTIVES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d", "symm_mem"})
# These may have effects, but in a functional graph they write none of their arguments.
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
    """Whether a node has an effect: its order relative to other such nodes must not change."""
    if node.op != "call_function":
        return node.op == "call_module"
    return (_has_effect(node.target) or _is_impure(node)) and not _draws_nothing(node)


_impure: dict[OpOverload, bool] = {}


def _is_impure(node: Node) -> bool:
    """What torch says of a node; of one of its own operators, the same for all arguments."""
    if not isinstance(node.target, OpOverload):
        return node.is_impure()
    if node.target not in _impure:
        _impure[node.target] = node.is_impure()
    return _impure[node.target]


def _draws_nothing(node: Node) -> bool:
    """Whether a random operator draws no numbers for its arguments: attention without dropout, or a backward
    of attention, which gets the state of the generator that its forward has drawn with."""
    if not _is_random(node.target) or node.target._schema.is_mutable:  # type: ignore[union-attr]
        return False
    places = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    if "philox_seed" in places:
        return True
    if "dropout_p" not in places:
        return False
    return argument(node, places.index("dropout_p"), "dropout_p", 0.0) == 0  # type: ignore[no-any-return]


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


def loses_order(node: Node) -> bool:
    """Whether Inductor may run an effect in another order relative to other effects than the graph's.

    Inductor adds dependencies between writes and reads of the same memory, and between collectives, and moves
    collectives on purpose.
    """
    target = node.target
    if isinstance(target, HigherOrderOperator):
        return has_effect(node) and target.name() != "triton_kernel_wrapper_mutation"
    if not isinstance(target, OpOverload) or target.namespace in _COLLECTIVES:
        return False
    return has_effect(node) and (_is_random(target) or target.namespace not in _KNOWN)


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
