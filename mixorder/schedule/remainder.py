"""The predicted time of the remainder: what a smaller region leaves to Inductor, as loops of its own.

Without the region, Inductor computes the same inside the loops that read it, and stores nothing of it.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch.fx import Node

from ..region.gathers import is_gather_view
from ..region.nodes import fake, is_view, operands, readers, shows
from ..region.region import Region
from ..region.space_analysis import takes_operands
from ..region.transposed import traced_shape
from ..region.walk import ancestors
from .device import DeviceInfo
from .facts import PRICES
from .kernel_time import TIMES, Kind, Times
from .work import Work


def remainder_us(
    whole: Region, subregion: Region, device: DeviceInfo, results: bool = False, times: Times = TIMES
) -> float:
    """Microseconds of the loops that compute what `subregion` reads and `whole` computes, and of those that
    write what `whole` wrote. What another operator needs in memory anyway does not count; loops that use it
    as well would recompute it. One kernel writes all tensors of one size, and computes for each element.

    `results`: also of those that write a result which a sum reads, as Inductor has them without the region.
    """
    lost = set(whole.nodes) - set(subregion.nodes)
    left = {n for n in lost if not _is_stored(n, whole)} | lost.intersection(whole.outputs)
    written = left.intersection((*subregion.inputs, *whole.outputs))
    # Inductor, too, has loops that write a result, and others that add it up.
    if not (subregion.inner or results):
        written -= set(subregion.inputs).intersection(whole.outputs)
        left = {n for result in written for n in _made_of(result, left)}
    if not written:
        return 0.0
    moved = sum(_elements(n) * _item(n) for n in written)
    moved += _read(left, set(subregion.nodes) - set(subregion.outputs))
    sizes: dict[int, set[Node]] = {}
    for node in written:
        made = _made_of(node, lost)
        sizes.setdefault(max(map(_elements, made)), set()).update(made)
    computed = sum(size * sum(map(_instructions, nodes)) for size, nodes in sizes.items())
    return times.launch_us * len(sizes) + times.us(Kind.POINTWISE, Work(moved, moved, computed), device)


def _is_stored(node: Node, whole: Region) -> bool:
    """Whether an operator reads a node, or a view of it, that Inductor fuses with nothing."""
    return not all(u in whole.nodes or takes_operands(u) for u in readers(node, shows))


def _instructions(node: Node) -> int:
    """Of an element, where it takes more than a few. A power of a number known before takes few."""
    name = str(node.target).split(".")[1:2]
    return 0 if node.target is torch.ops.aten.pow.Tensor_Scalar else PRICES.get("".join(name), 0)


def _read(nodes: set[Node], computed: set[Node]) -> int:
    """Bytes that loops which compute some nodes read. They compute what is among `computed` as well, and read
    of a tensor what views show of it."""
    inside = set(ancestors(nodes, lambda node: node in nodes or node in computed))
    read: dict[Node, int] = {}
    for view in {operand for node in itertools.filterfalse(_is_shown, inside) for operand in operands(node)}:
        source, shown = view, _elements(view)
        while source in inside and _is_shown(source):
            source = operands(source)[0]
            shown = min(shown, _elements(source) or shown)
        if source not in inside:
            read[source] = min(read.get(source, 0) + shown, _elements(source))
    return sum(shown * _item(source) for source, shown in read.items())


def _is_shown(node: Node) -> bool:
    """Whether a node is all of a tensor or a part of it, which nothing copies."""
    return is_view(node) or is_gather_view(node)


def _made_of(node: Node, nodes: set[Node]) -> set[Node]:
    """A node, and those of `nodes` that it is computed from."""
    return {node, *ancestors(operands(node), nodes.__contains__)}


def _elements(node: Node) -> int:
    shape = traced_shape(node)
    return 0 if shape is None else math.prod(map(int, shape))


def _item(node: Node) -> int:
    val = fake(node)
    return 0 if val is None else val.dtype.itemsize
