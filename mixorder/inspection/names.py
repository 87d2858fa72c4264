"""What tensors are called: parameters and inputs by their paths, and the gradients in a backward graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from ..inductor.tensors import tree_leaves
from ..region.nodes import fake
from .calls import modules_of

_SAME_VALUES = {"view", "reshape", "_unsafe_view", "squeeze", "unsqueeze", "permute", "clone", "_to_copy"}
_SAME_VALUES |= {"convert_element_type", "transpose", "t", "alias"}


def names_of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, str]:
    """Names by the tensors' identities: `blocks.0.norm.weight`, `input 0`, `input x`."""
    found: dict[int, str] = {}
    for key, value in [*enumerate(args), *kwargs.items()]:
        leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
        for i, leaf in enumerate(leaves):
            found[id(leaf)] = f"input {key}" + (f"[{i}]" if len(leaves) > 1 else "")
    for path, module in modules_of(function):
        for name, parameter in module.named_parameters(prefix=path, recurse=False):
            found.setdefault(id(parameter), name)
    return found


def gradients_in(graph: Graph, names: Sequence[str]) -> dict[str, str]:
    """By node: the parameter or input that it, reshaped or cast, is the gradient of.

    `names`: of the forward's inputs, to which a backward graph's results belong one by one.
    """
    (output,) = (node for node in graph.nodes if node.op == "output")
    results = output.args[0]
    if not isinstance(results, (tuple, list)) or len(results) != len(names):
        return {}
    found: dict[str, str] = {}
    for node, name in zip(results, names, strict=True):
        while name and isinstance(node, Node):
            found[node.name] = name
            node = node.args[0] if _has_values_of_its_input(node) else None
    return found


def _has_values_of_its_input(node: Node) -> bool:
    if node.op != "call_function" or len(node.all_input_nodes) != 1:
        return False
    value, source = fake(node), fake(node.all_input_nodes[0])
    if value is None or source is None or value.numel() != source.numel():
        return False
    return any(f".{name}." in f".{node.target}." for name in _SAME_VALUES)
