"""The predicted time of what a smaller region leaves to Inductor, as loops of its own.

Without the region, Inductor computes the same inside the loops that read it, and stores nothing of it.
"""

from __future__ import annotations

import math

from torch.fx import Node

from ..region.nodes import fake, is_view, operands
from ..region.region import Region
from ..region.turned import traced_shape
from ..region.walk import ancestors
from .device import DeviceInfo
from .kernel_time import TIMES, Kind, Times
from .work import Work


def outside_us(whole: Region, part: Region, device: DeviceInfo, times: Times = TIMES) -> float:
    """Microseconds of the loops that compute what `part` reads and `whole` computes, and of those that write
    what `whole` wrote. Loops that other nodes need anyway do not count. One kernel writes all tensors of one
    size."""
    members = set(whole.nodes)
    lost = members - set(part.nodes)
    left = {n for n in lost if all(u in members for u in n.users)} | lost.intersection(whole.outputs)
    written = left.intersection((*part.inputs, *whole.outputs))
    if not part.inner:  # Inductor as well has loops that write a result, and others that add it up
        written -= set(part.inputs).intersection(whole.outputs)
        left = {n for result in written for n in _made_of(result, left)}
    if not written:
        return 0.0
    moved = sum(map(_bytes, written | _sources(left, set(part.nodes) - set(part.outputs))))
    launches = len({_elements(n) for n in written})
    return times.launch_us * launches + times.us(Kind.POINTWISE, Work(moved, moved), device)


def _sources(nodes: set[Node], computed: set[Node]) -> set[Node]:
    """What loops that compute some nodes read. They compute what is among `computed` as well."""
    inside = set(ancestors(nodes, lambda node: node in nodes or node in computed))
    reading = (node for node in inside if node in computed or _is_read(node, nodes))
    return {operand for node in reading for operand in operands(node)} - computed - nodes


def _is_read(node: Node, nodes: set[Node]) -> bool:
    """Whether loops that compute some nodes read the operands of one of them. They do not for a view of a
    result."""
    return not is_view(node) or any(user in nodes for user in node.users)


def _made_of(node: Node, nodes: set[Node]) -> set[Node]:
    """A node, and those of `nodes` that it is computed from."""
    return {node, *ancestors(operands(node), nodes.__contains__)}


def _elements(node: Node) -> int:
    shape = traced_shape(node)
    return 0 if shape is None else math.prod(map(int, shape))


def _bytes(node: Node) -> int:
    val = fake(node)
    return 0 if val is None else _elements(node) * val.dtype.itemsize
