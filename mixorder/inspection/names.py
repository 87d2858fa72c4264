"""What tensors are called: parameters and inputs by their paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..inductor.tensors import tree_leaves
from .calls import modules_of


def names_of(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, str]:
    """Names by the tensors' identities: `blocks.0.norm.weight`, `input 0`, `input x`."""
    names: dict[int, str] = {}
    for key, value in [*enumerate(args), *kwargs.items()]:
        leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
        for i, leaf in enumerate(leaves):
            names[id(leaf)] = f"input {key}" + (f"[{i}]" if len(leaves) > 1 else "")
    for path, module in modules_of(function):
        for name, parameter in module.named_parameters(prefix=path, recurse=False):
            names.setdefault(id(parameter), name)
    return names
