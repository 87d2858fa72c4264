"""A graph in float64: what its results would be without any rounding to a narrower dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter
from torch.fx.node import map_aggregate

# Their results depend on a dtype's bits, or on what a generator draws for it.
_BITS = (torch.ops.aten.view.dtype,)


class NoReference(Exception):
    """The graph has no meaning in float64."""


def exact(gm: GraphModule, inputs: Sequence[Tensor]) -> list[Any]:
    """The results, eagerly, of inputs that are made float64 where they are floating-point; so is every dtype
    that the graph names. Integers and truth values stay as they are. Raises NoReference for random numbers
    and reinterpreted bits, and whatever an operator raises that takes no float64."""
    with torch.no_grad():
        results = _InFloat64(gm).run(*map(_wide, inputs))
    return list(results) if isinstance(results, tuple | list) else [results]


def _wide(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.double()
    return value


class _InFloat64(Interpreter):
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        tags = getattr(target, "tags", ())
        if target in _BITS or torch.Tag.nondeterministic_seeded in tags or "random" in str(target):
            raise NoReference(f"{target} in float64")
        return super().call_function(target, map_aggregate(args, _wide), map_aggregate(kwargs, _wide))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return _wide(super().get_attr(target, args, kwargs))
