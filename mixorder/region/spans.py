"""Spans: how many bytes a tensor takes, and from where to where in the graph it is held."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch.fx import Node

from ..inductor.tensors import padded_strides
from .nodes import fake, size_of
from .padding import has_gaps


@dataclasses.dataclass(frozen=True)
class Span:
    """A tensor's memory: bytes, and the first and the last position at which it is held."""

    bytes: int
    first: int
    last: int


def add(changes: list[int], span: Span, sign: int) -> None:
    """Note in the changes of the bytes that a tensor is held or, with a `sign` of -1, that it is not."""
    if span.last >= span.first:
        changes[span.first] += sign * span.bytes
        changes[span.last + 1] -= sign * span.bytes


def bytes_of(node: Node) -> int:
    """Bytes of a node's tensor, with gaps where Inductor pads it or, for an input, has padded it; symbolic
    sizes are those of the example."""
    val = fake(node)
    if val is None:
        return 0
    count = math.prod(map(_hint, val.shape))
    padded = padded_strides(val)
    if padded is not None and (padded == tuple(val.stride()) or has_gaps(node)):
        count = val.shape[0] * padded[0]
    return count * val.dtype.itemsize


def _hint(n: int | torch.SymInt) -> int:
    if isinstance(n, int):
        return n
    hint = n.node.hint if size_of(n) is not None else None
    return 1 if hint is None else int(hint)
