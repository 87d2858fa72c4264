"""The normalisation modules of a model: whether a region has their backward, or why none has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ..errors import Decline
from ..region.provenance import Provenance
from .calls import modules_of
from .findings import GraphRecord, Norm


def norms_of(
    function: Callable[..., Any], graphs: Sequence[GraphRecord], sizes: Mapping[str, int]
) -> tuple[Norm, ...]:
    """The modules whose class has "norm" in its name, each with the reason why no region has it. `sizes`: see
    `Calls`."""
    fused: set[str] = set()
    declined: dict[str, tuple[tuple[bool, int], str]] = {}
    none = _FAILED if any(graph.failures for graph in graphs) else _NONE_FOUND
    for kind, record in ((graph.kind, record) for graph in graphs for record in graph.records):
        about = record.provenance or Provenance()
        # What reads less than a norm's input is about sums that its backward has already.
        paths = [path for path, _ in about.modules if about.numel >= sizes.get(path, 0)]
        if not isinstance(record, Decline):
            fused.update(paths)
            continue
        # What names other modules too is about what they share; of the rest, the first is about all of it.
        rank = kind != "backward", len(about.modules)
        for path in paths:
            if path not in declined or rank < declined[path][0]:
                declined[path] = rank, f"{record.reason.value}: {record.detail}"

    def reason(path: str, module: nn.Module) -> str:
        if path in fused:
            return ""
        if path in declined:
            return declined[path][1]
        return (_why_none(module) or none) if path in sizes else _NOT_CAPTURED

    return tuple(
        Norm(path, type(module).__name__, reason(path, module))
        for path, module in modules_of(function)
        if "norm" in type(module).__name__.lower() and not any(True for _ in module.children())
    )


_NOT_CAPTURED = (
    "no captured graph names it: it did not run, it shares the graph of an equal module, or torch.compile "
    "captured nothing of it (TORCH_LOGS=graph_breaks says why)"
)
_NONE_FOUND = (
    "its backward has no sums that mixorder would fuse, such as where its input or its result needs no "
    "gradient, where it uses running statistics, or where Inductor's kernel reads each row once"
)
_FAILED = "mixorder failed on a pair, which may be this norm's (see the note)"
_OF_ONE = "its rows have one element each: there is nothing to reduce along them"


def _why_none(module: nn.Module) -> str:
    """Why the backward of a norm has no pair, if its module tells; else empty."""
    shape = getattr(module, "normalized_shape", None)
    if isinstance(shape, tuple | list) and math.prod(shape) == 1:
        return _OF_ONE
    if not any(p.requires_grad for p in module.parameters(recurse=False)):
        return "it has no trainable weight or bias, so its backward has no reduction over rows"
    return ""
