"""Run the backward of a model's outputs without changing the `.grad` of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..inductor.tensors import tree_leaves


def roots_of(result: Any) -> list[Tensor]:
    """The tensors that the backward starts from: the attribute `loss` of the output, or else every output."""
    loss = getattr(result, "loss", None)
    leaves = [loss] if isinstance(loss, Tensor) else tree_leaves(result)
    return [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]


def parameters_behind(roots: Sequence[Tensor]) -> list[Tensor]:
    """The leaf tensors that the roots' gradients flow into."""
    leaves: dict[int, Tensor] = {id(t): t for t in roots if t.grad_fn is None}
    todo: list[Any] = [t.grad_fn for t in roots if t.grad_fn is not None]
    seen = set(todo)
    while todo:
        function = todo.pop()
        if (leaf := getattr(function, "variable", None)) is not None:
            leaves[id(leaf)] = leaf
        for following, _ in function.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return list(leaves.values())


def gradients(
    roots: Sequence[Tensor], into: Sequence[Tensor], tangents: Sequence[Tensor] | None = None
) -> tuple[Tensor | None, ...]:
    """Gradients of the roots' sum, or of the sum of their products with `tangents`; None for a leaf that it
    does not depend on."""
    ends = [torch.ones_like(t) for t in roots] if tangents is None else tangents
    return torch.autograd.grad(roots, into, ends, allow_unused=True)
