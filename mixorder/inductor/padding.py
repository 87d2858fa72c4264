"""Has Inductor pad no strides of what a launch of ours stands in front of, where it would not without us.

Inductor pads the rows of large tensors to multiples of a cache line, but not of those that a convolution's
backward reads in the end, through products and pointwise operators: it would have to be copied. From a launch
it does not look further. H100, torch 2.11, VOLO under autocast: the gradient of logits (64, 196, 1000) was
padded, copied for a product, and both copies were the peak, 0.5% above stock's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from .graphs import our_kernel
from .wrapping import wrap

MARK = "dislike_padding"
STORED = re.compile(r"tl\.store\((?:tl\.\w+\()?(\w+)")  # the parameters that a kernel's text stores to

aten = torch.ops.aten
# Inductor pads what these return, whoever reads it.
REDUCTIONS = frozenset(
    {
        aten.amax,
        aten.amin,
        aten.any,
        aten.argmax,
        aten.argmin,
        aten.max,
        aten.mean,
        aten.min,
        aten.prod,
        aten.scatter_reduce,
        aten.sum,
        aten.var_mean,
    }
)


def look_through_launches(module: ModuleType) -> None:
    """Wrap the function of `torch._inductor.graph` that marks the nodes whose results are not padded.
    Idempotent."""

    def through(original: Callable[..., None]) -> Callable[..., None]:
        def mark_nodes_dislike_padding(graph: Graph, visible: Any, *args: Any) -> None:
            original(graph, {}, *args)
            _spread(graph)
            original(graph, visible, *args)  # the graph's results too, but not what they come from

        return mark_nodes_dislike_padding

    wrap(module, "mark_nodes_dislike_padding", through)


def _spread(graph: Graph) -> None:
    """Mark what each launch with a marked result reads, and what that comes from."""
    launches: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for result in _results(node):
            launches[result].append(node)
    waiting = [result for result in launches if result.meta.get(MARK)]
    while waiting:
        node = waiting.pop()
        for reader in (node, *launches.get(node, ())):
            for prior in filter(_may_be_padded, reader.all_input_nodes):
                if not prior.meta.get(MARK):
                    prior.meta[MARK] = True
                    waiting.append(prior)


def _results(node: Node) -> Iterator[Node]:
    """What a launch of ours writes to: buffers of its own, and inputs whose memory it uses again."""
    if (kernel := our_kernel(node.kwargs.get("kernel_idx"))) is not None:
        stored = STORED.findall(kernel.src)
        given: Any = node.kwargs["kwargs"]
        yield from {given[name] for name in stored if isinstance(given.get(name), Node)}


def _may_be_padded(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.overloadpacket not in REDUCTIONS
