"""Keep Inductor from padding what a launch of ours reads, where it would not without us.

Inductor pads the rows of large tensors to multiples of a cache line, but not of those that a convolution's
backward reads in the end, through products and pointwise operators: it would have to be copied. From a launch
it does not look further. H100, torch 2.11, VOLO under autocast: the gradient of logits (64, 196, 1000) was
padded, copied for a product, and both copies were the peak, 0.5% above stock's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from .graphs import our_kernel

MARK = "dislike_padding"
STORED = re.compile(r"tl\.store\((?:tl\.\w+\()?(\w+)")  # the parameters that a kernel's text stores to


def through(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps the function of Inductor's that marks the nodes whose results are not padded."""

    def mark_nodes_dislike_padding(graph: Graph, visible: Any, *args: Any) -> None:
        original(graph, {}, *args)
        while _spread(graph):
            original(graph, {}, *args)
        original(graph, visible, *args)  # the graph's results too, but not what they come from

    return mark_nodes_dislike_padding


def _spread(graph: Graph) -> bool:
    """Mark what each launch with a marked result reads, but for reductions, which Inductor pads; return
    whether there was any."""
    reads = [
        n
        for node in graph.nodes
        if any(MARK in one.meta for one in _results(node))
        for n in node.all_input_nodes
    ]
    found = [
        n
        for n in reads
        if isinstance(n.target, OpOverload)
        and torch.Tag.reduction not in n.target.tags
        and MARK not in n.meta
    ]
    for node in found:
        node.meta[MARK] = True
    return bool(found)


def _results(node: Node) -> Iterator[Node]:
    """What a launch of ours writes to: buffers of its own, and inputs whose memory it uses again."""
    if (kernel := our_kernel(node.kwargs.get("kernel_idx"))) is not None:
        stored = STORED.findall(kernel.src)
        given: Any = node.kwargs["kwargs"]
        yield from {given[name] for name in stored if isinstance(given.get(name), Node)}
