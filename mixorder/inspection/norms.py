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
    declined: dict[str, str] = {}
    none = _FAILED if any(graph.failures for graph in graphs) else _NO_PAIR
    for record in (record for graph in graphs for record in graph.records):
        about = record.provenance or Provenance()
        # What reads less than a norm's input is about sums that its backward has already.
        paths = [path for path, _ in about.modules if about.numel >= sizes.get(path, 0)]
        if isinstance(record, Decline):
            for path in paths:  # the first is about the pair, others may be about what it left over
                declined.setdefault(path, f"{record.reason.value}: {record.detail}")
        else:
            fused.update(paths)

    def reason(path: str, module: nn.Module) -> str:
        if path in fused:
            return ""
        if _is_of_one(module) and (path in declined or path in sizes):
            return _OF_ONE  # whatever was declined is the sum over its rows
        if _is_over_rows(module) and path in declined:
            return _OVER_ROWS  # the pair that was declined has another module's row-wise reduction
        if path not in declined and path not in sizes:
            return _NOT_CAPTURED
        return declined.get(path) or _why_none(module) or none

    return tuple(
        Norm(path, type(module).__name__, reason(path, module))
        for path, module in modules_of(function)
        if "norm" in type(module).__name__.lower() and not any(True for _ in module.children())
    )


_NOT_CAPTURED = (
    "no captured graph names it: it did not run, it shares the graph of an equal module, or torch.compile "
    "captured nothing of it (TORCH_LOGS=graph_breaks says why)"
)
_NO_PAIR = (
    "its backward has no pair of a reduction along the rows of its input and one over them, such as where "
    "its input or its result needs no gradient"
)
_FAILED = "mixorder failed on a pair, which may be this norm's (see the note)"
_OF_ONE = "its rows have one element each: there is nothing to reduce along them"
_OVER_ROWS = "its statistics are over rows, and no reduction runs along them"


def _is_over_rows(module: nn.Module) -> bool:
    return "batch" in type(module).__name__.lower()


def _is_of_one(module: nn.Module) -> bool:
    """Whether a module says that it normalises rows of one element, such as a map of one channel."""
    shape = getattr(module, "normalized_shape", None)
    return isinstance(shape, tuple | list) and math.prod(shape) == 1


def _why_none(module: nn.Module) -> str:
    """Why the backward of a norm has no pair, if its module tells; else empty."""
    if not any(p.requires_grad for p in module.parameters(recurse=False)):
        return "it has no trainable weight or bias, so its backward has no reduction over rows"
    return _OVER_ROWS if _is_over_rows(module) else ""
