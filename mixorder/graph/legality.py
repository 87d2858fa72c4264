"""Whether a region may become one kernel. Raises `Decline`; no device properties, no cost.

That a region is convex is proved where it is grown; dtypes and static sizes are checked there too.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ..errors import Decline, DeclineReason
from .nodes import fake
from .region import Region


def check(region: Region) -> None:
    """Raise `Decline` if the region's tensors or its place in the graph forbid one kernel."""
    _check_devices(region)
    _check_mutation(region)


def _check_devices(region: Region) -> None:
    for node in (*region.inputs, *region.nodes):
        val = fake(node)
        assert val is not None
        if val.device != device_of(region):
            raise Decline(DeclineReason.MIXED_DEVICE, f"{val.device} beside {device_of(region)}", node.name)


def device_of(region: Region) -> torch.device:
    val = fake(region.inner[0])
    assert val is not None
    return val.device


def _check_mutation(region: Region) -> None:
    """The kernel reads its inputs at one place: nothing may write them while the region's nodes run."""
    inputs = set(region.inputs)
    node, last = region.nodes[0], region.nodes[-1]
    while node is not last:
        written = [arg for arg in _mutated_args(node) if arg in inputs]
        if written:
            raise Decline(DeclineReason.INPUT_MUTATED, f"{node.name} writes it", written[0].name)
        node = node.next


def _mutated_args(node: Node) -> list[Node]:
    if node.op != "call_function":
        return []
    if node.target is torch.ops.higher_order.triton_kernel_wrapper_mutation:
        return node.all_input_nodes
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    schema = node.target._schema.arguments
    given = {s.name: arg for s, arg in zip(schema, node.args, strict=False)} | dict(node.kwargs)
    return [
        given[s.name]
        for s in schema
        if s.alias_info is not None and s.alias_info.is_write and isinstance(given.get(s.name), Node)
    ]
