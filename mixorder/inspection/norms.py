"""The normalisation modules of a module, and what became of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..errors import Decline
from .found import GraphRecord, Norm


def norms_of(function: Callable[..., Any], graphs: Sequence[GraphRecord]) -> tuple[Norm, ...]:
    """The modules of a module whose class is named after a norm, and what became of each."""
    if not isinstance(function, nn.Module):
        return ()
    records = [record for graph in graphs for record in graph.records]
    fused: set[str] = set()
    declined: dict[str, str] = {}
    for record in records:
        paths = [path for path, _ in record.origin.modules] if record.origin else []
        if isinstance(record, Decline):
            declined.update(dict.fromkeys(paths, f"{record.reason.value}: {record.detail}"))
        else:
            fused.update(paths)
    return tuple(
        Norm(path, type(module).__name__, "" if path in fused else declined.get(path) or _why_none(module))
        for path, module in function.named_modules()
        if "norm" in type(module).__name__.lower() and not any(True for _ in module.children())
    )


def _why_none(module: nn.Module) -> str:
    """Why a norm has no pair at all, as far as its module shows."""
    if not any(p.requires_grad for p in module.parameters(recurse=False)):
        return "no weight or bias that trains, so nothing is reduced over rows"
    if "batch" in type(module).__name__.lower():
        return "its statistics are over rows: there is no inner reduction"
    return "no pair of reductions in its backward, as where its input needs no gradient"
