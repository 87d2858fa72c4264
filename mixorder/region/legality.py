"""Whether a region may become one kernel. Raises `Decline`; no device properties, no cost.

That a region is convex is proved where it is grown; dtypes and static sizes are checked there too.
"""

from __future__ import annotations

import torch
from torch.fx import Graph

from ..errors import Decline, DeclineReason, say_once
from ..inductor.config import promises_bits
from ..inductor.graphs import get_node_storage
from ..inductor.kernels import has_triton
from .effects import mutated_args
from .nodes import fake, is_constant, is_readable_dtype
from .placement import moved
from .region import Region
from .walk import position


def has_usable_device(graph: Graph, interpret: bool) -> bool:
    """Whether the graph has tensors that our kernels can take; says once if not. `interpret`: on the CPU."""
    types = {val.device.type for node in graph.nodes if isinstance(val := node.meta.get("val"), torch.Tensor)}
    if "cuda" in types:
        if not has_triton():
            say_once("mixorder does nothing: Triton cannot drive this GPU")
        return has_triton()
    if "cpu" in types and interpret:
        return True
    if types:
        say_once(f"mixorder does nothing for a graph on {', '.join(sorted(types))}: it needs a GPU")
    return False


def check(region: Region) -> None:
    """Raise `Decline` if the settings, the region's tensors or its place in the graph forbid one kernel."""
    if setting := promises_bits():
        raise Decline(DeclineReason.NUMERICS, f"Inductor compiles with {setting}", region.named_after[0].name)
    _check_devices(region)
    _check_dtypes(region)
    _check_mutation(region)
    moved(region)


def _check_devices(region: Region) -> None:
    device = device_of(region)
    for node in (*region.inputs, *region.nodes):
        val = fake(node)
        if val is None or is_constant(node):
            continue  # a split, whose pieces are checked, or a constant
        if val.device != device:
            detail = f"tensors on {val.device} and {device}"
            raise Decline(DeclineReason.MIXED_DEVICE, detail, node.name)


def _check_dtypes(region: Region) -> None:
    """Raise `Decline` if a kernel would read a dtype that it can only compute."""
    for node in region.inputs:
        val = fake(node)
        if val is not None and not is_readable_dtype(val.dtype):
            raise Decline(DeclineReason.UNSUPPORTED_DTYPE, f"{val.dtype} is read", node.name)


def device_of(region: Region) -> torch.device:
    val = fake(region.named_after[0])
    assert val is not None
    return val.device


def _check_mutation(region: Region) -> None:
    """Raise `Decline` if a node writes an input, or an alias of one, between two places.

    The graph reads an input where the region's nodes stand. The kernel reads it where the last input is
    computed. The first and the last of these places are the two.
    """
    inputs = {get_node_storage(node): node for node in reversed(region.inputs)}
    node = min(region.nodes[0], max(region.inputs, key=position), key=position)
    while node is not region.nodes[-1]:
        node = node.next
        for arg in mutated_args(node):
            if (read := inputs.get(get_node_storage(arg))) is not None:
                raise Decline(DeclineReason.INPUT_MUTATED, f"{node.target} writes it", read.name)
